"""Every activation of the catalogue, and some that are declared in each of the ways there are."""

import cvxpy as cp
import torch
from torch.nn import functional

from liftednet import Activation, activations

SEPARABLE = [
    activations.Identity(), activations.ReLU(), activations.LeakyReLU(0.2),
    activations.LeakyReLU(1.0), activations.Clipped(), activations.Clipped(2.0, 3.0),
    activations.Sigmoid(), activations.Tanh(),
    activations.Softplus(), activations.ELU(), activations.Arctan(), activations.Sine(),
]  # fmt: skip
COUPLED = [activations.Softmax(), activations.SimplexProjection()]
BY_MAP = [
    Activation.from_function(functional.softsign),
    Activation.from_function(torch.exp),
    Activation.from_function(torch.sign),
]
SPLIT = [*SEPARABLE, activations.Sign(), activations.Quantized(3, -1.0, 1.0), *COUPLED]
EVERY = [*SPLIT, *BY_MAP]


class Stated(Activation):
    """A CVXPY expression, its domain, and the forward map."""

    def potential(self, v):
        return -cp.sum(cp.entr(v)) - cp.sum(cp.entr(1 - v))

    def domain(self, v):
        return [v >= 0, v <= 1]

    def forward(self, u):
        return u.sigmoid()


class Ball(Activation):
    """Coupled units: the projection on the unit ball, without closed forms."""

    per_unit = False
    lipschitz = 1.0

    def potential(self, v):
        return cp.sum_squares(v) / 2

    def domain(self, v):
        return [cp.norm(v, 2, axis=1) <= 1]

    def forward(self, u):
        return u / u.norm(dim=-1, keepdim=True).clamp(min=1)


QUARTIC = Activation.from_potential(lambda v: v**4 / 4 + v**2 / 2)
OWN = [Stated(), Ball(), QUARTIC]
