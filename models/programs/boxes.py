"""Lower bounds of convex functions of networks on many boxes of their inputs at once.

Every unit lies between two lines in its pre-activation. From a cost of the outputs back to the
inputs these make one line below the cost on each box (Zhang, Weng, Chen, Hsieh, Daniel, Efficient
Neural Network Robustness Certification with General Activation Functions, 2018). A convex function
of inputs and outputs lies above its tangent, whose cost has such a line; a constraint g <= 0 lets
only points pass where the line below g is at most 0. What is left on each box is a linear program,
bounded by weak duality. Boxes whose bounds are too low are halved along the input that their lines
are off by most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..bounds.curves import Array, Curve
from .composition import Block, Combination, Composition

_STEPS, _SHORTER, _CLOSE = 12, 0.95, 0.05  # of the interior point method, and how far each goes
_ROUNDING = 1e-12  # of a bound, relative to the sizes of its terms
_RIDGE = 1e-12  # of the systems of that method, relative
_SLACK = 1e-9  # of a constraint, the same
_WIDTH = 1e-2  # of what lines are off by, that the width of a box counts for


def inside_of(composition: Composition, matrix: Array, offset: Array) -> Composition:
    """Return a network of x = M v + o as one of v."""

    def through(combination: Combination) -> Combination:
        parts = dict(combination.parts)
        if 0 not in parts:
            return combination
        moved = combination.offset + offset @ parts[0]
        parts[0] = matrix.T @ parts[0]
        return replace(combination, parts=parts, offset=moved)

    blocks = [replace(x, argument=through(x.argument)) for x in composition.blocks]
    output = through(composition.output)
    return replace(composition, inputs=matrix.shape[1], blocks=blocks, output=output)


@dataclass(frozen=True, eq=False)
class Tangents:
    """c_k + <s_k, v> + sum over networks of <q_k, y>, below an objective (k = 0) and constraints.

    Attributes:
        constants: c, (boxes or 1, functions).
        slopes: s, (boxes or 1, functions, inputs).
        costs: q of each network, (boxes or 1, functions, outputs).
        curved: what the halves of every input may bring beside the lines, (boxes or 1, inputs).
    """

    constants: Array
    slopes: Array
    costs: Sequence[Array]
    curved: Array


@dataclass(frozen=True, eq=False)
class Boxes:
    """Boxes with a bound on each.

    Attributes:
        low: (boxes, inputs).
        high: the same.
        bound: no point that meets the constraints has less, (boxes,); infinite where there is none.
        at: where the linear program has its least value, about, (boxes, inputs).
        off: what each input's width lets lines be off by, (boxes, inputs).
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


def lined(
    networks: Sequence[Composition],
    tangents: Tangents,
    low: Array,
    high: Array,
    limits: tuple[Array, Array],
    ball: Array | None = None,
) -> Boxes:
    """Return boxes (boxes, inputs) with their bounds.

    Args:
        networks: of v.
        tangents: below the objective and what is to be at most 0.
        low: of the boxes.
        high: the same.
        limits: G and h, (rows, inputs) and (rows,), of G v <= h.
        ball: radii of balls around the centers of boxes, (boxes,), to which points are limited.
    """
    functions = tangents.constants.shape[1]
    slopes = np.repeat(tangents.slopes, len(low) // len(tangents.slopes), 0)
    values = np.repeat(tangents.constants, len(low) // len(tangents.constants), 0)
    size, ways = np.abs(values), list[tuple[_Way, list[_Lines], list[Array]]]()
    for composition, cost in zip(networks, tangents.costs, strict=True):
        lines, reach = list[_Lines](), list[Array]()
        for block in composition.blocks:
            ends, along = _ends(composition, lines, block.argument, low, high, ball)
            lines.append(_Lines.of(block, *ends))
            reach.append(along[:, block.windows].max(2) if len(block.windows) else along)
        output = composition.output
        given = {k: cost @ x.T for k, x in output.parts.items()}
        way = _Way(composition, lines, given, cost @ output.offset, len(low))
        slopes, values, size = slopes + way.slopes, values + way.values, size + way.size
        ways.append((way, lines, reach))
    largest = np.maximum(np.abs(low), np.abs(high))
    rounding = _ROUNDING * (size + (np.abs(slopes) @ largest[..., None])[..., 0])
    values = values - rounding
    rows = np.concatenate([slopes[:, 1:], np.repeat(limits[0][None], len(low), 0)], 1)
    most = np.concatenate([-values[:, 1:], np.repeat(limits[1][None], len(low), 0)], 1)
    bound, at, prices = _least(slopes[:, 0], low, high, rows, most)
    if ball is not None:
        bound = np.maximum(bound, _least_in_ball(slopes[:, :1], low, high, ball)[:, 0])
    weights = np.concatenate([np.ones((len(low), 1)), prices[:, : functions - 1]], 1)
    off = np.repeat(tangents.curved, len(low) // len(tangents.curved), 0)
    for way, lines, reach in ways:
        for push, line, along in zip(way.pushes, lines, reach, strict=True):
            seen = (np.abs(push) * weights[..., None]).sum(1) * line.gap
            off = off + (seen[:, None] @ along)[:, 0]
    wide = high - low
    off = off * wide
    off += _WIDTH * off.max(1, keepdims=True) * wide / wide.max(1, keepdims=True).clip(1e-300)
    return Boxes(low, high, bound + values[:, 0], at, off)


def _least(
    slopes: Array, low: Array, high: Array, rows: Array, most: Array
) -> tuple[Array, Array, Array]:
    """Return what is at most the least <s, v> on each box where R v <= h; where; and prices y.

    By weak duality, of any y >= 0, min <s, v> >= <c, s + R'y> - <w, |s + R'y|> - <h, y> with the
    center c and the half widths w of a box. y comes from steps of a primal-dual interior point
    method (Wright, Primal-Dual Interior-Point Methods, 1997), of all boxes together.
    """
    center, half, many = (low + high) / 2, (high - low) / 2, rows.shape[1]
    corner = np.where(slopes > 0, low, high)
    found, prices = (slopes * center - np.abs(slopes) * half).sum(1), np.zeros((len(low), many))
    if not many:
        return found, corner, prices
    scale = np.abs(slopes * half).max(1, keepdims=True).clip(1e-300)
    length = (np.abs(rows) * half[:, None]).sum(2).clip(1e-300)
    s, R = slopes * half / scale, rows * half[:, None] / length[..., None]
    h = (most - (rows @ center[..., None])[..., 0]) / length
    largest = np.maximum(np.abs(low), np.abs(high))
    sizes = np.abs(most) + (np.abs(rows) @ largest[..., None])[..., 0]
    empty = ((h + 1) * length < -_SLACK * sizes).any(1)
    h = np.clip(h, -1, 2)  # at least what counts as none, and what holds everywhere
    z, (a, b) = np.zeros_like(s), np.ones((2, *s.shape))
    q, y, best = np.maximum(h, 0) + 1, np.ones_like(h), np.full(len(low), -np.inf)
    for _ in range(_STEPS):
        below, above = 1 + z, 1 - z
        aim = (a * below + b * above).sum(1, keepdims=True) + (q * y).sum(1, keepdims=True)
        aim = _CLOSE * aim / (2 * s.shape[1] + many)
        d = a / below + b / above
        g = aim / below - aim / above - s - (y[:, None] @ R)[:, 0]
        system = (R / d[:, None]) @ R.transpose(0, 2, 1)
        diagonal = np.einsum("bii->bi", system)
        diagonal += (q / y).clip(_RIDGE * (1 + diagonal.max(1, keepdims=True)))
        right = (R @ (g / d + z)[..., None])[..., 0] + aim / y - h
        dy = np.linalg.solve(system, right[..., None])[..., 0]
        dz = (g - (dy[:, None] @ R)[:, 0]) / d
        dq = aim / y - q - q / y * dy
        da, db = aim / below - a - a / below * dz, aim / above - b + b / above * dz
        far = _longest((below, dz), (above, -dz), (q, dq))
        z, q = z + far * dz, q + far * dq
        far = _longest((y, dy), (a, da), (b, db))
        y, a, b = y + far * dy, a + far * da, b + far * db
        push = (y[:, None] @ R)[:, 0]
        value, cost = -np.abs(s + push).sum(1), (h * y).sum(1)
        better = value - cost > best
        best = np.where(better, value - cost, best)
        prices = np.where(better[:, None], y, prices)
        empty |= -np.abs(push).sum(1) - cost > _SLACK * y.sum(1) * (1 + sizes / length).max(1)
    prices = prices * scale / length
    total = slopes + (prices[:, None] @ rows)[:, 0]
    dual = (np.minimum(total * low, total * high)).sum(1) - (prices * most).sum(1)
    dual -= _ROUNDING * (prices * sizes).sum(1)
    found = np.where(empty, np.inf, np.fmax(found, dual))
    return found, np.clip(center + half * z, low, high), prices


def _least_in_ball(slopes: Array, low: Array, high: Array, radii: Array) -> Array:
    """Return the least <s, v> in balls around the centers of boxes, (boxes, sums)."""
    center = ((low + high) / 2)[..., None]
    found: Array = (slopes @ center)[..., 0] - radii[:, None] * np.linalg.norm(slopes, axis=2)
    return found


def _longest(*pairs: tuple[Array, Array]) -> Array:
    """Return the part of the way to the nearest border that steps go, (boxes, 1)."""
    far = np.ones(len(pairs[0][0]))
    for at, step in pairs:
        far = np.minimum(far, (_SHORTER * at / np.maximum(-step, _SHORTER * at)).min(1))
    return far[:, None]


@dataclass(frozen=True, eq=False)
class _Lines:
    """a u + b below and above every unit of boxes, (boxes, units) each; gap: between them.

    Attributes:
        below: a and b.
        above: the same.
        gap: between them in the middle.
        entry: the pre-activation u that a largest entry has its lines in; None where it is its own.
    """

    below: tuple[Array, Array]
    above: tuple[Array, Array]
    gap: Array
    entry: Any = None

    @classmethod
    def of(cls, block: Block, low: Array, high: Array) -> _Lines:
        high = np.maximum(low, high)
        if len(block.windows):
            return cls._of_windows(block.windows, low, high)
        found = np.empty((5, *low.shape))
        for number, curve in enumerate(block.curves):
            own = block.which == number
            found[:, :, own] = _beside(curve, low[:, own], high[:, own])
        return cls((found[0], found[1]), (found[2], found[3]), found[4])

    @classmethod
    def _of_windows(cls, windows: Any, low: Array, high: Array) -> _Lines:
        """Return u_i <= v <= h with u_i of the largest lower end and h of all, or v = u_i."""
        entry = windows[np.arange(len(windows)), low[:, windows].argmax(2)]
        floor = np.take_along_axis(low, entry, 1)
        others = np.where(windows == entry[..., None], -np.inf, high[:, windows]).max(2)
        top, alone = high[:, windows].max(2), floor >= others
        middle = (floor + np.take_along_axis(high, entry, 1)) / 2
        one, none = np.ones_like(top), np.zeros_like(top)
        above = np.where(alone, 1.0, 0.0), np.where(alone, 0.0, top)
        return cls((one, none), above, np.where(alone, 0.0, top - middle), entry)


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
    if np.isfinite(curve.window[1]):  # a wave, whose bends are known between two ends
        lost = (ends[0] < curve.window[0]) | (ends[1] > curve.window[1])
        below, above = (
            (torch.where(lost, 0.0, slope), torch.where(lost, end, value))
            for (slope, value), end in ((below, -1.0), (above, 1.0))
        )
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
        """Go back: given are factors of blocks (boxes or 1, sums, units), and constants."""
        sums, factors = values.shape[1], dict(given)
        self.pushes = [np.zeros((boxes, sums, x.gap.shape[1])) for x in lines]
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
            if line.entry is not None:
                spread = np.zeros((boxes, sums, len(argument.offset)))
                at = np.arange(boxes)[:, None, None], np.arange(sums)[:, None], line.entry[:, None]
                np.add.at(spread, at, through)
                through = spread
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
    ball: Array | None = None,
) -> tuple[tuple[Array, Array], Array]:
    """Return the ends of sums such as pre-activations, (boxes, units), and sizes of slopes."""
    both = np.concatenate([np.eye(len(argument.offset)), -np.eye(len(argument.offset))])
    given = {k: (both @ part.T)[None] for k, part in argument.parts.items()}
    way = _Way(composition, lines, given, (both @ argument.offset)[None], len(low))
    up, down = np.maximum(way.slopes, 0), np.minimum(way.slopes, 0)
    inner = (up @ low[..., None] + down @ high[..., None])[..., 0]
    if ball is not None:
        inner = np.maximum(inner, _least_in_ball(way.slopes, low, high, ball))
    value = way.values + inner
    units = len(argument.offset)
    return (value[:, :units], -value[:, units:]), np.abs(way.slopes[:, :units])


def output_ends(composition: Composition, low: Array, high: Array) -> tuple[Array, Array]:
    """Return ends of outputs, (boxes, outputs) each, of inputs in boxes."""
    lines = list[_Lines]()
    for block in composition.blocks:
        lines.append(_Lines.of(block, *_ends(composition, lines, block.argument, low, high)[0]))
    found = _ends(composition, lines, composition.output, low, high)[0]
    return found[0], found[1]


def halved(boxes: Boxes) -> tuple[Array, Array]:
    """Return the ends of both halves of boxes."""
    rows, axis = np.arange(len(boxes)), boxes.off.argmax(1)
    flat = boxes.off[rows, axis] <= 0
    axis[flat] = (boxes.high - boxes.low)[flat].argmax(1)
    middle = (boxes.low[rows, axis] + boxes.high[rows, axis]) / 2
    low, high = boxes.low.copy(), boxes.high.copy()
    low[rows, axis] = high[rows, axis] = middle
    return np.concatenate([boxes.low, low]), np.concatenate([high, boxes.high])
