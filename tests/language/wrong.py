"""Declarations that do not hold, each with the check that finds it."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import torch

from liftednet import Activation, activations


class PaperArctanh(Activation):
    """Section 4: the Phi printed there belongs to tanh."""

    def potential(self, v):
        return -(cp.sum(cp.entr(1 - v)) + cp.sum(cp.entr(1 + v))) / 2

    def forward(self, u):
        return torch.atanh(u)


class BoundedArctanh(PaperArctanh):
    """The same with a forward map that is finite everywhere."""

    def forward(self, u):
        return torch.atanh(u.clamp(-0.99, 0.99))


class PaperSine(Activation):
    """Section 4: the argmin is the sine on [-pi/2, pi/2] alone, and CVXPY has no arcsine."""

    def potential(self, v):
        return cp.sum(cp.multiply(v, np.arcsin(v)) + cp.sqrt(1 - v**2))

    def forward(self, u):
        return u.clamp(-torch.pi / 2, torch.pi / 2).sin()


class SineAlone(Activation):
    def forward(self, u):
        return u.sin()


class UnclampedSine(activations.Sine):
    def forward(self, u):
        return u.sin()


class Decreasing(Activation):
    def forward(self, u):
        return -u


class DecreasingVector(Activation):
    per_unit = False

    def potential(self, v):
        return cp.sum_squares(v) / 2

    def forward(self, u):
        return -u


class Concave(activations.Identity):
    def potential(self, v):
        return -cp.sum_squares(v) / 2


class Disagreeing(activations.ReLU):
    def forward(self, u):
        return torch.nn.functional.softplus(u)


class Unbounded(activations.Identity):
    def potential(self, v):
        return cp.sum(v)


class WrongDomain(activations.ReLU):
    def domain(self, v):
        return [v >= 0, v <= 1]


class WrongProx(activations.Sigmoid):
    def prox(self, w, t):
        return w.clamp(0, 1)


class ExpansiveProx(activations.Identity):
    def prox(self, w, t):
        return w / (1 + t) if float(torch.as_tensor(t).max()) < 200 else 2 * w


class WrongConjugate(activations.ReLU):
    def conjugate(self, u):
        return cp.sum_squares(u) / 2


class ShiftedConjugate(activations.Sigmoid):
    def conjugate(self, u):
        return cp.sum(cp.logistic(u)) + u.size


class ConcaveConjugate(activations.Identity):
    def conjugate(self, u):
        return -cp.sum_squares(u) / 2


class WrongConjugateValue(activations.Sigmoid):
    def conjugate_value(self, u):
        return u.clamp(min=0).sum(-1)


class WrongPotentialValue(activations.Sigmoid):
    def potential_value(self, v):
        return super().potential_value(v) + 1


class FinitePotentialValue(activations.ReLU):
    def potential_value(self, v):
        return v.square().sum(-1) / 2


class SmallLipschitz(activations.Sigmoid):
    lipschitz = 0.2


class SmallSoftmaxLipschitz(activations.Softmax):
    lipschitz = 0.4


class NegativeLipschitz(activations.Sigmoid):
    lipschitz = -1.0


class WrongSlope(activations.Tanh):
    def slope(self, u):
        return torch.ones_like(u)


class WrongProjection(activations.ReLU):
    def project(self, v):
        return v


class CoupledUnits(Activation):
    """A softmax that says nothing of its coupled units."""

    def forward(self, u):
        return u.softmax(-1)


class CoupledSamples(activations.Identity):
    def forward(self, u):
        return u - u.mean(0)


class WrongShape(activations.Identity):
    def forward(self, u):
        return u.sum(-1)


class NotANumber(activations.ReLU):
    def forward(self, u):
        return u.sqrt()


class Raising(activations.ReLU):
    """A prox that compares its weight, which may be one for each sample."""

    def prox(self, w, t):
        return w.clamp(min=0) / (1 + t) if t > 0 else w.clamp(min=0)


class NotASum(activations.ReLU):
    def potential(self, v):
        return cp.square(v) / 2


class NotCompiledOnce(activations.Identity):
    """A product of two parameters is convex, and not DPP."""

    def potential(self, v):
        scale = cp.Parameter(nonneg=True, value=1.0)
        return scale * scale * cp.sum_squares(v) / 2


def pooling(weight: float) -> Activation:
    def divergence(v, u):
        repeat = np.kron(np.eye(v.shape[1]), np.ones((1, 2)))
        return weight * cp.sum(v) + cp.sum(cp.pos(u - v @ repeat))

    return Activation.from_divergence(
        divergence, lambda u: u.unflatten(-1, (-1, 2)).amax(-1), block=2
    )


def leaky_half_space(forward: Callable[[torch.Tensor], torch.Tensor]) -> Activation:
    def divergence(v, u):
        return cp.sum_squares(v - u) / 2 + cp.transforms.indicator([v >= 2 * u])

    return Activation.from_divergence(divergence, forward)


REFUSED: dict[str, tuple[Callable[[], Activation], str]] = {
    "arctanh": (PaperArctanh, "forward: finite"),
    "arctanh, bounded": (BoundedArctanh, "argmin: equals forward"),
    "max-pooling of weight 1": (lambda: pooling(1.0), "argmin: unique"),
    "leaky ReLU of the other form": (
        lambda: leaky_half_space(lambda u: torch.maximum(u, u / 2)),
        "argmin: equals forward",
    ),
    "sine, with the printed Phi": (PaperSine, "potential: convex in v"),
    "sine, alone": (SineAlone, "forward: monotone"),
    "sine, outside its range": (UnclampedSine, "forward: monotone"),
    "decreasing": (Decreasing, "forward: monotone"),
    "decreasing vector": (DecreasingVector, "forward: monotone"),
    "concave": (Concave, "potential: convex in v"),
    "disagreeing": (Disagreeing, "argmin: equals forward"),
    "unbounded": (Unbounded, "argmin: unique"),
    "wrong domain": (WrongDomain, "argmin: equals forward"),
    "wrong prox": (WrongProx, "prox: argmin"),
    "expansive prox": (ExpansiveProx, "prox: finite, nonexpansive"),
    "wrong conjugate": (WrongConjugate, "tight divergence in CVXPY: D >= 0"),
    "shifted conjugate": (ShiftedConjugate, "tight divergence in CVXPY: D >= 0"),
    "concave conjugate": (ConcaveConjugate, "conjugate: convex in u"),
    "wrong conjugate value": (WrongConjugateValue, "conjugate: one value"),
    "wrong potential value": (WrongPotentialValue, "potential: one value"),
    "finite outside": (FinitePotentialValue, "potential_value: infinite outside"),
    "small Lipschitz": (SmallLipschitz, "lipschitz"),
    "small Lipschitz, coupled": (SmallSoftmaxLipschitz, "lipschitz"),
    "negative Lipschitz": (NegativeLipschitz, "lipschitz"),
    "wrong slope": (WrongSlope, "slope"),
    "wrong projection": (WrongProjection, "project: nearest in the domain"),
    "coupled units": (CoupledUnits, "forward: separate"),
    "coupled samples": (CoupledSamples, "forward: separate"),
    "wrong shape": (WrongShape, "forward: finite"),
    "not a number": (NotANumber, "forward: finite"),
    "raising": (Raising, "proximal: stationary"),
    "not a sum": (NotASum, "potential: convex in v"),
    "not compiled once": (NotCompiledOnce, "potential: convex in v"),
}
