"""An activation that acts on groups of units, each by itself: the softmax of attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from liftednet.activation import Activation
from liftednet.lazy import cvxpy as cp

if TYPE_CHECKING:
    from cvxpy.constraints.constraint import Constraint
    from cvxpy.expressions.expression import Expression


class Grouped(Activation):
    """Phi(v) = sum of the Phi of consecutive groups of units; phi acts on each group by itself.

    Scores of attention are such groups: a softmax over the positions for each query (Vaswani et
    al., 2017), with Lifted Neural Networks, eq. (11) for each.
    """

    per_unit = False

    def __init__(self, inner: Activation, size: int) -> None:
        """Keep the activation of a group.

        Args:
            inner: maps a group, and keeps its size.
            size: units of a group.
        """
        self.inner, self.size = inner, size
        self.lipschitz = inner.lipschitz

    def _groups(self, rows: Tensor) -> Tensor:
        return rows.reshape(-1, self.size)

    def forward(self, u: Tensor) -> Tensor:
        """Return phi of every group, (samples, units)."""
        return self.inner.forward(self._groups(u)).view(u.shape)

    def potential(self, v: Expression) -> Expression:
        """Return the sum of Phi over the groups."""
        return self.inner.potential(self._stacked(v))

    def domain(self, v: Expression) -> list[Constraint]:
        """Return the domain of every group."""
        return self.inner.domain(self._stacked(v))

    def conjugate(self, u: Expression) -> Expression:
        """Return the sum of Phi* over the groups."""
        return self.inner.conjugate(self._stacked(u))

    def _stacked(self, v: Expression) -> Expression:
        return cp.reshape(v, (v.size // self.size, self.size), order="C")

    def prox(self, w: Tensor, t: float | Tensor) -> Tensor:
        """Return the prox of every group."""
        groups = w.shape[-1] // self.size
        scale = t.expand(len(w), groups).reshape(-1, 1) if isinstance(t, Tensor) else t
        return self.inner.prox(self._groups(w), scale).view(w.shape)

    def potential_value(self, v: Tensor) -> Tensor:
        """Return the sum of Phi over the groups of each sample, (samples,)."""
        return self.inner.potential_value(self._groups(v)).view(*v.shape[:-1], -1).sum(-1)

    def conjugate_value(self, u: Tensor) -> Tensor:
        """Return the sum of Phi* over the groups of each sample, (samples,)."""
        return self.inner.conjugate_value(self._groups(u)).view(*u.shape[:-1], -1).sum(-1)

    def project(self, v: Tensor) -> Tensor:
        """Return the nearest point of the domain, group by group."""
        return self.inner.project(self._groups(v)).view(v.shape)
