"""Lines below and above the units of a network on boxes of its inputs, and below sums of them.

Every unit lies between two lines in its pre-activation. From a sum of units back to the inputs
these make one line below the sum on each box (Zhang, Weng, Chen, Hsieh, Daniel, Efficient Neural
Network Robustness Certification with General Activation Functions, 2018). Under a convex map that
is linear in pieces any mixture of its first and last line may stand, and ends between which a
pre-activation is known to lie count with multipliers of either sign; steps in mixtures and
multipliers raise what the line of the sum proves (Wang, Zhang, Xu, Lin, Jana, Hsieh, Kolter,
Beta-CROWN, 2021). Derivatives are those of the inner minimum: what units have on their lines at the
input where it is attained.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..bounds.curves import Array, Curve
from .composition import Block, Combination, Composition

ROUNDING = 1e-12  # of a bound, relative to the sizes of its terms
_RATE, _SLOWER = 0.2, 0.97  # of a step, and of each after it
_MOMENT, _SECOND = 0.9, 0.999  # of Adam
_AT_ONCE = 4_000_000  # entries of mixtures of sums that are raised together

Least = Callable[[Array, Array], tuple[Array, Array]]  # of slopes and values: bounds, and where


def times(x: Array, matrix: Array) -> Array:
    """Return x M of (boxes, sums, units), as one product."""
    found: Array = x.reshape(-1, x.shape[-1]) @ matrix
    return found.reshape(*x.shape[:-1], matrix.shape[1])


@dataclass(frozen=True, eq=False)
class Lines:
    """a u + b below and above every unit of boxes, (boxes, units) each.

    Attributes:
        low: the least pre-activation, (boxes, pre-activations).
        high: the largest.
        below: a and b.
        above: the same.
        turn: what is added to below, or to above, at the mixture 1.
        under: whether it is below that turns, (units,).
        mix: the mixture to begin with.
        gap: between both lines in the middle, at that mixture.
    """

    low: Array
    high: Array
    below: tuple[Array, Array]
    above: tuple[Array, Array]
    turn: tuple[Array, Array]
    under: np.ndarray[Any, np.dtype[np.bool_]]
    mix: Array
    gap: Array

    @classmethod
    def of(cls, block: Block, low: Array, high: Array) -> Lines:
        """Return the lines of a block whose pre-activations lie between ends, (boxes, units)."""
        high = np.maximum(low, high)
        found = block.by_curve(_beside, low, high)
        below, above, turn = ((found[n], found[n + 1]) for n in (0, 2, 4))
        under = np.array([curve.convex for curve in block.curves])[block.which]
        return cls(low, high, below, above, turn, under, found[6], found[7])

    def on(self, push: Array, mix: Array) -> tuple[Array, Array]:
        """Return a and b of the lines that units count by, with their factors, (..., units)."""
        lower = push >= 0
        turning = (lower == self.under) * mix
        slope, value = (
            np.where(lower, below[:, None], above[:, None]) + turning * turn[:, None]
            for below, above, turn in zip(self.below, self.above, self.turn, strict=True)
        )
        return slope, value


def _beside(curve: Curve, low: Array, high: Array) -> Array:
    """Return lines below and above, what one of them turns by, the mixture, and the gap.

    Tangents at both ends and the chord where the curve bends one way by kinks, a tangent in the
    middle and the chord where it bends smoothly, else two lines along the chord.
    """
    ends = [torch.from_numpy(np.ascontiguousarray(end)) for end in (low, high)]
    middle, chord = (ends[0] + ends[1]) / 2, curve.chords(*ends)
    none = torch.zeros_like(middle)
    turn, mix = (none, none), none
    if curve.convex or curve.concave:
        slope = curve.slope(middle)
        touching = slope, curve.forward(middle) - slope * middle
        values = [curve.forward(u) - chord * u for u in ends]
        if curve.piecewise_linear:
            at = torch.nextafter(ends[0], ends[1]), torch.nextafter(ends[1], ends[0])
            first, last = (
                (s, curve.forward(u) - s * u)
                for u, s in zip(ends, map(curve.slope, at), strict=True)
            )
            turn = last[0] - first[0], last[1] - first[1]
            mix = torch.where(turn[0] == 0, 0.0, (slope - first[0]) / turn[0])
            touching = first
        through = chord, (torch.maximum if curve.convex else torch.minimum)(*values)
        below, above = (touching, through) if curve.convex else (through, touching)
    else:
        least, most = curve.extremes(chord, *ends)
        below, above = (chord, least), (chord, most)
    if np.isfinite(curve.window[1]):  # a wave, whose bends are known between two ends
        lost = (ends[0] < curve.window[0]) | (ends[1] > curve.window[1])
        below, above = (
            (torch.where(lost, 0.0, slope), torch.where(lost, end, value))
            for (slope, value), end in ((below, -1.0), (above, 1.0))
        )
    gap = (above[0] - below[0]) * middle + above[1] - below[1]
    gap = gap - (mix if curve.convex else -mix) * (turn[0] * middle + turn[1])
    return np.stack([x.numpy() for x in (*below, *above, *turn, mix, gap)])


@dataclass(frozen=True, eq=False)
class Sums:
    """c_k + <s_k, x> + <q_k, units>, sums of inputs and units.

    Attributes:
        constants: c, (boxes or 1, sums).
        slopes: s, (boxes or 1, sums, inputs).
        costs: q of the units that each source has, (boxes or 1, sums, units).
        size: of the terms at most, as far as no units count, (boxes or 1, sums).
    """

    constants: Array
    slopes: Array
    costs: Mapping[int, Array]
    size: Array

    @classmethod
    def both_ways(cls, argument: Combination, which: Any, inputs: int) -> Sums:
        """Return some entries of u, and their negatives, as sums."""
        one = np.eye(len(argument.offset))[which]
        return cls.of(np.concatenate([one, -one]), argument, inputs)

    @classmethod
    def of(cls, rows: Array, argument: Combination, inputs: int) -> Sums:
        """Return M u for rows M, (sums, entries of u)."""
        costs = {k: (rows @ part.T)[None] for k, part in argument.parts.items()}
        constants = (rows @ argument.offset - np.abs(rows) @ argument.off)[None]
        return cls(constants, np.zeros((1, len(rows), inputs)), costs, np.abs(constants))

    def weighted(self, weights: Array | None) -> Sums:
        """Return sums of sums, by weights (boxes, sums, sums before)."""
        if weights is None:
            return self
        constants = (weights @ self.constants[..., None])[..., 0]
        size = (np.abs(weights) @ self.size[..., None])[..., 0]
        costs = {k: weights @ q for k, q in self.costs.items()}
        return Sums(constants, weights @ self.slopes, costs, size)

    def at(self, values: Sequence[Array]) -> Array:
        """Return the sums at what all sources have, (boxes, 1, units) each."""
        found = self.constants + (self.slopes @ values[0].transpose(0, 2, 1))[..., 0]
        for source, cost in self.costs.items():
            found = found + (cost @ values[source].transpose(0, 2, 1))[..., 0]
        return found


class Way:
    """Lines below several sums, from what they are made of back to the inputs.

    Attributes:
        slopes: (boxes, sums, inputs).
        values: at 0, (boxes, sums).
        size: of all terms of the values, (boxes, sums).
        pushes: factors of units, (boxes, sums, units) of each block.
    """

    def __init__(
        self,
        composition: Composition,
        lines: Sequence[Lines],
        sums: Sums,
        boxes: int,
        mix: Sequence[Array] | None = None,
        held: Sequence[Array] | None = None,
    ) -> None:
        """Go back, with mixtures and multipliers of ends, (boxes, sums or 1, units) each."""
        count = sums.constants.shape[1]
        self.composition, self.lines = composition, lines
        self.mix = [line.mix[:, None] for line in lines] if mix is None else mix
        factors = {k: q for k, q in sums.costs.items() if k}
        values, slopes = sums.constants + np.zeros((boxes, 1)), sums.slopes
        if 0 in sums.costs:
            slopes = slopes + sums.costs[0]
        self.pushes = [np.zeros((boxes, count, line.gap.shape[1])) for line in lines]
        self.size = sums.size + np.zeros_like(values)
        for number in range(len(lines), 0, -1):
            push = factors.pop(number, None)
            if push is None:
                continue
            push = np.broadcast_to(push, (boxes, *push.shape[1:]))
            line, argument = lines[number - 1], composition.blocks[number - 1].argument
            self.pushes[number - 1] = push
            up, down = np.maximum(push, 0), np.minimum(push, 0)
            turned = np.where(line.under, up, down) * self.mix[number - 1]
            shift = (up @ line.below[1][..., None] + down @ line.above[1][..., None])[..., 0]
            shift = shift + (turned @ line.turn[1][..., None])[..., 0]
            through = up * line.below[0][:, None] + down * line.above[0][:, None]
            through = through + turned * line.turn[0][:, None]
            if held is not None:
                b = held[number - 1]
                through = through + b
                shift = shift - (np.maximum(b, 0) * line.high[:, None]).sum(2)
                shift = shift - (np.minimum(b, 0) * line.low[:, None]).sum(2)
                self.size = self.size + (
                    np.abs(b) * np.maximum(np.abs(line.low), np.abs(line.high))[:, None]
                ).sum(2)
            size = np.abs(through)
            values = values + shift + through @ argument.offset - size @ argument.off
            self.size = self.size + np.abs(shift) + size @ np.abs(argument.offset)
            for source, matrix in argument.parts.items():
                before = times(through, matrix.T)
                if source:
                    factors[source] = factors[source] + before if source in factors else before
                else:
                    slopes = slopes + before
        self.slopes, self.values = slopes + np.zeros((boxes, 1, 1)), values

    def least(self, largest: Array) -> Array:
        """Return the values, less what rounding may take of inputs of a size, (boxes, inputs)."""
        sizes = (np.abs(self.slopes) @ largest[..., None])[..., 0]
        return self.values - ROUNDING * (self.size + sizes)

    def forward(self, x: Array) -> tuple[list[Array], list[Array]]:
        """Return pre-activations, and what sources have, on the lines that the sums are made of.

        Args:
            x: (boxes, sums, inputs).
        """
        arguments, values = list[Array](), [x]
        for line, block, push, mix in zip(
            self.lines, self.composition.blocks, self.pushes, self.mix, strict=False
        ):
            u: Array = block.argument.offset + np.zeros((*x.shape[:2], 1))
            for source, matrix in block.argument.parts.items():
                u = u + times(values[source], matrix)
            arguments.append(u)
            slope, value = line.on(push, mix)
            values.append(slope * u + value)
        return arguments, values


@dataclass(eq=False)
class Raised:
    """What a bound is made of: mixtures, multipliers of ends, and weights of sums.

    Attributes:
        mix: of the lines of each block, (boxes, sums, units).
        held: multipliers of ends, the same.
        weights: of sums, (boxes, 1, sums), or None.
        scales: of steps in the weights, (sums,), 0 where a weight stays.
        bound: what it proves, (boxes, sums).
        x: where the least value is on the lines, (boxes, sums, inputs).
        way: the last one that was gone.
        arguments: pre-activations on its lines.
    """

    mix: list[Array]
    held: list[Array]
    weights: Any
    scales: Any
    bound: Any = None
    x: Any = None
    way: Any = None
    arguments: Any = None

    def climb(
        self,
        composition: Composition,
        lines: Sequence[Lines],
        sums: Sums,
        least: Least,
        largest: Array,
        steps: int,
        rate: Any = _RATE,
        until: float = np.inf,
    ) -> None:
        """Take steps of Adam (Kingma, Ba, 2015), and keep what proves most of each sum.

        Args:
            composition: the network.
            lines: of its first blocks.
            sums: of inputs and units.
            least: of slopes and values of lines, what is bounded, and where it is least.
            largest: sizes of inputs, (boxes or 1, inputs).
            steps: after which it ends.
            rate: of steps, a number or (boxes, 1, 1).
            until: the time at which it ends.
        """
        count = len(lines)
        now = [*self.mix, *self.held, *([] if self.weights is None else [self.weights])]
        self.bound, best = None, [x.copy() for x in now]
        first, second = ([np.zeros_like(x) for x in now] for _ in "ab")
        for step in range(steps + 1):
            held = now[count : 2 * count]
            weights = None if self.weights is None else now[-1]
            whole = sums.weighted(weights)
            way = Way(composition, lines, whole, len(best[-1]) if best else 1, now[:count], held)
            bound, x = least(way.slopes, way.least(largest))
            if self.bound is None:
                self.bound, self.x = bound, x
            else:
                better = bound > self.bound
                self.bound = np.where(better, bound, self.bound)
                self.x = np.where(better[..., None], x, self.x)
                for kept, one in zip(best, now, strict=True):
                    kept[better] = one[better]
            if step == steps or (step and time.perf_counter() > until):
                break
            arguments, values = way.forward(x)
            slopes = _derivatives(way, arguments, held)
            pushes = (np.abs(push).max(2, keepdims=True) for push in way.pushes)
            scales: list[Any] = [*[1.0] * count, *pushes]
            if weights is not None:
                slopes.append(sums.at(values)[:, None])
                scales.append(self.scales)
            for number, (slope, scale) in enumerate(zip(slopes, scales, strict=True)):
                first[number] += (1 - _MOMENT) * (slope - first[number])
                second[number] += (1 - _SECOND) * (slope**2 - second[number])
                size = np.sqrt(second[number] / (1 - _SECOND ** (step + 1))) + 1e-12
                move = first[number] / (1 - _MOMENT ** (step + 1)) / size
                moved = now[number] + rate * _SLOWER**step * scale * move
                if number < count:
                    now[number] = np.clip(moved, 0, 1)
                elif weights is not None and number == len(now) - 1:
                    now[number] = np.maximum(moved, np.minimum(now[number], 0))
                else:
                    now[number] = np.where(now[number] * moved < 0, 0.0, moved)
        self.way, (self.arguments, _) = way, way.forward(x)
        self.mix, self.held = best[:count], best[count : 2 * count]
        self.weights = None if self.weights is None else best[-1]


def _derivatives(way: Way, arguments: Sequence[Array], held: Sequence[Array]) -> list[Array]:
    """Return derivatives of sums in mixtures and multipliers, where they are least."""
    found = list[Array]()
    for line, push, u in zip(way.lines, way.pushes, arguments, strict=True):
        side = np.where(line.under, np.maximum(push, 0), np.minimum(push, 0))
        found.append(side * (line.turn[0][:, None] * u + line.turn[1][:, None]))
    for line, u, b in zip(way.lines, arguments, held, strict=True):
        over, short = u - line.high[:, None], u - line.low[:, None]
        none = np.maximum(over, 0) + np.minimum(short, 0)
        found.append(np.where(b > 0, over, np.where(b < 0, short, none)))
    return found


def corner(low: Array, high: Array, ball: tuple[Array, float] | None = None) -> Least:
    """Return what bounds lines on boxes, or on what lies in a ball as well, a center and radius."""

    def least(slopes: Array, values: Array) -> tuple[Array, Array]:
        x = np.where(slopes > 0, low[:, None], high[:, None])
        found = values + (slopes * x).sum(2)
        if ball is None:
            return found, x
        (center, radius), length = ball, np.linalg.norm(slopes, axis=2)
        there = values + slopes @ center - radius * length
        far = radius * slopes / np.maximum(length, 1e-300)[..., None]
        return np.maximum(found, there), np.where((there > found)[..., None], center - far, x)

    return least


def lines_of(
    composition: Composition,
    low: Array,
    high: Array,
    *,
    ball: tuple[Array, float] | None = None,
    steps: int = 0,
    until: float = np.inf,
    known: Sequence[tuple[Array, Array]] = (),
) -> tuple[list[Lines], list[Array]]:
    """Return lines of all blocks, and sizes of slopes of pre-activations, (boxes, units, inputs).

    Args:
        composition: the network.
        low: of boxes, (boxes, inputs).
        high: the same.
        ball: center and radius of a ball in the Euclidean norm, in which inputs lie as well.
        steps: that raise the ends of units that are on both sides of a kink.
        until: the time at which there are no more.
        known: ends of pre-activations that were found before.
    """
    lines, reach = list[Lines](), list[Array]()
    for number, block in enumerate(composition.blocks):
        before = known[number] if number < len(known) and len(known[number][0]) else None
        where = corner(low, high, ball)
        found, along = _ends(composition, lines, block, low, high, where, steps, until, before)
        lines.append(Lines.of(block, *found))
        reach.append(along)
    return lines, reach


def ranges(
    composition: Composition,
    box: tuple[Array, Array],
    *,
    steps: int = 0,
    seconds: float = np.inf,
    known: Sequence[tuple[Array, Array]] = (),
) -> list[tuple[Array, Array]]:
    """Return ends of the pre-activations of all blocks, and last of the outputs, over one box.

    Args:
        composition: the network.
        box: the least and the largest input, (inputs,) each.
        steps: that bring ends closer, of units that are on both sides of a kink.
        seconds: after which there are no more.
        known: ends of pre-activations that were found before; of no entries where there are none.
    """
    until, (low, high) = time.perf_counter() + seconds, (x[None] for x in box)
    before = None
    if steps:  # closer lines of some units need not make closer ones of others
        known = ranges(composition, box, known=known)
        before = known[-1]
    lines, _ = lines_of(composition, low, high, steps=steps, until=until, known=known)
    least = corner(low, high)
    (first, last), _ = _ends(composition, lines, None, low, high, least, steps, until, before)
    found, given = [(x.low[0], x.high[0]) for x in lines], [box]
    for block, ends in zip(composition.blocks, found, strict=True):
        given.append(tuple(block.mapped(*ends, function="values")))
    ends = between(composition.output.offset, composition.output.parts, given)
    return [*found, (np.fmax(first[0], ends[0]), np.fmin(last[0], ends[1]))]


def between(
    offset: Array, parts: Mapping[int, Array], ends: Sequence[tuple[Array, Array]]
) -> tuple[Array, Array]:
    """Return ends of c + sum of v A over sources, by the ends of each v, rounded outwards.

    Of what follows one last curve they are closer than lines.

    Args:
        offset: c, (units,).
        parts: A, (units below, units), by the number of its source.
        ends: of every source.
    """
    low, high, size = offset, offset, np.abs(offset)
    for source, matrix in parts.items():
        (least, most), up, down = ends[source], matrix.clip(min=0), matrix.clip(max=0)
        low, high = low + least @ up + most @ down, high + most @ up + least @ down
        size = size + np.maximum(np.abs(least), np.abs(most)) @ np.abs(matrix)
    return low - ROUNDING * size, high + ROUNDING * size


def _ends(
    composition: Composition,
    lines: Sequence[Lines],
    block: Block | None,
    low: Array,
    high: Array,
    least: Least,
    steps: int,
    until: float,
    known: tuple[Array, Array] | None,
) -> tuple[tuple[Array, Array], Array]:
    """Return the ends of pre-activations, or of outputs, and sizes of their slopes."""
    argument = composition.output if block is None else block.argument
    units, largest = len(argument.offset), np.maximum(np.abs(low), np.abs(high))
    way = Way(
        composition, lines, Sums.both_ways(argument, slice(None), composition.inputs), len(low)
    )
    value = least(way.slopes, way.least(largest))[0]
    if known is not None:
        value = np.maximum(value, np.concatenate([known[0], -known[1]]))
    if steps and lines and time.perf_counter() < until:
        which = _crossing(block, value[:, :units], -value[:, units:])
        wide = sum(line.gap.shape[1] for line in lines) * len(low)
        for some in np.array_split(which, max(1, -(-2 * len(which) * wide // _AT_ONCE))):
            both = np.concatenate([some, units + some])
            sums = Sums.both_ways(argument, some, composition.inputs)
            mix = [np.repeat(line.mix[:, None], len(both), 1) for line in lines]
            raised = Raised(mix, [0 * x for x in mix], None, None)
            raised.climb(composition, lines, sums, least, largest, steps, until=until)
            value[:, both] = np.maximum(value[:, both], raised.bound)
    return (value[:, :units], -value[:, units:]), np.abs(way.slopes[:, :units])


def _crossing(block: Block | None, low: Array, high: Array) -> Any:
    """Return the pre-activations that are not on one piece in all boxes; all of no block."""
    which = np.arange(low.shape[1])
    if block is None:
        return which
    return which[~block.mapped(low, high, function="linear_between").all(0)]
