"""Softplus and ELU: bounded below, linear above."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from liftednet.activation import Activation
from liftednet.lazy import cvxpy as cp

if TYPE_CHECKING:
    from cvxpy.constraints.constraint import Constraint
    from cvxpy.expressions.expression import Expression

_LINEAR = 40.0  # log(1 + exp(u)) is u beyond, in float64 too
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
SERIES = tuple(b / math.factorial(2 * k + 3) for k, b in enumerate(_BERNOULLI))

_NEAR = 0.25  # to 0, where series are right to rounding
EXPONENTIAL = tuple(1 / math.factorial(k) for k in range(2, 14))
ARTANH = tuple(1 / (2 * k + 3) for k in range(10))


def _horner(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    """Return c_0 + c_1 x + c_2 x^2 + ..."""
    value = torch.zeros_like(x)
    for coefficient in reversed(coefficients):
        value = value * x + coefficient
    return value


def _exponential_rest(u: Tensor) -> Tensor:
    """Return exp(u) - 1 - u for u <= 0; near 0 the terms cancel, and its series does not."""
    series = u.square() * _horner(EXPONENTIAL, u)
    return torch.where(u > -_NEAR, series, torch.expm1(u) - u)


def _entropy_rest(v: Tensor) -> Tensor:
    """Return (1 + v) log(1 + v) - v for -1 <= v <= 0; near 0 by a series.

    With w = v / (2 + v), log(1 + v) = 2 artanh(w) and it is
    2 (w^2 + (1 + w) (artanh(w) - w)) / (1 - w).
    """
    w = v / (2 + v)
    square = w.square()
    near = 2 * square * (1 + (1 + w) * w * _horner(ARTANH, square)) / (1 - w)
    above = 1 + v
    return torch.where(v > -_NEAR, near, torch.xlogy(above, above) - v)


def _negated_dilogarithm(u: Tensor) -> Tensor:
    """Return -Li2(-exp(u)), the integral of log(1 + exp(x)) from minus infinity to u.

    With t = log(1 + exp(-|u|)) <= log 2 it is t + t^2 / 4 + sum_k B_2k t^(2k + 1) / (2k + 1)! for
    u <= 0, and u^2 / 2 + pi^2 / 6 less the same for u > 0 (Lewin, Polylogarithms, 1981).
    """
    t = torch.log1p(torch.exp(-u.abs()))
    square, series = t.square(), torch.zeros_like(t)
    for coefficient in reversed(SERIES):
        series = (series + coefficient) * square
    low = t * (1 + t / 4 + series)
    return torch.where(u > 0, u.square() / 2 + math.pi**2 / 6 - low, low)


class Softplus(Activation):
    """phi(u) = log(1 + exp(u)), Phi(v) = integral of log(exp(z) - 1) from 0 to v, on v >= 0.

    Lifted Neural Networks, section 4, where Phi is said to have no closed form; by the dilogarithm
    it is v log(exp(v) - 1) - Phi*(log(exp(v) - 1)) with Phi*(u) = -Li2(-exp(u)). CVXPY has no atom
    for it, so that the stated potential is the piecewise quadratic that `Activation` derives.

    Example:
        >>> import torch
        >>> from liftednet.activations import Softplus
        >>> Softplus().forward(torch.tensor([[-1.0, 0.0, 2.0]]))
        tensor([[0.3133, 0.6931, 2.1269]])
    """

    lipschitz = 1.0

    def forward(self, u: Tensor) -> Tensor:
        """Return log(1 + exp(u))."""
        return functional.softplus(u, threshold=_LINEAR)

    def slope(self, u: Tensor) -> Tensor:
        """Return 1 / (1 + exp(-u))."""
        return u.sigmoid()

    def potential_value(self, v: Tensor) -> Tensor:
        """Return v u - Phi*(u) per sample at u = log(exp(v) - 1), infinite where v < 0."""
        inside = v.clamp(min=0)
        rest = -torch.expm1(-inside)  # u = v + log(1 - exp(-v))
        product = inside.square() + torch.xlogy(inside, rest)
        value = product - _negated_dilogarithm(inside + rest.log())
        return torch.where(v < 0, torch.inf, value).sum(-1)

    def conjugate_value(self, u: Tensor) -> Tensor:
        """Return -Li2(-exp(u)) per sample, (samples,)."""
        return _negated_dilogarithm(u).sum(-1)

    def project(self, v: Tensor) -> Tensor:
        """Return max(v, 0)."""
        return v.clamp(min=0)


class ELU(Activation):
    """phi(u) = u for u > 0, else exp(u) - 1.

    By eq. (6) of Lifted Neural Networks: Phi(v) = max(v^2 / 2, (1 + v) log(1 + v) - v) on v >= -1.

    Example:
        >>> import torch
        >>> from liftednet.activations import ELU
        >>> ELU().forward(torch.tensor([[-1.0, 0.0, 2.0]]))
        tensor([[-0.6321,  0.0000,  2.0000]])
    """

    lipschitz = 1.0

    def forward(self, u: Tensor) -> Tensor:
        """Return u where u > 0, else exp(u) - 1."""
        return functional.elu(u)

    def slope(self, u: Tensor) -> Tensor:
        """Return 1 where u > 0, else exp(u)."""
        return u.clamp(max=0).exp()

    def potential(self, v: Expression) -> Expression:
        """Return sum of max(v^2 / 2, (1 + v) log(1 + v) - v)."""
        return cp.sum(cp.maximum(cp.square(v) / 2, cp.kl_div(1 + v, 1)))

    def domain(self, v: Expression) -> list[Constraint]:
        """Return v >= -1."""
        return [v >= -1]

    def conjugate(self, u: Expression) -> Expression:
        """Return sum of a^2 / 2 + exp(b) - b - 1, where u = a + b, a >= 0 >= b."""
        positive = cp.Variable(u.shape, nonneg=True)
        negative = u - positive
        value = cp.sum_squares(positive) / 2 + cp.sum(cp.exp(negative) - negative - 1)
        return value + cp.transforms.indicator([negative <= 0])

    def potential_value(self, v: Tensor) -> Tensor:
        """Return max(v^2 / 2, (1 + v) log(1 + v) - v) per sample, infinite below -1."""
        value = torch.where(v > 0, v.square() / 2, _entropy_rest(v.clamp(-1, 0)))
        return torch.where(v < -1, torch.inf, value).sum(-1)

    def conjugate_value(self, u: Tensor) -> Tensor:
        """Return u^2 / 2 where u > 0, else exp(u) - u - 1, per sample, (samples,)."""
        low = u.clamp(max=0)
        return (u.clamp(min=0).square() / 2 + _exponential_rest(low)).sum(-1)

    def project(self, v: Tensor) -> Tensor:
        """Return max(v, -1)."""
        return v.clamp(min=-1)
