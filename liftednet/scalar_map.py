"""What follows from a nondecreasing scalar map alone: its integral, inverse, prox and slope.

With phi the forward map of an activation, the conjugate is its integral, the potential the
Legendre transform of that, and the proximal map a scalar root (design, section 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from liftednet.errors import DeclarationError
from liftednet.piecewise import refined

Map = Callable[[Tensor], Tensor]

_REACH = 38.0  # the table covers |x| <= sinh(38), about 1.6e16
_CELLS = 16_384
_STEEPEST = 1e6  # a slope beyond this counts as a jump
_ROOT_STEPS = 200  # bisection of the widest float64 bracket; Newton needs about ten
_PLAIN_STEPS = 45
_CHUNK = 32_768  # entries, so that a few temporaries stay in the cache


def autograd_slope(forward: Map, x: Tensor) -> Tensor:
    """Return phi'(x) for an elementwise map; a slope that does not exist counts as 0."""
    with torch.enable_grad():
        point = x.detach().requires_grad_()
        value = forward(point)
        if not value.requires_grad:
            return torch.zeros_like(x)
        (slope,) = torch.autograd.grad(value.sum(), point, allow_unused=True)
    return torch.zeros_like(x) if slope is None else slope.nan_to_num(0.0, 0.0, 0.0)


def increasing_root(
    value_slope: Callable[[Tensor], tuple[Tensor, Tensor]],
    lower: Tensor,
    upper: Tensor,
    start: Tensor,
) -> Tensor:
    """Solve f(x) = 0 for increasing f, entry by entry, by Newton steps kept in a bracket.

    A step that leaves the bracket, or that fails to halve |f|, is replaced by bisection.

    Args:
        value_slope: returns f(x) and f'(x), both of x's shape.
        lower: a point with f <= 0, per entry.
        upper: a point with f >= 0, per entry.
        start: first iterate, per entry.

    Returns:
        The root, of the same shape.
    """
    x = start.clamp(lower, upper)
    previous = torch.full_like(x, torch.inf)
    eps = torch.finfo(x.dtype).eps
    for _ in range(_ROOT_STEPS):
        f, slope = value_slope(x)
        lower = torch.where(f <= 0, x, lower)
        upper = torch.where(f >= 0, x, upper)
        newton = x - f / slope
        poor = ~(newton > lower) | ~(newton < upper) | (f.abs() > previous / 2)
        proposal = torch.where(poor, (lower + upper) / 2, newton)
        proposal = torch.where(f == 0, x, proposal)
        previous = f.abs()
        moved = (proposal - x).abs() > 2 * eps * proposal.abs().clamp(min=torch.finfo(x.dtype).tiny)
        x = proposal
        if not bool(moved.any()):
            break
    return x


def refuse_bad_map(forward: Map) -> None:
    """Check on a grid that a map is elementwise in shape, finite and nondecreasing.

    Raises:
        DeclarationError: it is not; the message names the first point that shows it.
    """
    if not callable(forward):
        raise DeclarationError(f"an activation's map must be callable, got {forward!r}.")
    u = torch.linspace(-30.0, 30.0, 4001, dtype=torch.float64).unsqueeze(0)
    phi = forward(u)
    if not isinstance(phi, Tensor) or phi.shape != u.shape:
        found = tuple(phi.shape) if isinstance(phi, Tensor) else type(phi).__name__
        raise DeclarationError(
            f"an elementwise map keeps the shape {tuple(u.shape)}; {forward!r} returned {found}."
        )
    phi = phi.detach()
    if not bool(phi.isfinite().all()):
        bad = ~phi.isfinite()
        raise DeclarationError(
            f"{forward!r} returns {float(phi[bad][0])} at u = {float(u[bad][0]):.4g}; an "
            "activation must be finite for every real number."
        )
    fall = phi.diff() < -1e-12 * (1 + phi[:, 1:].abs())
    if bool(fall.any()):
        raise DeclarationError(
            f"{forward!r} decreases just below u = {float(u[:, 1:][fall][0]):.4g}; an activation "
            "must be nondecreasing to be the argmin of a convex problem."
        )
    if float(phi[0, 0]) == float(phi[0, -1]):
        raise DeclarationError(f"{forward!r} returns {float(phi[0, 0]):.4g} whatever its input.")


class ScalarMap:
    """A nondecreasing map phi: R -> R, tabulated once in float64 and then used at any size.

    Args:
        forward: phi, elementwise in torch.
        slope: phi', elementwise in torch.

    Attributes:
        infimum: the limit of phi at minus infinity (may be infinite).
        supremum: the limit of phi at plus infinity (may be infinite).
        lipschitz: the largest slope of phi, or None where phi jumps or grows without bound.
    """

    def __init__(self, forward: Map, slope: Map) -> None:
        """Tabulate phi and its integral, evenly in asinh(x) and finer where phi bends."""
        self.forward = forward
        self.slope = slope
        half = torch.linspace(0.0, _REACH, _CELLS // 2 + 1, dtype=torch.float64).sinh()
        bends = torch.from_numpy(refined(forward)[0])
        self._x = torch.cat([-half, half, bends]).unique()
        self._middle = int(torch.searchsorted(self._x, 0.0))
        self._phi = self._checked(self._x)
        nodes, weights = np.polynomial.legendre.leggauss(8)
        self._nodes = torch.from_numpy((nodes + 1) / 2)
        self._weights = torch.from_numpy(weights / 2)
        self._integral = self._tabulate()
        self.infimum, self.supremum = self._limits()
        self.lipschitz = self._steepest()
        slope_at_zero = self.slope(torch.zeros(1, dtype=torch.float64))
        self._tangent = float(self._phi[self._middle]), float(slope_at_zero)

    def _checked(self, x: Tensor) -> Tensor:
        return self.forward(x).to(torch.float64)

    def _between(self, left: Tensor, right: Tensor) -> Tensor:
        width = right - left
        points = left.unsqueeze(-1) + width.unsqueeze(-1) * self._nodes.to(left.device)
        return width * (self._checked(points) * self._weights.to(left.device)).sum(-1)

    def _tabulate(self) -> Tensor:
        cells = self._between(self._x[:-1], self._x[1:])
        right = cells[self._middle :].cumsum(0)
        left = -cells[: self._middle].flip(0).cumsum(0).flip(0)
        return torch.cat([left, torch.zeros(1, dtype=torch.float64), right])

    def _limits(self) -> tuple[float, float]:
        ends = self._checked(torch.tensor([-torch.inf, torch.inf], dtype=torch.float64))
        fallback = self._phi[[0, -1]]
        low, high = torch.where(ends.isnan(), fallback, ends).tolist()
        return low, high

    def _steepest(self) -> float | None:
        slopes = self.slope(self._x)
        quotients = self._phi.diff() / self._x.diff()
        worst = int(quotients.nan_to_num(torch.inf).argmax())
        zoom = torch.linspace(0.0, 1.0, 10_001, dtype=torch.float64)
        fine = self._x[worst] + zoom * (self._x[worst + 1] - self._x[worst])
        steepest = max(
            float(quotients[worst]),
            float((self._checked(fine).diff() / fine.diff()).max()),
            float(slopes.max()),
            float(self.slope(fine).max()),
        )
        if not np.isfinite(steepest):
            return None
        jumps = float(self._checked(fine).diff().max()) > 0.5 * float(
            self._phi[worst + 1] - self._phi[worst]
        )
        return None if jumps or steepest > _STEEPEST else steepest * (1 + 1e-7)

    def _cell(self, u: Tensor) -> Tensor:
        x = self._x.to(u.device)
        return (torch.searchsorted(x, u.contiguous(), right=True) - 1).clamp(0, len(x) - 2)

    def integral(self, u: Tensor) -> Tensor:
        """Return the integral of phi from 0 to u, per entry, in float64."""
        u = u.to(torch.float64)
        cell = self._cell(u)
        left = self._x.to(u.device)[cell]
        return self._integral.to(u.device)[cell] + self._between(left, u)

    def inverse(self, v: Tensor) -> Tensor:
        """Return an x with phi(x) = v, per entry, in float64: the one nearest to 0."""
        v = v.to(torch.float64).contiguous()
        x, phi = self._x.to(v.device), self._phi.to(v.device)
        below = torch.searchsorted(phi, v, right=True) - 1
        above = torch.searchsorted(phi, v, right=False) - 1
        cell = torch.where(v < phi[self._middle], below, above).clamp(0, len(x) - 2)
        lower, upper = x[cell], x[cell + 1]

        def gap(point: Tensor) -> tuple[Tensor, Tensor]:
            return self.forward(point) - v, self.slope(point)

        return increasing_root(gap, lower, upper, (lower + upper) / 2)

    def legendre(self, v: Tensor) -> Tensor:
        """Return sup_u <u, v> - integral(u), per entry, in float64; infinite off the range."""
        v = v.to(torch.float64)
        inside = v.clamp(self.infimum, self.supremum)
        u = self.inverse(inside)
        slack = 1e-9 * (1 + inside.abs())
        value = u * inside - self.integral(u)
        return torch.where((v - inside).abs() > slack, torch.inf, value)

    def prox(self, w: Tensor, t: Tensor | float) -> Tensor:
        """Return argmin_v t Phi(v) + |v - w|^2 / 2, that is phi(x) at phi(x) + t x = w.

        In chunks that stay in the cache on a CPU.
        """
        with torch.no_grad():
            if not isinstance(t, Tensor) or t.numel() == 1:
                return self._in_chunks(w, float(t))
            return self._in_chunks(w, t.to(w).expand(w.shape).reshape(-1))

    def _in_chunks(self, w: Tensor, t: Tensor | float) -> Tensor:
        flat, value = w.reshape(-1), w.new_empty(w.numel())
        size = _CHUNK if w.device.type == "cpu" else max(w.numel(), 1)
        for first in range(0, w.numel(), size):
            part = slice(first, first + size)
            value[part] = self._newton(flat[part], t[part] if isinstance(t, Tensor) else t)
        return value.reshape(w.shape)

    def _newton(self, w: Tensor, t: Tensor | float) -> Tensor:
        """Return the prox by plain Newton steps, and by safeguarded ones where these do not settle.

        From the tangent at 0 they settle wherever phi is convex, concave, or one of them on either
        side of 0. The last step is made in v, which is phi(x) - phi'(x) f(x) / (phi'(x) + t).
        """
        near = torch.finfo(w.dtype).eps ** 0.5
        center, slope = self._tangent
        x = self._bounded((w - center) / (slope + t), w, t)
        for step in range(_PLAIN_STEPS):
            v, rise = self.forward(x), self.slope(x)
            change = (v + t * x).sub_(w).div_(rise + t)
            v = v - rise * change
            x = x.sub_(change)
            if step and float(change.abs_().div_(x.abs().add_(1)).max()) <= near:
                return v
        unsettled = ~(change <= near)
        rest = t[unsettled] if isinstance(t, Tensor) else t
        v[unsettled] = self._safeguarded(w[unsettled], rest, x[unsettled])
        return v

    def _bounded(self, x: Tensor, w: Tensor, t: Tensor | float) -> Tensor:
        """Return x within the bounds that the limits of phi set for the root."""
        if math.isfinite(self.supremum):
            x = torch.maximum(x, (w - self.supremum) / t)
        if math.isfinite(self.infimum):
            x = torch.minimum(x, (w - self.infimum) / t)
        return x

    def _safeguarded(self, w: Tensor, t: Tensor | float, start: Tensor) -> Tensor:
        """Return the prox by bracketed steps; where phi jumps it is w - t x at the jump."""
        bound = (w - self._tangent[0]) / t
        lower, upper = bound.clamp(max=0), bound.clamp(min=0)

        def gap(x: Tensor) -> tuple[Tensor, Tensor]:
            return self.forward(x) + t * x - w, self.slope(x) + t

        x = increasing_root(gap, lower, upper, start.nan_to_num(0.0, 0.0, 0.0))
        v, pull = self.forward(x), t * x
        rounding = 8 * torch.finfo(w.dtype).eps * (w.abs() + pull.abs() + v.abs())
        on_graph = (v + pull - w).abs() <= rounding
        return torch.where(on_graph, v, (w - pull).clamp(self.infimum, self.supremum))
