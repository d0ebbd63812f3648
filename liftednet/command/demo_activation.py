"""The activation that the demo declares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from liftednet.activation import Activation
from liftednet.lazy import cvxpy as cp

if TYPE_CHECKING:
    from cvxpy.expressions.expression import Expression


class SquarePlus(Activation):
    """phi(u) = (u + sqrt(u^2 + 4)) / 2, a smooth ReLU; Phi(v) = v^2 / 2 - log v.

    v = phi(u) solves v - 1 / v = u (Barron, Squareplus, 2021).
    """

    lipschitz = 1.0

    def forward(self, u: Tensor) -> Tensor:
        """Return (u + sqrt(u^2 + 4)) / 2."""
        return (u + (u.square() + 4).sqrt()) / 2

    def potential(self, v: Expression) -> Expression:
        """Return |v|^2 / 2 - sum log v."""
        value: Expression = cp.sum_squares(v) / 2 - cp.sum(cp.log(v))
        return value

    def prox(self, w: Tensor, t: float | Tensor) -> Tensor:
        """Return the positive root of (1 + t) v - t / v = w."""
        return (w + (w.square() + 4 * t * (1 + t)).sqrt()) / (2 * (1 + t))
