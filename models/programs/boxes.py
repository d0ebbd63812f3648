"""The least value of networks over a box of their inputs, proven by halving it.

Every unit lies between two lines in its pre-activation. From the cost back to the inputs these
make one line below the cost on each box (Zhang, Weng, Chen, Hsieh, Daniel, Efficient Neural Network
Robustness Certification with General Activation Functions, 2018), whose least value is at a corner:
the bound, while the network's value there is an answer. Boxes whose bounds are too low are halved,
many at once, along the input that their lines are off by most. Of inputs within linear constraints
the least value of the line is bounded by weak duality.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..bounds.curves import Array, Curve
from .composition import Block, Combination, Composition

_SWEEPS = 3  # over several limits
_ROUNDING = 1e-12  # of a bound, relative to the sizes of its terms


@dataclass(frozen=True, eq=False)
class Part:
    """A network whose inputs are affine in v, and what its outputs cost.

    Attributes:
        composition: from v to y.
        cost: of y, (outputs,).
    """

    composition: Composition
    cost: Array

    @classmethod
    def of(cls, composition: Composition, matrix: Array, offset: Array, cost: Array) -> Part:
        """Return a network of x = M v + o."""

        def through(combination: Combination) -> Combination:
            parts = dict(combination.parts)
            if 0 not in parts:
                return combination
            moved = combination.offset + offset @ parts[0]
            parts[0] = matrix.T @ parts[0]
            return replace(combination, parts=parts, offset=moved)

        blocks = [replace(x, argument=through(x.argument)) for x in composition.blocks]
        output = through(composition.output)
        inputs = matrix.shape[1]
        return cls(replace(composition, inputs=inputs, blocks=blocks, output=output), cost)


@dataclass(frozen=True, eq=False)
class Boxes:
    """Boxes with a line below the cost on each.

    Attributes:
        low: (boxes, inputs).
        high: the same.
        bound: the least value of the line, (boxes,).
        at: the corner where it is.
        off: what each input's width lets the line be off by, (boxes, inputs).
    """

    low: Array
    high: Array
    bound: Array
    at: Array
    off: Array

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.bound)

    def of(self, which: Any) -> Boxes:
        """Return some."""
        return Boxes(*(x[which] for x in vars(self).values()))

    def beside(self, other: Boxes) -> Boxes:
        """Return these and others."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Boxes(*(np.concatenate(pair) for pair in pairs))


def can_be_boxed(composition: Composition) -> bool:
    """Say whether each unit has a curve that is known everywhere, and none is a maximum."""
    blocks = composition.blocks
    return not any(len(b.windows) for b in blocks) and all(
        np.isinf(c.window[1]) for b in blocks for c in b.curves
    )


def lined(
    parts: Sequence[Part],
    cost: Array,
    low: Array,
    high: Array,
    limits: tuple[Array, Array, Array],
) -> Boxes:
    """Return boxes (boxes, inputs) with their lines.

    Args:
        parts: networks.
        cost: of v, (inputs,).
        low: of the boxes.
        high: the same.
        limits: G, (rows, inputs), and both ends of G v, (rows,), infinite where there is none.
    """
    slopes, values = np.repeat(cost[None], len(low), 0), np.zeros(len(low))
    size, off = np.zeros(len(low)), np.zeros_like(low)
    for part in parts:
        composition, lines, reach = part.composition, list[_Lines](), list[Array]()
        for block in composition.blocks:
            ends, along = _ends(composition, lines, block.argument, low, high)
            lines.append(_Lines.of(block, *ends))
            reach.append(along)
        output = composition.output
        given = {k: (x @ part.cost)[None, None] for k, x in output.parts.items()}
        way = _Way(composition, lines, given, np.full((1, 1), output.offset @ part.cost), len(low))
        slopes, values = slopes + way.slopes[:, 0], values + way.values[:, 0]
        size += way.size[:, 0]
        for push, line, along in zip(way.pushes, lines, reach, strict=True):
            off += ((np.abs(push[:, 0]) * line.gap)[:, None] @ along)[:, 0]
    largest = np.maximum(np.abs(low), np.abs(high))
    rounding = _ROUNDING * (size + (np.abs(slopes) * largest).sum(1))
    bound = values + _least(slopes, low, high, limits) - rounding
    return Boxes(low, high, bound, np.where(slopes > 0, low, high), off * (high - low))


def _least(slopes: Array, low: Array, high: Array, limits: tuple[Array, Array, Array]) -> Array:
    """Return at most the least <s, v> on each box and within limits, (boxes,); infinite of none.

    max over y of sum_k min over the box (s - G'y)_k v_k + <y+, lows> - <y-, highs>, by one row
    after another: along y_r it is concave and linear in pieces that end where a slope is 0.
    """
    rows, ends = limits[0], np.stack(limits[1:])
    y, found = np.zeros((len(low), len(rows))), np.minimum(slopes * low, slopes * high).sum(1)
    for row in list(range(len(rows))) * (_SWEEPS if len(rows) > 1 else 1):
        own, (lowest, highest) = rows[row], ends[:, row]
        y[:, row] = 0.0
        rest = slopes - y @ rows
        steps = rest[:, own != 0] / own[own != 0]
        steps = np.concatenate([np.zeros((len(low), 1)), steps], 1)
        steps = np.minimum(steps, np.inf if np.isfinite(lowest) else 0.0)
        steps = np.maximum(steps, -np.inf if np.isfinite(highest) else 0.0)
        total = rest[:, None] - steps[..., None] * own
        value = np.minimum(total * low[:, None], total * high[:, None]).sum(-1)
        others = np.maximum(y, 0) @ _finite(ends[0]) + np.minimum(y, 0) @ _finite(ends[1])
        value += others[:, None]
        value += np.maximum(steps, 0) * _finite(lowest) + np.minimum(steps, 0) * _finite(highest)
        best = value.argmax(1)
        y[:, row] = steps[np.arange(len(low)), best]
        found = np.maximum(found, value[np.arange(len(low)), best])
    up, down = np.maximum(rows, 0), np.minimum(rows, 0)
    room = 1e-9 * (np.abs(rows) @ np.maximum(np.abs(low), np.abs(high)).T).T
    empty = low @ up.T + high @ down.T > ends[1] + room
    empty |= high @ up.T + low @ down.T < ends[0] - room
    return np.where(empty.any(1), np.inf, found)


def _finite(ends: Any) -> Any:
    return np.where(np.isfinite(ends), ends, 0.0)


@dataclass(frozen=True, eq=False)
class _Lines:
    """a u + b below and above every unit of boxes, (boxes, units) each; gap: between them."""

    below: tuple[Array, Array]
    above: tuple[Array, Array]
    gap: Array

    @classmethod
    def of(cls, block: Block, low: Array, high: Array) -> _Lines:
        found = np.empty((5, *low.shape))
        high = np.maximum(low, high)
        for number, curve in enumerate(block.curves):
            own = block.which == number
            found[:, :, own] = _beside(curve, low[:, own], high[:, own])
        return cls((found[0], found[1]), (found[2], found[3]), found[4])


def _beside(curve: Curve, low: Array, high: Array) -> Array:
    """Return slope and value of a line below and of one above, and how far apart they are.

    A tangent and the chord where the curve bends one way, else two lines along the chord.
    """
    ends = [torch.from_numpy(np.ascontiguousarray(end)) for end in (low, high)]
    middle, chord = (ends[0] + ends[1]) / 2, curve.chords(*ends)
    if curve.convex or curve.concave:
        tangent = curve.slope(middle)
        touching = tangent, curve.forward(middle) - tangent * middle
        values = [curve.forward(u) - chord * u for u in ends]
        through = chord, (torch.maximum if curve.convex else torch.minimum)(*values)
        below, above = (touching, through) if curve.convex else (through, touching)
    else:
        least, most = curve.extremes(chord, *ends)
        below, above = (chord, least), (chord, most)
    gap = (above[0] - below[0]) * middle + above[1] - below[1]
    return np.stack([x.numpy() for x in (*below, *above, gap)])


class _Way:
    """Lines below several sums, from what they are made of back to the inputs."""

    def __init__(
        self,
        composition: Composition,
        lines: Sequence[_Lines],
        given: dict[int, Array],
        values: Array,
        boxes: int,
    ) -> None:
        """Go back: given are factors of blocks (1, sums, units), and constants (1, sums)."""
        sums, factors = values.shape[1], dict(given)
        self.pushes = [np.zeros((boxes, sums, len(x.gap[0]))) for x in lines]
        values, self.size = values + np.zeros((boxes, 1)), np.abs(values) + np.zeros((boxes, 1))
        for number in range(len(lines), 0, -1):
            push = factors.pop(number, None)
            if push is None:
                continue
            push = np.broadcast_to(push, (boxes, *push.shape[1:]))
            line, argument = lines[number - 1], composition.blocks[number - 1].argument
            self.pushes[number - 1] = push
            up, down = np.maximum(push, 0), np.minimum(push, 0)
            shift = (up @ line.below[1][..., None] + down @ line.above[1][..., None])[..., 0]
            through = up * line.below[0][:, None] + down * line.above[0][:, None]
            constant = through @ argument.offset
            values = values + shift + constant
            self.size = self.size + np.abs(shift) + np.abs(through) @ np.abs(argument.offset)
            for source, matrix in argument.parts.items():
                before = factors.get(source, 0.0)
                factors[source] = before + through @ matrix.T
        none = np.zeros((boxes, sums, composition.inputs))
        self.slopes, self.values = none + factors.get(0, 0.0), values


def _ends(
    composition: Composition,
    lines: Sequence[_Lines],
    argument: Combination,
    low: Array,
    high: Array,
) -> tuple[tuple[Array, Array], Array]:
    """Return the ends of pre-activations, (boxes, units), and the sizes of their slopes."""
    both = np.concatenate([np.eye(len(argument.offset)), -np.eye(len(argument.offset))])
    given = {k: (both @ part.T)[None] for k, part in argument.parts.items()}
    way = _Way(composition, lines, given, (both @ argument.offset)[None], len(low))
    up, down = np.maximum(way.slopes, 0), np.minimum(way.slopes, 0)
    value = way.values + (up @ low[..., None] + down @ high[..., None])[..., 0]
    units = len(argument.offset)
    return (value[:, :units], -value[:, units:]), np.abs(way.slopes[:, :units])


def halved(boxes: Boxes) -> tuple[Array, Array]:
    """Return the ends of both halves of boxes."""
    rows, axis = np.arange(len(boxes)), boxes.off.argmax(1)
    flat = boxes.off[rows, axis] <= 0
    axis[flat] = (boxes.high - boxes.low)[flat].argmax(1)
    middle = (boxes.low[rows, axis] + boxes.high[rows, axis]) / 2
    low, high = boxes.low.copy(), boxes.high.copy()
    low[rows, axis] = high[rows, axis] = middle
    return np.concatenate([boxes.low, low]), np.concatenate([high, boxes.high])
