"""Bounds on units as functions of the inputs: derivatives, values, curvature, Lipschitz constants.

Rows of a table hold [l, h] of the derivative of a unit in each input and, last, of its value, and
whether it is convex or concave in each input while the others stand still and, last, in all.
Linear maps and slopes act on rows by interval arithmetic in float64, rounded outward. Units that
came out of one call form a block, whose Lipschitz constant is that of all its units together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from liftednet.errors import DeclarationError
from liftednet.sets.polyhedron import MET

from .curves import Curve

OTHER = 0  # a unit of another sample
EPS = torch.finfo(torch.float64).eps
_NORM = 1 + 1e-10  # that rounding may take from a norm in float64
_ENTRIES = 30_000_000  # of the table, in each of two ends
_AT_ONCE = 4_000_000  # entries of rows that are gathered together
_WHOLE = 1_500_000  # entries of the matrix of a convolution whose norm is taken of all of it
_CONSTANTS = 0  # their block


@dataclass(frozen=True)
class Linear:
    """u = sum_k c_k x_k + b of the units below (n, k).

    Attributes:
        below: x.
        factors: c, (n, k); or a matrix (k, m), and there are n m units, row by row.
        shift: b, (n,) or (n, m).
        matrix: which of both it is.
        off: what b may be off by rounding, (n,).
    """

    below: Tensor
    factors: Tensor
    shift: Tensor
    matrix: bool
    off: Tensor | None = None


@dataclass(frozen=True)
class Bent:
    """v = phi(u) of the units below (n,), by the curve of each.

    Attributes:
        below: u.
        curves: phi, some.
        which: the number of each unit's curve, (n,).
    """

    below: Tensor
    curves: Sequence[Curve]
    which: Tensor


@dataclass(frozen=True)
class Largest:
    """v = the largest of each row of the units below (n, k)."""

    below: Tensor


Step = Linear | Bent | Largest | str  # or the name of what cannot be stated


class Units:
    """The table of all units of one walk through a network.

    Attributes:
        inputs: how many there are.
        size: how many units there are.
        columns: of derivatives.
        reasons: why units are unknown, by the numbers that `reason` holds; the first is empty.
        steps: what made a block, of units that follow one another from `first` on.
    """

    def __init__(
        self, inputs: int, known: Tensor | None = None, *, derivatives: bool = True
    ) -> None:
        """Make room, and the unit that stands for all of other samples.

        Args:
            inputs: how many there are.
            known: ends between which values of the first units are, too, (2, units).
            derivatives: whether bounds on them are kept, and Lipschitz constants.
        """
        self.inputs, self.derivatives, self.size, self.inputs_block = inputs, derivatives, 0, -1
        self.known = torch.empty(2, 0) if known is None else known
        self.columns = inputs if derivatives else 0
        shape = 64, self.columns + 1
        self.low, self.high = (torch.zeros(shape, dtype=torch.float64) for _ in "ab")
        self.convex, self.concave = (torch.zeros(shape, dtype=torch.bool) for _ in "ab")
        self.block, self.reason = (torch.zeros(64, dtype=torch.int64) for _ in "ab")
        self.lipschitz, self.reasons = [0.0], [""]
        self.steps: dict[int, Step] = {}
        self.first: dict[int, int] = {}
        self._unknown: dict[str, int] = {}
        none = torch.zeros(1, self.columns + 1, dtype=torch.float64)
        self._add(none, none, _CONSTANTS, True)

    # How units come about.

    def _add(
        self,
        low: Tensor,
        high: Tensor,
        block: int,
        convex: Tensor | bool,
        concave: Tensor | bool | None = None,
        reason: Tensor | int = 0,
    ) -> Tensor:
        """Put rows into the table and return their numbers."""
        start, end = self.size, self.size + len(low)
        if end > len(self.low):
            if end * (self.columns + 1) > _ENTRIES:
                raise DeclarationError(
                    f"the network is too large to be read: it has more than {start} units "
                    f"of {self.inputs} inputs."
                )
            more = max(end, 2 * len(self.low)) - len(self.low)
            for name in ("low", "high", "convex", "concave", "block", "reason"):
                now = getattr(self, name)
                setattr(self, name, torch.cat([now, now.new_zeros(more, *now.shape[1:])]))
        self.low[start:end], self.high[start:end] = low, high
        known = self.known[:, start:end]
        ends = slice(start, start + known.shape[1])
        self.low[ends, -1] = torch.maximum(self.low[ends, -1], known[0])
        self.high[ends, -1] = torch.minimum(self.high[ends, -1], known[1])
        still = (low == 0) & (high == 0)  # what does not move with an input
        still[:, -1] = False
        self.convex[start:end] = still | convex
        self.concave[start:end] = still | (convex if concave is None else concave)
        self.block[start:end], self.reason[start:end] = block, reason
        self.size = end
        return torch.arange(start, end)

    def _new_block(self, lipschitz: float, step: Step | None = None) -> int:
        self.lipschitz.append(lipschitz)
        block = len(self.lipschitz) - 1
        self.first[block] = self.size
        if step is not None:
            self.steps[block] = step
        return block

    def variables(self, low: Tensor, high: Tensor) -> Tensor:
        """Return units that are the inputs themselves, between two ends (inputs,)."""
        eye = torch.eye(self.inputs)[:, : self.columns]
        low, high = (torch.cat([eye.to(x), x[:, None]], 1) for x in (low, high))
        self.inputs_block = self._new_block(1.0)
        return self._add(low, high, self.inputs_block, True)

    def constants(self, values: Tensor) -> Tensor:
        """Return units that do not depend on inputs, of the shape of the values."""
        found, places = values.detach().double().flatten().unique(return_inverse=True)
        rows = found.new_zeros(len(found), self.columns + 1)
        rows[:, -1] = found
        bad = ~found.isfinite()
        ends = rows.clone(), rows.clone()
        for end, none in zip(ends, (-math.inf, math.inf), strict=True):
            end[bad, -1] = none
        return self._add(*ends, _CONSTANTS, ~bad[:, None])[places].reshape(values.shape)

    def unknown(self, why: str) -> int:
        """Return the unit of which nothing is known."""
        if why not in self._unknown:
            self.reasons.append(why)
            row = torch.full((1, self.columns + 1), math.inf, dtype=torch.float64)
            block = self._new_block(math.inf)
            number = self._add(-row, row, block, False, reason=len(self.reasons) - 1)
            self._unknown[why] = int(number)
        return self._unknown[why]

    # What is known of units.

    def constant(self, units: Tensor) -> bool:
        """Say whether no unit depends on the inputs."""
        return bool(((self.block[units] == _CONSTANTS) & (units != OTHER)).all())

    def values(self, units: Tensor) -> Tensor:
        """Return the values of constants."""
        return self.low[units, -1]

    def span(self, units: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ends of values."""
        return self.low[units, -1], self.high[units, -1]

    def joint(self, units: Tensor, factors: Tensor | None = None) -> float:
        """Return a Lipschitz constant of units together, each times a factor."""
        if not self.derivatives:
            return math.inf
        flat = units.flatten()
        size = torch.ones(len(flat), dtype=torch.float64) if factors is None else factors.flatten()
        own, places = flat.unique(return_inverse=True)
        weights = torch.zeros(len(own), dtype=torch.float64).index_add_(0, places, size.square())
        blocks, of = self.block[own].unique(return_inverse=True)
        largest = torch.zeros(len(blocks), dtype=torch.float64)
        largest = largest.scatter_reduce(0, of, weights, "amax").sqrt()
        parts = [
            float(x) * self.lipschitz[b] if float(x) and self.lipschitz[b] else 0.0
            for x, b in zip(largest, blocks.tolist(), strict=True)
        ]
        return math.hypot(*parts) * _NORM

    # What maps make of them: rows of units (n, k) become units.

    def rowwise(self, below: Tensor, make: Callable[[Tensor, Tensor], Tensor], wide: int) -> Tensor:
        """Return units (n, wide) of rows (n, k) of the sample that is followed.

        `make` takes the rows that there are and their numbers. Rows of another sample give its
        unit; one of both is unknown, as is one of nothing but constants and another sample.
        """
        other = below == OTHER
        theirs = other.any(1)
        mixed = theirs & ((self.block[below] != _CONSTANTS) & ~other).any(1)
        found = torch.full((len(below), wide), OTHER)
        if bool(mixed.any()):
            found[mixed] = self.unknown("a call that mixes samples")
        ours = (~theirs).nonzero().flatten()
        if len(ours):
            found[ours] = make(below[ours], ours).reshape(len(ours), wide)
        return found

    def affine(self, below: Tensor, matrix: Tensor, shift: Tensor | None = None) -> Tensor:
        """Return x A + b of rows (n, k) of units, A (k, m), b (m,) or (n, m)."""
        bias = torch.zeros(matrix.shape[1]).to(matrix) if shift is None else shift.to(matrix)
        bias = bias.expand(len(below), matrix.shape[1])
        return self.rowwise(
            below, lambda x, ours: self._affine(x, matrix, bias[ours]), matrix.shape[1]
        )

    def _affine(self, below: Tensor, matrix: Tensor, shift: Tensor) -> Tensor:
        if not bool((matrix.isfinite().all()) & shift.isfinite().all()):
            return self._lost(below, matrix.shape[1])
        plus, minus = (matrix > 0).float().T, (matrix < 0).float().T
        step = Linear(below, matrix, shift, True)
        block = self._new_block(self._through(below, matrix), step)
        at_once = max(1, _AT_ONCE // (below.shape[1] * (self.columns + 1)))
        found = []
        for x, b in zip(below.split(at_once), shift.split(at_once), strict=True):
            low, high = _ends(self.low[x], self.high[x], matrix)
            low, high = low.flatten(0, 1), high.flatten(0, 1)
            low[:, -1], high[:, -1] = _shifted(low[:, -1], high[:, -1], b.flatten())
            up, down = (~self.convex[x]).float(), (~self.concave[x]).float()
            convex = (plus @ up + minus @ down == 0).flatten(0, 1)
            concave = (plus @ down + minus @ up == 0).flatten(0, 1)
            used = (matrix != 0)[None] * self.reason[x][..., None]
            reason = used.amax(1).flatten()
            found.append(self._add(low, high, block, convex, concave, reason))
        return torch.cat(found)

    def _through(self, below: Tensor, matrix: Tensor) -> float:
        """Return a Lipschitz constant of x A of all rows together."""
        if not self.derivatives:
            return math.inf
        norm = _norm(matrix)
        bound = norm * self.joint(below) if norm else 0.0
        columns = self.block[below]
        if bool((columns == columns[:1]).all()) and len(columns[0].unique()) > 1:
            apart = 0.0
            for each in columns[0].unique():
                mine = columns[0] == each
                part = _norm(matrix[mine])
                apart += part * self.joint(below[:, mine]) if part else 0.0
            bound = min(bound, apart)
        own, places = below.unique(return_inverse=True)
        wide = len(below) * matrix.shape[1]
        shared = len(own) < below.numel() and len(below) > 1
        if shared and len(own) * wide <= _WHOLE and min(len(own), wide) <= 1000:
            whole = torch.zeros(len(own), len(below), matrix.shape[1], dtype=torch.float64)
            rows = torch.arange(len(below))[:, None].expand_as(places)
            whole.index_put_((places, rows), matrix.expand(len(below), -1, -1), accumulate=True)
            norm = _norm(whole.flatten(1))
            bound = min(bound, norm * self.joint(own) if norm else 0.0)
        return bound

    def sums(self, below: Tensor, factors: Tensor, shift: Tensor, off: Tensor) -> Tensor:
        """Return sum_k c_k x_k + b row by row, (n,), of units and factors (n, k), and b (n,).

        What b may be off by rounding is `off`, (n,).
        """
        return self.rowwise(
            below, lambda x, ours: self._sums(x, factors[ours], shift[ours], off[ours]), 1
        ).flatten()

    def _sums(self, below: Tensor, factors: Tensor, shift: Tensor, error: Tensor) -> Tensor:
        if not bool(factors.isfinite().all()):
            return self._lost(below, 1)
        low, high = (torch.zeros(len(below), self.columns + 1).double() for _ in "ab")
        size = torch.zeros_like(low), torch.zeros_like(low)
        for x, c in zip(below.T, factors.T, strict=True):
            c, ends = c[:, None], (self.low[x], self.high[x])
            if bool((c < 0).any()):
                ends = torch.where(c < 0, ends[1], ends[0]), torch.where(c < 0, ends[0], ends[1])
            terms = [(c * end).masked_fill(c == 0, 0.0) for end in ends]
            low, high = low + terms[0], high + terms[1]
            for total, term in zip(size, terms, strict=True):
                total += term.abs()
        off = 2 * (below.shape[1] + 2) * EPS
        low, high = low - _finite(off * size[0]), high + _finite(off * size[1])
        low[:, -1], high[:, -1] = _shifted(low[:, -1] - error, high[:, -1] + error, shift)
        endless = ~shift.isfinite()
        low[endless, -1], high[endless, -1] = -math.inf, math.inf
        positive, negative = (factors > 0)[..., None], (factors < 0)[..., None]
        up, down = ~self.convex[below], ~self.concave[below]
        convex = ~((positive & up) | (negative & down)).any(1)
        concave = ~((positive & down) | (negative & up)).any(1)
        convex, concave = convex & ~endless[:, None], concave & ~endless[:, None]
        parts = [self.joint(x, c) for x, c in zip(below.T, factors.abs().T, strict=True)]
        reason = (self.reason[below] * (factors != 0)).amax(1)
        block = self._new_block(sum(parts) * _NORM, Linear(below, factors, shift, False, error))
        return self._add(low, high, block, convex, concave, reason)

    def bent(self, below: Tensor, *curves: Curve, which: Tensor | None = None) -> Tensor:
        """Return phi(u) of units (n,), of several curves that with the numbers (n,)."""
        numbers = torch.zeros(len(below), dtype=torch.int64) if which is None else which
        return self.rowwise(
            below[:, None], lambda x, ours: self._bent(Bent(x[:, 0], curves, numbers[ours])), 1
        ).flatten()

    def _bent(self, step: Bent) -> Tensor:
        below, span = step.below, torch.stack(self.span(step.below))
        slopes, values = torch.empty_like(span), torch.empty_like(span)
        straight, bends = (torch.zeros(n, len(below), 1, dtype=torch.bool) for n in (1, 2))
        for number, curve in enumerate(step.curves):
            own = step.which == number
            ends = span[:, own]
            slopes[:, own] = torch.stack(curve.slopes(*ends))
            values[:, own] = torch.stack(curve.values(*ends))
            straight[0, own, 0] = curve.linear_between(*ends)
            bends[:, own, 0] = torch.tensor([[curve.convex], [curve.concave]])
        flattest, steepest = slopes
        low, high = _times(self.low[below], self.high[below], flattest[:, None], steepest[:, None])
        low[:, -1], high[:, -1] = _outward(*values)
        up, down = self.convex[below], self.concave[below]
        rising, falling = (flattest >= 0)[:, None], (steepest <= 0)[:, None]
        kept, turned = (up & rising) | (up & down), (down & falling) | (up & down)
        convex = (straight[0] | bends[0]) & (kept | turned)
        kept, turned = (down & rising) | (up & down), (up & falling) | (up & down)
        concave = (straight[0] | bends[1]) & (kept | turned)
        largest = torch.maximum(flattest.abs(), steepest.abs())
        block = self._new_block(self.joint(below, largest), step)
        reason = self.reason[below] * (largest > 0)
        return self._add(low, high, block, convex, concave, reason)

    def product(self, one: Tensor, other: Tensor) -> Tensor:
        """Return x y of units (n,), (xy)' = x' y + x y'."""
        return self.rowwise(
            torch.stack([one, other], 1), lambda both, _: self._product(*both.T), 1
        ).flatten()

    def _product(self, one: Tensor, other: Tensor) -> Tensor:
        low = high = torch.zeros(1, dtype=torch.float64)
        lipschitz = 0.0
        for x, y in ((one, other), (other, one)):
            ends = [end[:, None] for end in self.span(y)]
            part = _times(self.low[x], self.high[x], *ends)
            low, high = low + part[0], high + part[1]
            lipschitz += self.joint(x, torch.maximum(*(end.abs().flatten() for end in ends)))
        spread = torch.maximum(low.abs(), high.abs())
        low, high = low - _finite(8 * EPS * spread), high + _finite(8 * EPS * spread)
        low[:, -1:], high[:, -1:] = _times(
            *(end[one, -1:] for end in (self.low, self.high)),
            *(end[other, -1:] for end in (self.low, self.high)),
        )  # fmt: skip
        reason = torch.maximum(self.reason[one], self.reason[other])
        return self._add(
            low, high, self._new_block(lipschitz, "a product of two values"), False, reason=reason
        )

    def largest(self, below: Tensor, soft: float = 0.0) -> Tensor:
        """Return the largest unit of each row (n, k), or at most `soft` more, as log-sum-exp."""

        def make(x: Tensor, _: Tensor) -> Tensor:
            low, high = self.low[x].amin(1), self.high[x].amax(1)
            low[:, -1], high[:, -1] = _outward(
                self.low[x, -1].amax(1), self.high[x, -1].amax(1) + soft
            )
            block = self._new_block(self.joint(x), "logsumexp" if soft else Largest(x))
            convex, reason = self.convex[x].all(1), self.reason[x].amax(1)
            return self._add(low, high, block, convex, False, reason)

        return self.rowwise(below, make, 1).flatten()

    def softmax(self, below: Tensor) -> Tensor:
        """Return p of each row (n, k): dp_k / du_k in [0, 1/4], dp_k / du_j in [-1/4, 0]."""

        def make(x: Tensor, _: Tensor) -> Tensor:
            wide = x.shape[1]
            rise, fall = self.high[x].clamp(min=0), (-self.low[x]).clamp(min=0)
            others = (1 - torch.eye(wide)).double()
            high, low = rise + _summed(fall, others), fall + _summed(rise, others)
            low, high = (end.flatten(0, 1) for end in _outward(-low / 4, high / 4))
            low[:, -1], high[:, -1] = 0.0, 1.0
            if wide == 1:
                low, high = torch.zeros_like(low), torch.zeros_like(high)
                low[:, -1] = high[:, -1] = 1.0
            reason = self.reason[x].amax(1, keepdim=True).expand(x.shape).flatten()
            lipschitz = 0.0 if wide == 1 else self.joint(x) / 2
            block = self._new_block(lipschitz, "softmax")
            return self._add(low, high, block, False, reason=reason)

        return self.rowwise(below, make, below.shape[1])

    def log_softmax(self, below: Tensor) -> Tensor:
        """Return log p of each row (n, k): (log p_k)' = sum_j p_j (u_k' - u_j'), concave in u."""

        def make(x: Tensor, _: Tensor) -> Tensor:
            wide, low, high = x.shape[1], self.low[x], self.high[x]
            lowest, highest = low.amin(1, keepdim=True), high.amax(1, keepdim=True)
            ends = (low - highest).clamp(max=0), (high - lowest).clamp(min=0)
            low, high = (end.flatten(0, 1) for end in _outward(*ends))
            low[:, -1], high[:, -1] = -math.inf, 0.0
            straight = (self.convex[x] & self.concave[x]).all(1).repeat_interleave(wide, 0)
            block = self._new_block((1 + math.sqrt(wide)) * self.joint(x), "log_softmax")
            reason = self.reason[x].amax(1, keepdim=True).expand(x.shape).flatten()
            return self._add(low, high, block, False, straight, reason)

        return self.rowwise(below, make, below.shape[1])

    def projected(self, below: Tensor, rows: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """Return the nearest points v of units (n, k) within limits, l <= A v <= h.

        A unit whose limits are its own is clipped to these; one that others hold, too, meets them.

        Their derivative J in u is a projection: J_kk is in [0, 1], J_jk in [-1/2, 1/2], and not
        negative where each limit is on one unit or on the difference of two: J then is the mean
        over units that are held together, or 0.

        Args:
            below: units.
            rows: A, (limits, k).
            lower: l, (limits,), float64, infinite where there is none.
            upper: the same of h.
        """
        touched = rows != 0
        single, bound = touched.sum(1) == 1, touched.any(0)
        means = bool((single | ((touched.sum(1) == 2) & (rows.sum(1) == 0))).all())
        halves = _together(touched).double() / 2
        alone = ~touched[~single].any(0)
        least, most = _of_one(rows[single], lower[single], upper[single])
        low_side, high_side = ((x.isfinite() & single)[:, None] for x in (lower, upper))
        raised = (((rows > 0) & low_side) | ((rows < 0) & high_side)).any(0)  # max(u, l): convex
        lowered = (((rows > 0) & high_side) | ((rows < 0) & low_side)).any(0)

        def make(x: Tensor, _: Tensor) -> Tensor:
            up, down = self.high[x].clamp(min=0), (-self.low[x]).clamp(min=0)
            either = torch.maximum(up, down)
            low = -down - _summed(down if means else either, halves)
            high = up + _summed(up if means else either, halves)
            held = bound[:, None]
            low, high = torch.where(held, low, self.low[x]), torch.where(held, high, self.high[x])
            convex = (self.convex[x] & (alone & ~lowered)[:, None]).flatten(0, 1)
            concave = (self.concave[x] & (alone & ~raised)[:, None]).flatten(0, 1)
            steepest = self.steepest(x.flatten(), self.joint(x))
            first, last = self.span(x)
            off = MET * (1 + torch.maximum(first.abs(), last.abs()).amax(1, keepdim=True))
            low[..., -1] = torch.where(alone, first.clamp(least, most), least) - off
            high[..., -1] = torch.where(alone, last.clamp(least, most), most) + off
            low, high = low.flatten(0, 1), high.flatten(0, 1)
            reason = self.reason[x].amax(1, keepdim=True).expand(x.shape).flatten()
            block = self._new_block(steepest, "a projection on limits")
            return self._add(low, high, block, convex, concave, reason)

        return self.rowwise(below, make, below.shape[1])

    def _lost(self, below: Tensor, wide: int) -> Tensor:
        return torch.full((len(below), wide), self.unknown("a weight that is not finite"))

    def steepest(self, units: Tensor, lipschitz: float) -> float:
        """Return a Lipschitz constant, or what the ends of derivatives say where that is less."""
        if not self.derivatives:
            return lipschitz
        return steepest(self.low[units, :-1], self.high[units, :-1], lipschitz)


def steepest(low: Tensor, high: Tensor, lipschitz: float) -> float:
    """Return a Lipschitz constant, or what ends of derivatives say where that is less."""
    largest = torch.maximum(low.abs(), high.abs())
    if not bool(largest.isfinite().all()):
        return lipschitz
    about = _norm((low + high) / 2) + _norm((high - low) / 2)
    return min(lipschitz, _norm(largest), about)


def _times(low: Tensor, high: Tensor, least: Tensor, most: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ends of [l, h] [least, most], rounded outward; 0 times any size is 0."""
    ends = [end * slope for end in (low, high) for slope in (least, most)]
    ends = [end.nan_to_num(0.0, torch.inf, -torch.inf) for end in ends]
    return _outward(*torch.stack(ends).aminmax(dim=0))


def _of_one(rows: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ends of units, (k,) each, by limits (n, k) of one unit each."""
    unit, factors = rows.abs().argmax(1), rows.sum(1)
    ends = torch.stack([lower / factors, upper / factors])
    infinite = torch.full((rows.shape[1],), math.inf, dtype=torch.float64)
    least = (-infinite).scatter_reduce(0, unit, ends.amin(0), "amax")
    return least, infinite.scatter_reduce(0, unit, ends.amax(0), "amin")


def _together(touched: Tensor) -> Tensor:
    """Return which units one limit or several hold together, (units, units), but for themselves."""
    near = touched.double().T @ touched.double() > 0
    for _ in range(len(near).bit_length()):
        near = near.double() @ near.double() > 0
    return near.fill_diagonal_(False)


def _ends(low: Tensor, high: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ends of A' [low, high], (..., m, columns) of (..., k, columns) and A (k, m).

    The last column, of values, may be infinite more often than the others.
    """
    parts = [
        _products(low[..., part].contiguous(), high[..., part].contiguous(), matrix)
        for part in (slice(None, -1), slice(-1, None))
    ]
    below, above = (torch.cat(ends, -1) for ends in zip(*parts, strict=True))
    return below, above


def _products(low: Tensor, high: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ends of A' [low, high], never inside of them by rounding; 0 stays 0."""
    plus, minus = matrix.clamp(min=0).T, (-matrix).clamp(min=0).T
    endless = None
    if not bool(low.isfinite().all() and high.isfinite().all()):
        down, up = low.isinf().to(matrix), high.isinf().to(matrix)
        some, other = (plus > 0).to(matrix), (minus > 0).to(matrix)
        endless = some @ down + other @ up > 0, some @ up + other @ down > 0
        low, high = (end.masked_fill(end.isinf(), 0.0) for end in (low, high))
    above = low.clamp(min=0), high.clamp(min=0)
    below = (-low).clamp(min=0), (-high).clamp(min=0)
    more, less = 1 + 4 * (len(matrix) + 4) * EPS, 1 - 4 * (len(matrix) + 4) * EPS
    up, down = plus @ above[0] + minus @ below[1], plus @ below[0] + minus @ above[1]
    least = up * less - down * more
    up, down = plus @ above[1] + minus @ below[0], plus @ below[1] + minus @ above[0]
    most = up * more - down * less
    if endless is not None:
        least.masked_fill_(endless[0], -math.inf)
        most.masked_fill_(endless[1], math.inf)
    return least, most


def _outward(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return ends that are farther apart by some units in the last place; 0 stays 0."""
    off = 16 * EPS
    return low - _finite(off * low.abs()), high + _finite(off * high.abs())


def _shifted(low: Tensor, high: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Return ends moved by a shift, farther apart by what its addition may round."""
    off = 2 * EPS
    return (
        low + shift - _finite(off * (low.abs() + shift.abs())),
        high + shift + _finite(off * (high.abs() + shift.abs())),
    )


def _finite(x: Tensor) -> Tensor:
    return x.masked_fill(x.isinf(), 0.0)  # an end at infinity stays there


def _summed(sizes: Tensor, matrix: Tensor) -> Tensor:
    """Return A' sizes, of entries that are not negative, never below by rounding."""
    return _products(torch.zeros_like(sizes), sizes, matrix)[1]


def _norm(matrix: Tensor) -> float:
    """Return the spectral norm, or a bound where the matrix is large; never below by rounding."""
    if not bool(matrix.isfinite().all()):
        return math.inf
    if min(matrix.shape) > 1500:
        sides = matrix.abs().sum(0).max() * matrix.abs().sum(1).max()
        return float(sides.sqrt()) * _NORM
    return float(torch.linalg.matrix_norm(matrix, 2)) * _NORM
