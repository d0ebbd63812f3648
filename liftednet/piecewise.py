"""A convex function of one variable as a quadratic program, from its slopes at given knots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from liftednet.lazy import cvxpy as cp

if TYPE_CHECKING:
    from cvxpy.expressions.expression import Expression


def piecewise_quadratic(x: Expression, knots: np.ndarray, slopes: np.ndarray) -> Expression:
    """Return f(x), summed over the entries, with f' linear between knots and f(0) near 0.

    x is filled segment by segment, x = knot_0 - tail + sum_k d_k with 0 <= d_k <= h_k, at cost
    sum_k slope_k d_k + curvature_k d_k^2 / 2; convexity fills them in order. An end where the
    knots stop growing is an end of the domain; elsewhere the last slope continues.

    Args:
        x: a CVXPY expression of any shape.
        knots: (count,) nondecreasing points.
        slopes: (count,) nondecreasing slopes f' at the knots.
    """
    closed_left, closed_right = _closed(knots, slopes)
    widths = np.diff(knots)
    kept = widths > 1e-12 * (1 + np.abs(knots[1:]))
    width, slope = widths[kept], slopes[:-1][kept]
    curvature = np.diff(slopes)[kept] / width
    size = int(np.prod(x.shape)) or 1
    parts = cp.Variable((len(width), size), nonneg=True)
    limits = [parts[:-1] <= np.tile(width[:-1, None], (1, size))]
    if closed_right:
        limits.append(parts[-1] <= width[-1])
    cost = cp.sum(slope @ parts) + cp.sum(curvature / 2 @ cp.square(parts))
    filled = cp.sum(parts, axis=0) + knots[0]
    if not closed_left:
        tail = cp.Variable(size, nonneg=True)
        filled = filled - tail
        cost = cost - slopes[0] * cp.sum(tail) + curvature[0] / 2 * cp.sum_squares(tail)
    entries = cp.vec(x, order="C") if x.shape else cp.reshape(x, (1,), order="C")
    return cost + cp.transforms.indicator([filled == entries, *limits]) + size * _start(
        knots, slopes
    )


def _closed(knots: np.ndarray, slopes: np.ndarray) -> tuple[bool, bool]:
    stiffness = 1e4  # a slope that rises this fast beside the last knot marks a wall
    rise = np.diff(slopes) / np.maximum(np.diff(knots), 1e-300)
    return bool(rise[0] > stiffness), bool(rise[-1] > stiffness)


def _start(knots: np.ndarray, slopes: np.ndarray) -> float:
    """Return f(knot_0) for the f that vanishes where the trapezoidal integral passes 0."""
    integral = np.concatenate(
        [[0.0], np.cumsum(np.diff(knots) * (slopes[:-1] + slopes[1:]) / 2)]
    )
    return -float(np.interp(0.0, knots, integral)) if knots[0] <= 0 <= knots[-1] else 0.0
