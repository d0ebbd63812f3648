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


class SlopeBeyondSix(activations.Tanh):
    def slope(self, u):
        return torch.where(u.abs() < 6, super().slope(u), 0.5)


class SlopeBeyondTwelve(activations.Identity):
    def slope(self, u):
        return (u.abs() < 12).to(u.dtype)


class DomainToNine(activations.ReLU):
    def domain(self, v):
        return [v >= 0, v <= 9]


class PotentialBeyondNine(activations.Identity):
    """Huber's function: right up to 9."""

    def potential(self, v):
        return cp.sum(cp.huber(v, 9)) / 2


class ConjugateBeyondNine(activations.Identity):
    def conjugate(self, u):
        return cp.sum(cp.huber(u, 9)) / 2


class ConjugateValueBeyondFifty(activations.Softplus):
    def conjugate_value(self, u):
        return super().conjugate_value(u.clamp(max=50))


class PotentialValueBeyondFifty(activations.ReLU):
    def potential_value(self, v):
        return super().potential_value(v.clamp(max=50))


class OutsideBeyondFifty(activations.ReLU):
    def potential_value(self, v):
        return super().potential_value(torch.where(v < -50, 0, v))


class ForwardBeyondThirty(Activation):
    """A projection on a wide ball, coupled, that is right only near zero."""

    per_unit = False

    def potential(self, v):
        return cp.sum_squares(v) / 2

    def forward(self, u):
        return u.clamp(-30, 30)


class ProxToThirty(activations.ReLU):
    def prox(self, w, t):
        return super().prox(w, t).clamp(max=30)


class ProxOfSmallSteps(activations.Sigmoid):
    def prox(self, w, t):
        right = super().prox(w, t)
        return torch.where(torch.as_tensor(t) < 0.01, w.clamp(0, 1) * 0.9, right)


class CoupledProxOfSmallSteps(activations.Softmax):
    def prox(self, w, t):
        t = torch.as_tensor(t).to(w)
        return torch.where(t < 0.01, super().prox(0.9 * w, t), super().prox(w, t))


class CoupledProxOfLargeSteps(activations.Softmax):
    def prox(self, w, t):
        t = torch.as_tensor(t).to(w)
        return torch.where(t > 1e4, super().prox(w, t / 1e6), super().prox(w, t))


class ProjectToTwenty(activations.ReLU):
    def project(self, v):
        return v.clamp(0, 20)


class FivePercentInSingle(activations.Tanh):
    def forward(self, u):
        return super().forward(u) * (1.05 if u.dtype is torch.float32 else 1)


class SlopeInSingle(activations.Sigmoid):
    def slope(self, u):
        return super().slope(u) * (1.05 if u.dtype is torch.float32 else 1)


class ProxInSingle(activations.ReLU):
    def prox(self, w, t):
        return super().prox(w, t) * (0.95 if w.dtype is torch.float32 else 1)


class ExpansiveInSingle(activations.ReLU):
    def prox(self, w, t):
        return super().prox(w, t) * (1.05 if w.dtype is torch.float32 else 1)


class ProjectInSingle(activations.Clipped):
    def project(self, v):
        return super().project(v) * (0.95 if v.dtype is torch.float32 else 1)


class PotentialValueInSingle(activations.Sigmoid):
    def potential_value(self, v):
        return super().potential_value(v) * (1.05 if v.dtype is torch.float32 else 1)


class CoupledInSingle(activations.Softmax):
    def forward(self, u):
        return super().forward(u * (1.05 if u.dtype is torch.float32 else 1))


class Overflowing(activations.Sigmoid):
    """log(1 + exp(u)) as it is printed: infinite from 88 on in float32, from 710 in float64."""

    def conjugate_value(self, u):
        small = u.clamp(max=700) if u.dtype is torch.float64 else u
        return (torch.log(1 + torch.exp(small)) + (u - 700).clamp(min=0)).sum(-1)


class WrongOffset(activations.ReLU):
    def offset(self, units):
        return torch.ones(units, dtype=torch.float64)


class OffsetOfAnotherShape(activations.Softmax):
    def offset(self, units):
        return torch.zeros(1, dtype=torch.float64)


class ZeroOffset(activations.Sigmoid):
    def offset(self, units):
        return torch.zeros(units, dtype=torch.float64)


class WrongExcess(activations.LeakyReLU):
    def excess(self, v):
        return cp.sum_squares(v) / 2


class ConcaveExcess(activations.Identity):
    def excess(self, v):
        return -cp.sum_squares(v)


def raw_identity(reach: float, single: float = 1.0) -> Activation:
    """|v - u|^2 / 2 with a forward map that ends, or is off in float32."""

    def forward(u):
        return u.clamp(-reach, reach) * (single if u.dtype is torch.float32 else 1)

    return Activation.from_divergence(lambda v, u: cp.sum_squares(v - u) / 2, forward)


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
    "wrong prox": (WrongProx, "prox: v = phi((w - v) / t)"),
    "expansive prox": (ExpansiveProx, "prox: v = phi((w - v) / t)"),
    "expansive prox in float32": (ExpansiveInSingle, "prox: finite, nonexpansive"),
    "wrong conjugate": (WrongConjugate, "conjugate: one value"),
    "shifted conjugate": (ShiftedConjugate, "conjugate: one value"),
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
    "raising": (Raising, "prox stationary"),
    "not a sum": (NotASum, "potential: convex in v"),
    "not compiled once": (NotCompiledOnce, "potential: convex in v"),
    "slope beyond 6": (SlopeBeyondSix, "slope"),
    "slope beyond 12": (SlopeBeyondTwelve, "slope"),
    "domain to 9": (DomainToNine, "project: nearest in the domain"),
    "potential beyond 9": (PotentialBeyondNine, "potential: one value"),
    "conjugate beyond 9": (ConjugateBeyondNine, "conjugate: one value"),
    "conjugate value beyond 50": (
        ConjugateValueBeyondFifty,
        "tight divergence: D >= 0",
    ),
    "potential value beyond 50": (PotentialValueBeyondFifty, "potential: one value"),
    "finite outside, beyond 50": (OutsideBeyondFifty, "potential_value: infinite outside"),
    "forward beyond 30, coupled": (ForwardBeyondThirty, "argmin: equals forward, far"),
    "forward beyond 30, raw": (lambda: raw_identity(30.0), "argmin: equals forward, far"),
    "prox to 30": (ProxToThirty, "prox: v = phi((w - v) / t)"),
    "prox of small steps": (ProxOfSmallSteps, "prox: v = phi((w - v) / t)"),
    "prox of small steps, coupled": (CoupledProxOfSmallSteps, "prox: v = phi((w - v) / t)"),
    "prox of large steps, coupled": (CoupledProxOfLargeSteps, "prox: v = phi((w - v) / t)"),
    "project to 20": (ProjectToTwenty, "potential_value: infinite outside"),
    "5 % off in float32": (FivePercentInSingle, "float32: as in float64"),
    "5 % off in float32, coupled": (CoupledInSingle, "float32: as in float64"),
    "5 % off in float32, raw": (lambda: raw_identity(1e9, 1.05), "float32: as in float64"),
    "slope in float32": (SlopeInSingle, "float32: as in float64"),
    "prox in float32": (ProxInSingle, "float32: as in float64"),
    "project in float32": (ProjectInSingle, "float32: as in float64"),
    "potential value in float32": (PotentialValueInSingle, "float32: as in float64"),
    "overflowing in float32": (Overflowing, "float32: as in float64"),
    "wrong offset": (WrongOffset, "offset"),
    "offset of zero": (ZeroOffset, "offset"),
    "offset of another shape": (OffsetOfAnotherShape, "offset"),
    "wrong excess": (WrongExcess, "excess: potential less its square"),
    "concave excess": (ConcaveExcess, "excess: potential less its square"),
}
