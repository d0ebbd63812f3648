"""An activation whose states are held between bounds: Phi on a smaller domain."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from liftednet.activation import Activation
from liftednet.errors import DataError, DeclarationError
from liftednet.validation import is_number

if TYPE_CHECKING:
    from cvxpy.constraints.constraint import Constraint
    from cvxpy.expressions.expression import Expression


class Bounded(Activation):
    """Phi on l <= v <= h: phi, prox and projection of a unit-by-unit map are cut off there.

    Raises:
        DataError: there is no number between the bounds, or none in the domain.
        DeclarationError: the map couples units.
    """

    def __init__(self, inner: Activation, lower: float, upper: float) -> None:
        """Keep the map and its bounds.

        Args:
            inner: the map without bounds, unit by unit.
            lower: l, or -inf.
            upper: h, or inf.
        """
        if not inner.per_unit:
            raise DeclarationError(f"bounds need a map that acts unit by unit, not {inner!r}.")
        if not (is_bound(lower) and is_bound(upper) and lower <= upper):
            raise DataError(f"bounds must be two numbers, the smaller first; got {(lower, upper)}.")
        ends = torch.tensor([[lower, upper]], dtype=torch.float64)
        low, high = inner.project(ends)[0].tolist()
        if not (low <= upper and high >= lower):
            raise DataError(f"no state of {inner!r} lies between the bounds {lower} and {upper}.")
        self.inner, self.lower, self.upper = inner, float(lower), float(upper)
        self.lipschitz = inner.lipschitz

    def _cut(self, v: Tensor) -> Tensor:
        return v.clamp(self.lower, self.upper)

    def forward(self, u: Tensor) -> Tensor:
        """Return phi(u), cut off at the bounds."""
        return self._cut(self.inner.forward(u))

    def slope(self, u: Tensor) -> Tensor:
        """Return phi'(u), 0 at and beyond the bounds."""
        v = self.inner.forward(u)
        return self.inner.slope(u).where((v > self.lower) & (v < self.upper), 0.0)

    def potential(self, v: Expression) -> Expression:
        """Return Phi(v)."""
        return self.inner.potential(v)

    def excess(self, v: Expression) -> Expression:
        """Return Phi(v) - |v|^2 / (2 L)."""
        return self.inner.excess(v)

    def domain(self, v: Expression) -> list[Constraint]:
        """Return the domain of Phi, and the bounds that are finite."""
        walls = self.inner.domain(v)
        if math.isfinite(self.lower):
            walls = [*walls, v >= self.lower]
        return [*walls, v <= self.upper] if math.isfinite(self.upper) else walls

    @property
    def closed_prox(self) -> bool:
        """Whether that of Phi is a closed form."""
        return self.inner.closed_prox

    def prox(self, w: Tensor, t: float | Tensor) -> Tensor:
        """Return the prox of Phi cut off at the bounds, exact in one dimension."""
        return self._cut(self.inner.prox(w, t))

    def potential_value(self, v: Tensor) -> Tensor:
        """Return Phi(v) per sample, infinite beyond the bounds."""
        outside = ((v < self.lower) | (v > self.upper)).any(-1)
        return self.inner.potential_value(v).masked_fill(outside, torch.inf)

    def project(self, v: Tensor) -> Tensor:
        """Return the nearest point of the domain between the bounds."""
        return self._cut(self.inner.project(v))


def is_bound(value: object) -> bool:
    """Say whether it is a number or infinite."""
    return is_number(value) or value in (math.inf, -math.inf)
