"""Where a scalar map is convex, concave or linear, and the lines that lie below and above it.

Between two knots a `Curve` bends in one direction. So the least phi(u) - slope u over an interval
is at its ends, at a knot, or, where phi is convex, at the one point whose derivative is the slope:
lines below phi follow from it, and the range of phi from flat ones. All of them are moved outwards
by more than rounding can take.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from liftednet.activation import Activation, FunctionActivation
from liftednet.activations import (
    ELU,
    Arctan,
    Clipped,
    Identity,
    LeakyReLU,
    PReLU,
    ReLU,
    Sigmoid,
    Sine,
    Softplus,
    Tanh,
)

Array = np.ndarray[Any, np.dtype[np.float64]]
Line = tuple[float, float]  # slope and value at 0

_ROUNDING = 1e-12  # relative: thousands of units in the last place
_GRID = 33  # points of an interval whose hull chooses the slopes of lines
_HALVINGS = 20  # of the way to a tangent, whose own error counts


@dataclass(frozen=True, eq=False)
class Curve:
    """A continuous scalar map phi, and how it bends.

    Attributes:
        forward: phi, of an array.
        slope: phi', of an array; at a knot one of both sides.
        knots: points between which the sign of phi'' is one.
        signs: 1 where phi is convex, -1 where concave, 0 where linear, one more than knots.

    Example:
        >>> from liftednet.activations import ReLU
        >>> from liftednet.curvature import curves_of
        >>> relu = curves_of(ReLU(), 1)[0]
        >>> relu.pieces(-1.0, 3.0), relu.is_linear(1.0, 3.0)
        ([-1.0, 0.0, 3.0], True)
    """

    forward: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    knots: tuple[float, ...]
    signs: tuple[int, ...]

    def at(self, u: float) -> float:
        """Return phi(u)."""
        return float(self.forward(np.array([u]))[0])

    @property
    def piecewise_linear(self) -> bool:
        """Whether it is linear between all knots."""
        return not any(self.signs)

    def pieces(self, lower: float, upper: float, at: Sequence[float] = ()) -> list[float]:
        """Return both ends, and in between the knots and other points, in order."""
        inside = {x for x in (*self.knots, *at) if lower < x < upper}
        return [lower, *sorted(inside), upper]

    def sign(self, lower: float, upper: float) -> int:
        """Return how it bends over an interval without a knot inside."""
        middle = (lower + upper) / 2
        return self.signs[sum(knot < middle for knot in self.knots)]

    def is_linear(self, lower: float, upper: float) -> bool:
        """Say whether it is linear over an interval."""
        return len(self.pieces(lower, upper)) == 2 and self.sign(lower, upper) == 0

    def chord(self, lower: float, upper: float) -> Line:
        """Return the line through both ends of an interval."""
        low, high = self.forward(np.array([lower, upper])).tolist()
        slope = (high - low) / (upper - lower) if upper > lower else 0.0
        return slope, low - slope * lower

    def least(self, slopes: Array, lower: float, upper: float) -> Array:
        """Return a value just below min phi(u) - slope u over an interval, for each slope."""
        ends = np.array(self.pieces(lower, upper))
        value = self.forward(ends)
        found = (value[:, None] - ends[:, None] * slopes).min(0)
        for low, high in pairwise(ends):
            if self.sign(low, high) > 0:
                left, right = np.full_like(slopes, low), np.full_like(slopes, high)
                for _ in range(_HALVINGS):
                    middle = (left + right) / 2
                    flat = self.slope(middle) < slopes
                    left, right = np.where(flat, middle, left), np.where(flat, right, middle)
                middle = (left + right) / 2
                tangent = np.abs(self.slope(middle) - slopes) * (right - left) / 2
                found = np.minimum(found, self.forward(middle) - slopes * middle - tangent)
        size = np.abs(value).max() + np.abs(slopes) * np.abs(ends).max()
        safe: Array = found - _ROUNDING * size
        return safe

    def below(self, lower: float, upper: float, most: int = 4) -> list[Line]:
        """Return lines nowhere above phi in an interval: a flat one, then some of its hull."""
        points = np.union1d(np.linspace(lower, upper, _GRID), self.pieces(lower, upper))
        slopes = _hull(points, self.forward(points))
        if len(slopes) > most:
            slopes = slopes[np.linspace(0, len(slopes) - 1, most).round().astype(int)]
        slopes = np.append(0.0, slopes)
        values = self.least(slopes, lower, upper)
        return list(zip(slopes.tolist(), values.tolist(), strict=True))

    def above(self, lower: float, upper: float, most: int = 4) -> list[Line]:
        """Return lines nowhere below phi in an interval, a flat one first."""
        return [(-slope, -value) for slope, value in self._negative.below(lower, upper, most)]

    def tangents(self, lower: float, upper: float) -> list[Line]:
        """Return tangents near both ends and in the middle of an interval without a knot inside."""
        at = lower + np.array([1e-7, 0.5, 1 - 1e-7]) * (upper - lower)
        slopes = self.slope(at)
        return list(zip(slopes.tolist(), (self.forward(at) - slopes * at).tolist(), strict=True))

    @property
    def _negative(self) -> Curve:
        turned = tuple(-sign for sign in self.signs)
        return Curve(lambda u: -self.forward(u), lambda u: -self.slope(u), self.knots, turned)


def _hull(points: Array, values: Array) -> Array:
    """Return the slopes of the lower convex hull of points in order (Andrew, 1979)."""
    kept: list[int] = []
    for n in range(len(points)):
        while len(kept) > 1:
            i, j = kept[-2], kept[-1]
            if (values[j] - values[i]) * (points[n] - points[j]) < (values[n] - values[j]) * (
                points[j] - points[i]
            ):
                break
            kept.pop()
        kept.append(n)
    return np.diff(values[kept]) / np.diff(points[kept])


_OF_TYPE: dict[type[Activation], tuple[tuple[float, ...], tuple[int, ...]]] = {
    Identity: ((), (0,)),
    ReLU: ((0.0,), (0, 0)),
    LeakyReLU: ((0.0,), (0, 0)),
    PReLU: ((0.0,), (0, 0)),
    Sigmoid: ((0.0,), (1, -1)),
    Tanh: ((0.0,), (1, -1)),
    Arctan: ((0.0,), (1, -1)),
    Sine: ((-math.pi / 2, 0.0, math.pi / 2), (0, 1, -1, 0)),
    Softplus: ((), (1,)),
    ELU: ((0.0,), (1, 0)),
}


def curves_of(activation: Activation, units: int) -> list[Curve] | None:
    """Return the curve of every unit of an activation, or None where nothing proves how it bends.

    Example:
        >>> from liftednet.activations import Softmax, Tanh
        >>> from liftednet.curvature import curves_of
        >>> [round(x, 4) for x in curves_of(Tanh(), 1)[0].below(-1.0, 2.0)[0]]  # slope, value
        [0.0, -0.7616]
        >>> curves_of(Softmax(), 3) is None
        True
    """
    if type(activation) is Clipped:
        return [clip(*activation.ends)] * units
    if type(activation) is PReLU:
        each = {slope: _slanted(slope) for slope in set(activation.slopes)}
        return [each[slope] for slope in activation.spread(units)]
    bends = _OF_TYPE.get(type(activation))
    if isinstance(activation, FunctionActivation):
        bends = activation.bends
    if bends is None:
        return None
    return [Curve(_of_arrays(activation.forward), _of_arrays(activation.slope), *bends)] * units


def clip(lower: float, upper: float) -> Curve:
    """Return u cut off at two ends, of which one may be infinite."""
    knots = tuple(end for end in (lower, upper) if math.isfinite(end))
    return Curve(
        lambda u: np.clip(u, lower, upper), lambda u: ((u > lower) & (u < upper)).astype(float),
        knots, (0,) * (len(knots) + 1),
    )  # fmt: skip


def _slanted(slope: float) -> Curve:
    return Curve(
        lambda u: np.where(u > 0, u, slope * u), lambda u: np.where(u > 0, 1.0, slope),
        (0.0,), (0, 0),
    )  # fmt: skip


def _of_arrays(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Array], Array]:
    def of_array(u: Array) -> Array:
        rows = torch.from_numpy(np.asarray(u, dtype=np.float64)).reshape(-1, 1)
        found: Array = function(rows).detach().numpy().reshape(np.shape(u))
        return found

    return of_array


ABSOLUTE = Curve(np.abs, np.sign, (0.0,), (0, 0))
