"""What follows from a potential alone: phi(u) = argmax_v <u, v> - Phi(v) and the prox, solved for.

Every map, prox and conjugate is a small convex problem of its own: slow but right. A forward map
(`Activation.from_function`, or `forward` of a class) makes the same activation fast.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from liftednet.activation import Activation
from liftednet.errors import DataError, DeclarationError
from liftednet.scalar_map import Map, increasing_root, refuse_unfit_function
from liftednet.validation import is_number, name_of, require_positive

_REACH = 30.0  # of the points at which a potential on an infinite domain is looked at
_FARTHEST = 1e300  # where the search for a bracket ends
_FLATTEST = 1e-6  # a curvature below this counts as none
_GRID = 20_001


class PotentialActivation(Activation):
    """Declared by a convex Phi in torch on a domain [lower, upper], of every unit by itself.

    Phi' and Phi'' come from autograd; phi(u) is the root of Phi'(v) = u between the ends of the
    domain, by Newton steps in a bracket, in float64. Its derivative is 1 / Phi''(phi(u)), and 0 at
    the ends and where Phi has a kink.
    """

    def __init__(
        self,
        potential: Map,
        lower: float = -math.inf,
        upper: float = math.inf,
        lipschitz: float | None = None,
    ) -> None:
        """Check on a grid that Phi is elementwise, finite, convex, and grows fast enough."""
        numbers = all(is_number(end) for end in (lower, upper))
        if not numbers or not lower < upper:
            raise DataError(f"a domain needs lower < upper, got {lower!r} and {upper!r}.")
        self.function, self.lower, self.upper = potential, float(lower), float(upper)
        self.ends = self.lower, self.upper
        if lipschitz is not None:
            self.lipschitz = require_positive("lipschitz", lipschitz)
        refuse_unfit_function(potential, self._looked_at()[None], "a potential")
        self._refuse_bad_potential()

    def _looked_at(self) -> Tensor:
        """Return points inside the domain, far apart where it is infinite."""
        low = self.lower if math.isfinite(self.lower) else min(-_REACH, self.upper - 2 * _REACH)
        high = self.upper if math.isfinite(self.upper) else max(_REACH, low + 2 * _REACH)
        return torch.linspace(low, high, 4003, dtype=torch.float64)[1:-1]

    def _refuse_bad_potential(self) -> None:
        v = self._looked_at()
        value = self.function(v[None])[0].detach()
        if not bool(value.isfinite().all()):
            bad = ~value.isfinite()
            raise DeclarationError(
                f"{self!r} is {float(value[bad][0])} at v = {float(v[bad][0]):.4g}; a potential "
                "must be finite inside its domain: give its ends as lower and upper."
            )
        push, _ = self._derivatives(v)
        fall = push.diff() < -1e-9 * (1 + push[1:].abs())
        if bool(fall.any()):
            raise DeclarationError(
                f"{self!r} is not convex: its slope falls just below v = "
                f"{float(v[1:][fall][0]):.4g}."
            )
        far = self.forward(torch.tensor([-_REACH, _REACH]).double())
        if bool((far.abs() >= _FARTHEST / 2).any()):
            raise DeclarationError(
                f"{self!r} grows too slowly: <u, v> - Phi(v) has no largest value where |u| is "
                f"{_REACH:g}. Give the ends of its domain."
            )

    def forward(self, u: Tensor) -> Tensor:
        """Return phi(u) in u's type: its Taylor polynomial at u itself, for two derivatives."""
        at = u.detach()
        v, *rates = _Argmax.apply(at, self)  # type: ignore[no-untyped-call]
        rate, curl = (x.nan_to_num() for x in rates)  # infinite times a step of 0 is no number
        step = (u - at).nan_to_num(0.0)  # 0, with the derivative 1
        return v + step * (rate + curl / 2 * step)

    def slope(self, u: Tensor) -> Tensor:
        """Return phi'(u) = 1 / Phi''(phi(u)), and 0 at the ends and at kinks, (samples, units)."""
        return _Argmax.apply(u.detach(), self)[1]  # type: ignore[no-untyped-call]

    def rates(self, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return phi'(u) = 1 / Phi''(v) and phi''(u) = -Phi'''(v) / Phi''(v)^3 at v = phi(u)."""
        push, bend, turn = self._derivatives(v, 3)
        numbers = torch.finfo(v.dtype)
        rounding = 1e-7 * (1 + u.abs()) + 8 * numbers.eps * v.abs() * bend.abs()
        inside = (v > self.lower) & (v < self.upper) & bend.isfinite() & (bend > 0)
        inside &= (push - u).abs() <= rounding
        aside = (4 * numbers.eps * v.abs()).clamp(min=numbers.tiny)
        inside &= self._slope(v + aside) - self._slope(v - aside) <= 2 * rounding  # at no kink
        rate = torch.where(inside, 1 / bend.where(inside, 1.0), 0.0)
        return rate, (-turn * rate**3).nan_to_num(0.0, 0.0, 0.0)

    def prox(self, w: Tensor, t: float | Tensor) -> Tensor:
        """Return argmin_v t Phi(v) + |v - w|^2 / 2, the root of t Phi'(v) + v = w."""
        step = t.double() if isinstance(t, Tensor) else torch.tensor(float(t), dtype=torch.float64)
        point, step = torch.broadcast_tensors(w.detach().double(), step.to(w.device))
        return self._root(point, step, torch.ones_like(point)).to(w)

    def potential_value(self, v: Tensor) -> Tensor:
        """Return Phi(v) per sample, (samples,), in torch; infinite outside the domain."""
        value = self.function(v.clamp(self.lower, self.upper))
        if bool(value.isnan().any()):  # at an end, where only a limit exists
            value = value.where(~value.isnan(), self.function(self._inside(v)))
        outside = (v < self.lower) | (v > self.upper)
        return value.masked_fill(outside, torch.inf).sum(-1)

    def _inside(self, v: Tensor) -> Tensor:
        low, high = (torch.tensor(end, dtype=v.dtype) for end in (self.lower, self.upper))
        return v.clamp(torch.nextafter(low, high).item(), torch.nextafter(high, low).item())

    def conjugate_value(self, u: Tensor) -> Tensor:
        """Return <u, v> - Phi(v) at v = phi(u) per sample, (samples,); its gradient is v."""
        v = self.forward(u).detach()
        return (u * v).sum(-1) - self.potential_value(v).detach()

    @cached_property
    def lipschitz(self) -> float | None:
        """1 / inf Phi'', found on a grid where it is not declared; None where Phi is flat."""
        half = torch.linspace(0.0, 38.0, _GRID, dtype=torch.float64).sinh()
        far = torch.cat([-half.flip(0), half]).clamp(self.lower, self.upper)
        v = self._inside(torch.cat([self._looked_at(), far]).unique())
        bend = self._derivatives(v)[1]
        worst = int(bend.nan_to_num(torch.inf, torch.inf).argmin())
        near = v[max(worst - 1, 0) : worst + 2]
        fine = torch.linspace(float(near[0]), float(near[-1]), _GRID, dtype=torch.float64)
        flattest = float(self._derivatives(fine)[1].nan_to_num(torch.inf, torch.inf).min())
        flattest = min(flattest, float(bend[worst]))
        return None if flattest < _FLATTEST else (1 + 1e-7) / flattest

    def __repr__(self) -> str:
        """Name the door, the potential and its domain."""
        return f"from_potential({name_of(self.function)}, {self.lower}, {self.upper})"

    def _slope(self, v: Tensor) -> Tensor:
        return self._derivatives(v, 1)[0]

    @torch.inference_mode(False)
    @torch.enable_grad()
    def _derivatives(self, v: Tensor, count: int = 2) -> list[Tensor]:
        """Return Phi', Phi'' and so on at v; torch.func would load the compiler, for seconds."""
        found: list[Tensor] = []
        x = v.detach().clone().requires_grad_()
        value = self.function(x).sum()
        while len(found) < count:
            more, slope = len(found) + 1 < count, torch.zeros_like(v)
            if value.requires_grad:  # or it is of a line
                (slope,) = torch.autograd.grad(value, x, create_graph=more, materialize_grads=True)
            found.append(slope.detach())
            value = slope.sum()
        return found

    def _root(self, target: Tensor, pull: Tensor, stiffness: Tensor) -> Tensor:
        """Return v in the domain with pull Phi'(v) + stiffness v = target, or its nearest end."""

        def gap(v: Tensor) -> tuple[Tensor, Tensor]:
            push, bend = self._derivatives(v)
            slope = (pull * bend + stiffness * torch.ones_like(v)).nan_to_num(0.0, 0.0, 0.0)
            return pull * push + stiffness * v - target, slope

        lower, upper = self._bracket(gap, target)
        below, above = self._pressed(gap, target)
        upper = upper.where(~below | above, self.lower)  # where both hold, every v does
        lower = lower.where(~above | below, self.upper)
        return increasing_root(gap, lower, upper, (lower + upper) / 2)

    def _pressed(self, gap: Any, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return where the root is at or beyond the lower end, and the upper one."""
        below, above = torch.zeros_like(v, dtype=torch.bool), torch.zeros_like(v, dtype=torch.bool)
        if math.isfinite(self.lower):
            below = gap(torch.full_like(v, self.lower))[0] >= 0
        if math.isfinite(self.upper):
            above = gap(torch.full_like(v, self.upper))[0] <= 0
        return below, above

    def _bracket(self, gap: Any, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return points of the domain on both sides of the root, or its ends."""
        ends = []
        for end, sign in ((self.lower, -1.0), (self.upper, 1.0)):
            if math.isfinite(end):
                ends.append(torch.full_like(target, end))
                continue
            other = self.upper if sign < 0 else self.lower
            begin = min(max(0.0, self.lower), self.upper) if math.isfinite(other) else 0.0
            point, step = torch.full_like(target, begin + sign), 1.0
            while step < _FARTHEST and bool((short := ~(sign * gap(point)[0] >= 0)).any()):
                step = min(8 * step, _FARTHEST)
                point = torch.where(short, begin + sign * step, point)
            ends.append(point)
        return ends[0], ends[1]


class _Argmax(torch.autograd.Function):
    """phi(u) of a potential with phi'(u) and phi''(u), by the optimality condition Phi'(v) = u.

    Under torch.func, too: the search for v sees plain tensors, however u is transformed.
    """

    @staticmethod
    def forward(u: Tensor, phi: PotentialActivation) -> tuple[Tensor, Tensor, Tensor]:
        """Return v = phi(u), phi'(u) and phi''(u)."""
        exact = u.detach().double()
        one = torch.ones_like(exact)
        v = phi._root(exact, one, torch.zeros_like(exact)).where(~exact.isnan(), exact)
        rate, curl = phi.rates(exact, v)
        like = u if u.is_floating_point() else u.to(torch.get_default_dtype())
        return v.to(like), rate.to(like), curl.to(like)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Say that they are constants."""
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(info: Any, axes: Any, u: Tensor, phi: PotentialActivation) -> Any:
        """Map entries of more axes: each stands alone."""
        return _Argmax.apply(u.movedim(axes[0], 0), phi), (0, 0, 0)  # type: ignore[no-untyped-call]
