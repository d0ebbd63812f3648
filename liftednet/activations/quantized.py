"""Maps onto a few levels: steps whose potential is linear in pieces."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from liftednet.activation import Activation
from liftednet.activations.piecewise_linear import Clipped
from liftednet.errors import DeclarationError
from liftednet.lazy import cvxpy as cp
from liftednet.validation import is_number, require_count

if TYPE_CHECKING:
    from cvxpy.constraints.constraint import Constraint
    from cvxpy.expressions.expression import Expression


class Quantized(Activation):
    """phi(u) = the level nearest to u, Phi(v) = v^2 / 2 at the levels and linear between them.

    The argmax of <u, v> - v^2 / 2 over k levels, evenly spaced from lower to upper, and Phi is the
    convex hull of what stands there. Two levels are a hard step at the middle. phi jumps, and has
    no Lipschitz constant; its margin is that of `Clipped`, see `liftednet.divergences.Margin`.

    Raises:
        DataError: levels is no integer of 2 or more.
        DeclarationError: lower < upper does not hold, or they are not finite.

    Example:
        >>> import torch
        >>> from liftednet.activations import Quantized
        >>> Quantized(3, -1.0, 1.0).forward(torch.tensor([[-2.0, -0.4, 0.6]]))
        tensor([[-1.,  0.,  1.]])
    """

    lipschitz = None

    def __init__(self, levels: int = 2, lower: float = 0.0, upper: float = 1.0) -> None:
        """Keep the levels."""
        require_count("levels", levels, 2)
        numbers = is_number(lower) and is_number(upper)
        if not numbers or not -math.inf < lower < upper < math.inf:
            raise DeclarationError(
                f"Quantized needs finite lower < upper, got lower = {lower!r}, upper = {upper!r}."
            )
        self.levels, self.lower, self.upper = int(levels), float(lower), float(upper)
        self.margin = Clipped(self.lower, self.upper)

    @property
    def _spacing(self) -> float:
        return (self.upper - self.lower) / (self.levels - 1)

    def _grid(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the levels, and the middles between them, where phi jumps."""
        number = torch.arange(self.levels, dtype=like.dtype, device=like.device)
        levels = self.lower + self._spacing * number
        return levels, (levels[1:] + levels[:-1]) / 2

    def forward(self, u: Tensor) -> Tensor:
        """Return the level nearest to u, the lower one where two are."""
        number = ((u - self.lower) / self._spacing - 0.5).ceil()
        return self.lower + self._spacing * number.clamp(0, self.levels - 1)

    def slope(self, u: Tensor) -> Tensor:
        """Return zeros, the slope off the jumps."""
        return torch.zeros_like(u)

    def potential(self, v: Expression) -> Expression:
        """Return the largest of the lines through two levels that follow each other."""
        levels, middles = (x.tolist() for x in self._grid(torch.zeros((), dtype=torch.float64)))
        lines = [level**2 / 2 + t * (v - level) for level, t in zip(levels, middles, strict=False)]
        return cp.sum(lines[0] if len(lines) == 1 else cp.maximum(*lines))

    def domain(self, v: Expression) -> list[Constraint]:
        """Return lower <= v <= upper."""
        return [v >= self.lower, v <= self.upper]

    def conjugate(self, u: Expression) -> Expression:
        """Return the largest of u v - v^2 / 2 over the levels v."""
        levels = self._grid(torch.zeros((), dtype=torch.float64))[0].tolist()
        return cp.sum(cp.maximum(*[u * level - level**2 / 2 for level in levels]))

    def prox(self, w: Tensor, t: float | Tensor) -> Tensor:
        """Return the point whose distance from w is t times a slope of Phi there."""
        levels, middles = self._grid(w)
        step = torch.as_tensor(t, dtype=w.dtype, device=w.device).unsqueeze(-1)
        climbed = w.unsqueeze(-1) - step * middles - levels[:-1]
        return self.lower + climbed.clamp(torch.zeros_like(middles), levels.diff()).sum(-1)

    def potential_value(self, v: Tensor) -> Tensor:
        """Return Phi per sample, infinite outside the box."""
        levels, middles = self._grid(v)
        lines = levels[:-1].square() / 2 + middles * (v.unsqueeze(-1) - levels[:-1])
        outside = torch.where((v < self.lower) | (v > self.upper), torch.inf, 0.0).to(v.dtype)
        return (lines.amax(-1) + outside).sum(-1)

    def conjugate_value(self, u: Tensor) -> Tensor:
        """Return <u, v> - |v|^2 / 2 per sample at v = phi(u), (samples,)."""
        v = self.forward(u)
        return (v * (u - v / 2)).sum(-1)

    def project(self, v: Tensor) -> Tensor:
        """Return v clipped to the box."""
        return v.clamp(self.lower, self.upper)
