"""A convex function of one variable as a quadratic program, from samples of its slope."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from liftednet.lazy import cvxpy as cp

if TYPE_CHECKING:
    from cvxpy.expressions.expression import Expression

Vector = np.ndarray[Any, np.dtype[np.float64]]

_REACH, _HIGHEST = 1e3, 1e6  # the graph is sampled where |u| and |phi(u)| stay below these
_GRID = 8_001
_ERROR = 4e-6  # aimed at in phi, relative to 1 + |phi|
_MOST, _SPARE = 900, 64
_HALVINGS = 28
_BEND, _TURN = 1e-3, 0.02  # of the slope within a cell: per 1 + |phi|, and per slope
_NARROW = 1e-9  # pieces narrower than this are steps of the slope


@dataclass(frozen=True)
class Graph:
    """A nondecreasing map phi as a broken line.

    Attributes:
        u: (count,) points.
        phi: (count,) values of the broken line there.
        origin: the index at which u is 0.
    """

    u: Vector
    phi: Vector
    origin: int


def broken_line(forward: Callable[[Tensor], Tensor]) -> Graph:
    """Return phi as a broken line whose corners equalize its error.

    The error of a chord is h^2 phi'' / 8, so that corners as dense as sqrt(phi'' / (1 + |phi|))
    make it the same everywhere; moving each corner by half of it halves it. Kinks and jumps are
    found by bisection, and get corners of their own.
    """
    fine, own = refined(forward)
    u = np.unique(np.concatenate([_grid(forward), fine, np.zeros(1)]))
    phi = _values(forward, u)
    corners = _spread(u, phi, own)
    u, phi = u[corners], phi[corners]
    sag = _values(forward, (u[1:] + u[:-1]) / 2) - (phi[1:] + phi[:-1]) / 2
    sag[np.diff(u) < _NARROW] = 0.0
    shift = (np.append(sag, 0.0) + np.append(0.0, sag)) / 4
    moved = np.maximum.accumulate(np.clip(phi + shift, phi[0], phi[-1]))
    return Graph(u, moved, int(np.searchsorted(u, 0.0)))


def _values(forward: Callable[[Tensor], Tensor], u: Vector) -> Vector:
    values: Vector = forward(torch.from_numpy(u)).detach().double().numpy()
    return values


def _grid(forward: Callable[[Tensor], Tensor]) -> Vector:
    """Return points even in asinh(u), where u and phi(u) are of use."""
    half = float(np.arcsinh(_REACH))
    u = np.sinh(np.linspace(-half, half, _GRID))
    phi = _values(forward, u)
    return u[np.isfinite(phi) & (np.abs(phi) <= _HIGHEST)]


def refined(forward: Callable[[Tensor], Tensor]) -> tuple[Vector, Vector]:
    """Return the points that bisection adds where phi bends, and those at its kinks and jumps.

    Smooth bends are resolved after some halvings; what never is, has a kink or a jump.
    """
    grid = _grid(forward)
    ends = np.stack([grid, _values(forward, grid)])
    low, high = ends[:, :-1], ends[:, 1:]  # u and phi(u) at both ends of the cells
    added = [np.zeros(0)]
    for _ in range(_HALVINGS):
        half = (low[0] + high[0]) / 2
        middle = np.stack([half, _values(forward, half)])
        sag = np.abs(middle[1] - (low[1] + high[1]) / 2)
        straight = _BEND * (high[0] - low[0]) * (1 + np.abs(high[1]))
        bent = 4 * sag > np.maximum(straight, _TURN * (high[1] - low[1]))
        middle = middle[:, bent]
        added.append(middle[0])
        low, high = np.hstack([low[:, bent], middle]), np.hstack([middle, high[:, bent]])
    own = np.unique([low[0], high[0]])
    return np.unique(np.concatenate([*added, own])), own


def _spread(u: Vector, phi: Vector, own: Vector) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Return the indices of the corners: evenly many for each part of the bend, and the kinks."""
    slope = np.diff(phi) / np.diff(u)
    middle = (u[1:] + u[:-1]) / 2
    bend = np.sqrt(np.abs(np.diff(slope)) * np.diff(middle) / (1 + np.abs(phi[1:-1])))
    total = np.concatenate([[0.0], np.cumsum(bend), [float(bend.sum())]])
    count = int(np.clip(total[-1] / np.sqrt(16 * _ERROR), 8, _MOST))
    levels = np.linspace(0.0, total[-1], count)
    first, last = np.searchsorted(total, levels), np.searchsorted(total, levels, "right") - 1
    last = last[last > first]  # the far ends of straight stretches
    spare = np.linspace(0, len(u) - 1, _SPARE).astype(np.intp)  # for tails that hardly bend
    fixed = np.searchsorted(u, np.append(own, 0.0))
    return np.unique(np.concatenate([first, last, spare, fixed]))


def piecewise_quadratic(
    x: Expression, knots: Vector, slopes: Vector, anchor: int, value: float
) -> Expression:
    """Return f(x), summed over the entries, with f' the broken line through (knots, slopes).

    x is filled segment by segment outward from the anchor, x = knot + sum_k d_k - sum_k e_k with
    0 <= d_k, e_k <= h_k, at cost sum_k slope_k d_k + curvature_k d_k^2 / 2, and so to the left;
    convexity fills them in order. Beyond the ends the last curvature continues. Filled from the
    left end instead, large costs would cancel, which CLARABEL may fail on.

    Args:
        x: a CVXPY expression of any shape.
        knots: (count,) nondecreasing points.
        slopes: (count,) nondecreasing slopes f' at the knots.
        anchor: the index of the knot at which the value of f is given.
        value: f at that knot.
    """
    widths = np.diff(knots)
    kept = widths > _NARROW * (1 + np.abs(knots[1:]))
    curvature = np.diff(slopes)[kept] / widths[kept]
    right = np.flatnonzero(kept) >= anchor
    size = int(np.prod(x.shape)) or 1
    cost, filled = size * value, knots[anchor]
    sides = (
        (1, right, slopes[:-1][kept], slopes[-1]),
        (-1, ~right, -slopes[1:][kept], -slopes[0]),
    )
    limits = []
    for sign, side, slope, last in sides:
        own = [part[side][::sign] for part in (widths[kept], slope, curvature)]
        if not side.any():  # beyond the last knot the nearest curvature continues
            own = [np.ones(1), np.array([last]), curvature[::-sign][:1]]
        width, slope, curve = own
        parts = cp.Variable((len(width), size), nonneg=True)
        cost += cp.sum(slope @ parts) + cp.sum(curve / 2 @ cp.square(parts))
        filled = filled + sign * cp.sum(parts, axis=0)
        if len(width) > 1:
            limits.append(parts[:-1] <= np.tile(width[:-1, None], (1, size)))
    entries = cp.vec(x, order="C") if x.shape else cp.reshape(x, (1,), order="C")
    return cost + cp.transforms.indicator([filled == entries, *limits])
