"""Softplus and ELU: bounded below, linear above."""

from __future__ import annotations

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


class Softplus(Activation):
    """phi(u) = log(1 + exp(u)), Phi'(v) = log(exp(v) - 1) on v >= 0.

    Lifted Neural Networks, section 4, where Phi is said to have no closed form; values, potential
    and conjugate are those that `Activation` derives.
    """

    lipschitz = 1.0

    def forward(self, u: Tensor) -> Tensor:
        """Return log(1 + exp(u))."""
        return functional.softplus(u, threshold=_LINEAR)

    def slope(self, u: Tensor) -> Tensor:
        """Return 1 / (1 + exp(-u))."""
        return u.sigmoid()

    def project(self, v: Tensor) -> Tensor:
        """Return max(v, 0)."""
        return v.clamp(min=0)


class ELU(Activation):
    """phi(u) = u for u > 0, else exp(u) - 1.

    By eq. (6) of Lifted Neural Networks: Phi(v) = max(v^2 / 2, (1 + v) log(1 + v) - v) on v >= -1.
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
        above = (1 + v).clamp(min=0)
        value = torch.where(v > 0, v.square() / 2, torch.xlogy(above, above) - v)
        return torch.where(v < -1, torch.inf, value).sum(-1)

    def conjugate_value(self, u: Tensor) -> Tensor:
        """Return u^2 / 2 where u > 0, else exp(u) - u - 1, per sample, (samples,)."""
        low = u.clamp(max=0)
        return (u.clamp(min=0).square() / 2 + (torch.expm1(low) - low)).sum(-1)

    def project(self, v: Tensor) -> Tensor:
        """Return max(v, -1)."""
        return v.clamp(min=-1)
