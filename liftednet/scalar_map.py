"""What follows from a nondecreasing scalar map alone: its integral, inverse, prox and slope.

With phi the forward map of an activation, the conjugate is its integral, the potential the
Legendre transform of that, and the proximal map a scalar root (design, section 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from liftednet.errors import DeclarationError
from liftednet.piecewise import IntegralTable, in_chunks
from liftednet.validation import name_of

Map = Callable[[Tensor], Tensor]

_STEEPEST = 1e6  # a slope beyond this counts as a jump
_ROOT_STEPS = 200  # bisection of the widest float64 bracket; Newton needs about ten
_PLAIN_STEPS = 45
_JUMP = 0.999  # of f over a bracket is left where half of it is taken: f jumps inside


def autograd_slope(forward: Map, x: Tensor) -> Tensor:
    """Return phi'(x) for an elementwise map; a slope that does not exist counts as 0."""
    with torch.inference_mode(False), torch.enable_grad():
        point = (x.clone() if x.is_inference() else x.detach()).requires_grad_()
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
    previous, eps = torch.full_like(x, torch.inf), torch.finfo(x.dtype).eps
    below, above, rise = -previous, previous, previous  # f at both ends, and what lies between
    for _ in range(_ROOT_STEPS):
        f, slope = value_slope(x)
        lower, below = torch.where(f <= 0, x, lower), torch.where(f <= 0, f, below)
        upper, above = torch.where(f >= 0, x, upper), torch.where(f >= 0, f, above)
        newton = x - f / slope
        settled = (newton - x).abs() <= 2 * eps * newton.abs()  # |f| is rounding
        poor = ~(newton > lower) | ~(newton < upper) | (f.abs() > previous / 2)
        proposal = torch.where(poor & ~settled, (lower + upper) / 2, newton.clamp(lower, upper))
        # Where f jumps at 0, halves of the bracket have no end.
        jumps = (
            (above - below > _JUMP * rise) & (upper - lower <= eps) & (lower <= 0) & (upper >= 0)
        )
        proposal = torch.where(f == 0, x, proposal.masked_fill(jumps, 0.0))
        previous, rise = f.abs(), above - below
        moved = (proposal - x).abs() > 2 * eps * proposal.abs().clamp(min=torch.finfo(x.dtype).tiny)
        x = proposal
        if not bool((moved & ~jumps).any()):
            break
    return x


def refuse_bad_map(forward: Map) -> None:
    """Check on a grid that a map is elementwise, torch's own, finite and nondecreasing.

    Raises:
        DeclarationError: it is not; the message names the first point that shows it.
    """
    u = torch.linspace(-30.0, 30.0, 4001, dtype=torch.float64).unsqueeze(0)
    phi = refuse_unfit_function(forward, u, "an activation's map")
    if not bool(phi.isfinite().all()):
        bad = ~phi.isfinite()
        raise DeclarationError(
            f"{name_of(forward)} returns {float(phi[bad][0])} at u = {float(u[bad][0]):.4g}; an "
            "activation must be finite for every real number."
        )
    fall = phi.diff() < -1e-12 * (1 + phi[:, 1:].abs())
    if bool(fall.any()):
        raise DeclarationError(
            f"{name_of(forward)} decreases just below u = {float(u[:, 1:][fall][0]):.4g}; an "
            "activation must be nondecreasing to be the argmin of a convex problem. GELU, SiLU and "
            'Mish are activations by name, "gelu"; torch networks with such maps are read by '
            "liftednet.lift; |u| = max(u, 0) + max(-u, 0) is two units of ReLU()."
        )
    if float(phi[0, 0]) == float(phi[0, -1]):
        raise DeclarationError(
            f"{name_of(forward)} returns {float(phi[0, 0]):.4g} whatever its input."
        )


def refuse_unfit_function(function: Map, x: Tensor, what: str) -> Tensor:
    """Return an elementwise function's values, (1, points), after looking at what it is.

    Args:
        function: elementwise in torch.
        x: points where it is defined, (1, points), float64.
        what: how messages call it.

    Raises:
        DeclarationError: it cannot be called, is not torch's, or not elementwise.
    """
    if not callable(function):
        raise DeclarationError(f"{what} must be callable, got {function!r}.")
    if isinstance(function, type):
        name = name_of(function)
        raise DeclarationError(f"{what} is a function or a module, got the class: write {name}().")
    try:
        with torch.enable_grad():
            value = function(x.clone().requires_grad_())
    except Exception as error:  # whatever a user's map may raise
        raise DeclarationError(
            f"{name_of(function)} cannot be applied to a float64 tensor of shape "
            f"{tuple(x.shape)} of which torch may ask for gradients ({error}): write it in torch, "
            "as torch.tanh is."
        ) from error
    if not isinstance(value, Tensor) or value.shape != x.shape:
        found = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise DeclarationError(
            f"{what} acts entry by entry, without a sum, and keeps the shape {tuple(x.shape)}; "
            f"{name_of(function)} returned {found}."
        )
    points = x[0, [x.shape[1] // 3, x.shape[1] // 2, 2 * x.shape[1] // 3, -1]].view(2, 2)
    _refuse_coupled_entries(function, points)
    return value.detach()


def _refuse_coupled_entries(forward: Map, points: Tensor) -> None:
    together = forward(points)
    try:
        alone = torch.cat([forward(entry.reshape(1, 1)) for entry in points.flatten()])
        apart = torch.allclose(together, alone.reshape(2, 2), equal_nan=True)
    except Exception:  # a map that needs more than one entry
        apart = False
    if not apart:
        raise DeclarationError(
            f"{name_of(forward)} is not elementwise: an entry of its result changes with the "
            "entries beside it. Units that are coupled need an Activation with `per_unit = False`."
        )


class ScalarMap(IntegralTable):
    """A nondecreasing map phi: R -> R with what follows from it, at any size.

    Its table gives conjugate and potential.

    Args:
        forward: phi, elementwise in torch.
        slope: phi', elementwise in torch.

    Attributes:
        lipschitz: the largest slope of phi, or None where phi jumps or grows without bound.
    """

    def __init__(self, forward: Map, slope: Map) -> None:
        """Tabulate phi, and find its limits and its largest slope."""
        super().__init__(forward)
        self.slope = slope
        self.lipschitz = self._steepest()
        zero = torch.zeros(1, dtype=torch.float64)
        self._tangent = float(forward(zero)), float(slope(zero))

    def _steepest(self) -> float | None:
        x, phi = self.x, self.phi
        slopes = self.slope(x)
        quotients = phi.diff() / x.diff()
        worst = int(quotients.nan_to_num(torch.inf).argmax())
        zoom = torch.linspace(0.0, 1.0, 10_001, dtype=torch.float64)
        fine = x[worst] + zoom * (x[worst + 1] - x[worst])
        rise = self.forward(fine).detach().diff()
        steepest = max(
            float(quotients[worst]),
            float((rise / fine.diff()).max()),
            float(slopes.max()),
            float(self.slope(fine).max()),
        )
        if not math.isfinite(steepest):
            return None
        jumps = float(rise.max()) > 0.5 * float(phi[worst + 1] - phi[worst])
        return None if jumps or steepest > _STEEPEST else steepest * (1 + 1e-7)

    def prox(self, w: Tensor, t: Tensor | float) -> Tensor:
        """Return argmin_v t Phi(v) + |v - w|^2 / 2, that is phi(x) at phi(x) + t x = w."""
        with torch.no_grad():
            if isinstance(t, Tensor) and t.numel() > 1:
                return in_chunks(self._newton, w, t.to(w).expand(w.shape))
            return in_chunks(partial(self._newton, t=float(t)), w)

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
            gap = (v + t * x).sub_(w)
            change = gap / (rise + t)
            v = v - rise * change
            x = x.sub_(change)
            off = torch.maximum(change.abs_().div_(x.abs().add_(1)), gap.abs_().div_(w.abs() + 1))
            if step and float(off.max()) <= near:  # at a jump x stands still, and the gap is wide
                return v
        unsettled = ~(off <= near)
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
