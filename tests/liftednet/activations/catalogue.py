"""Every activation of the catalogue once or more, and some that are declared by a map alone."""

from __future__ import annotations

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
