"""A nondecreasing map in pieces: a broken line, its integral in CVXPY and in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from liftednet.lazy import cvxpy as cp

Vector = np.ndarray[Any, np.dtype[np.float64]]

_REACH, _HIGHEST = 1e3, 1e6  # the graph is sampled where |u| and |phi(u)| stay below these
_GRID = 8_001
_ERROR = 4e-6  # aimed at in phi, relative to 1 + |phi|
_MOST, _SPARE = 900, 64
_HALVINGS = 28
_BEND, _TURN = 1e-3, 0.02  # of the slope within a cell: per 1 + |phi|, and per slope
_NARROW = 1e-9  # pieces narrower than this are steps of the slope
_FAR = 38.0  # a table covers |x| <= sinh(38), about 1.6e16
_CELLS = 65_536  # of a table
_STILL = 1e-9  # a map that moves by less, relative, over the last half of a table is at its limit
_CHUNK = 32_768  # entries, so that a few temporaries stay in the cache


def broken_line(forward: Callable[[Tensor], Tensor]) -> tuple[Vector, Vector, int]:
    """Return corners u and phi(u) of a broken line, (count,), and the index at which u is 0.

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
    return u, moved, int(np.searchsorted(u, 0.0))


def _values(forward: Callable[[Tensor], Tensor], u: Vector) -> Vector:
    return forward(torch.from_numpy(u)).detach().double().numpy()


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
    x: cp.Expression, knots: Vector, slopes: Vector, anchor: int, value: float
) -> cp.Expression:
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
    sides = ((1, right, slopes[:-1][kept], slopes[-1]), (-1, ~right, -slopes[1:][kept], -slopes[0]))
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


def in_chunks(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Apply an elementwise function of tensors of one shape, on a CPU part by part."""
    first = tensors[0]
    if first.numel() <= _CHUNK or first.device.type != "cpu":
        return function(*tensors) if first.numel() else first.clone()
    parts = zip(*(tensor.reshape(-1).split(_CHUNK) for tensor in tensors), strict=True)
    return torch.cat([function(*part) for part in parts]).reshape(first.shape)


class IntegralTable:
    """phi and its integral, tabulated once in float64 and interpolated at any size.

    Between the points the integral is the cubic with the right values and slopes at both ends, its
    error of the order of the cell's width to the fourth.

    Args:
        forward: phi, elementwise in torch, nondecreasing.

    Attributes:
        x: (points,) evenly spaced in asinh(x) about 0, and closer where phi bends.
        phi: (points,) phi(x).
        middle: the index at which x is 0.
        infimum: the limit of phi at minus infinity (may be infinite).
        supremum: the limit of phi at plus infinity (may be infinite).
    """

    def __init__(self, forward: Callable[[Tensor], Tensor]) -> None:
        """Tabulate phi, and its integral by 8-point Gauss quadrature in every cell."""
        self.forward = forward
        half = torch.linspace(0.0, _FAR, _CELLS // 2 + 1, dtype=torch.float64).sinh()
        bends = torch.from_numpy(refined(forward)[0])
        self.x = torch.cat([-half, half, bends]).unique()
        self.phi = self._values(self.x)
        self.middle = int(torch.searchsorted(self.x, 0.0))
        self._integral = self._integrate()
        self.infimum, self.supremum = self._limits()

    def _on(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Return x, phi and the integral on a device."""
        return self.x.to(device), self.phi.to(device), self._integral.to(device)

    def _values(self, x: Tensor) -> Tensor:
        return self.forward(x).detach().to(torch.float64)

    def _integrate(self) -> Tensor:
        nodes, weights = (torch.from_numpy(y) / 2 for y in np.polynomial.legendre.leggauss(8))
        width = self.x.diff()
        points = self.x[:-1, None] + width[:, None] * (nodes + 0.5)
        cells = width * (self._values(points) @ weights)
        right = cells[self.middle :].cumsum(0)
        left = -cells[: self.middle].flip(0).cumsum(0).flip(0)
        return torch.cat([left, torch.zeros(1, dtype=torch.float64), right])

    def _limits(self) -> tuple[float, float]:
        ends = torch.tensor([-torch.inf, torch.inf], dtype=torch.float64)
        far, half = self.phi[[0, -1]], self._values(self.x[[0, -1]] / 2)
        seen = torch.where((far - half).abs() > _STILL * (1 + half.abs()), ends, far)
        at_ends = self._values(ends)  # NaN where it takes infinity from infinity
        low, high = torch.where(at_ends.isnan(), seen, at_ends).tolist()
        return low, high

    def integral(self, u: Tensor) -> Tensor:
        """Return the integral of phi from 0 to u, per entry, in float64."""
        return in_chunks(self._integral_at, u)

    def _integral_at(self, u: Tensor) -> Tensor:
        u = u.to(torch.float64).contiguous()
        x, _, _ = self._on(u.device)
        cell = (torch.searchsorted(x, u, right=True) - 1).clamp_(0, len(x) - 2)
        return self._cubic(u, cell)

    def _cubic(self, u: Tensor, cell: Tensor) -> Tensor:
        """Return the interpolated integral at u, which lies in the given cells."""
        x, phi, integral = self._on(u.device)
        following = cell + 1
        left, start, low, high = x[cell], integral[cell], phi[cell], phi[following]
        width = x[following] - left
        s = ((u - left) / width).clamp_(0, 1)
        mean = (integral[following] - start) / width
        bend = low + high - 2 * mean
        rise = ((bend * s + (3 * mean - 2 * low - high)) * s + low) * s
        beyond = u - left - width * s  # off the table phi stays at its end
        value = start + width * rise + torch.where(beyond > 0, high, low) * beyond
        return value.nan_to_num(torch.inf, torch.inf, -torch.inf)

    def legendre(self, v: Tensor) -> Tensor:
        """Return sup_u <u, v> - integral(u), per entry, in float64; infinite off the range.

        An error in the maximizer u counts only by its square.
        """
        return in_chunks(self._legendre_at, v)

    def _legendre_at(self, v: Tensor) -> Tensor:
        rounding = 4 * torch.finfo(v.dtype).eps * (1 + v.abs()).to(torch.float64)
        v = v.to(torch.float64)
        inside = v.clamp(self.infimum, self.supremum).contiguous()
        u, cell = self._maximizer(inside)
        value = u * inside - self._cubic(u, cell)
        return torch.where((v - inside).abs() > rounding, torch.inf, value)

    def _maximizer(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the u nearest to 0 with phi(u) = v, on the chord of its cell, and the cell."""
        x, phi, _ = self._on(v.device)
        above = torch.searchsorted(phi, v) - 1
        below = torch.searchsorted(phi, v, right=True) - 1
        cell = torch.where(v < phi[self.middle], below, above).clamp_(0, len(x) - 2)
        low, left = phi[cell], x[cell]
        share = ((v - low) / (phi[cell + 1] - low)).nan_to_num_(0.0).clamp_(0, 1)
        return left + share * (x[cell + 1] - left), cell
