"""Bounds on functions of networks, and on derivatives, on many boxes of their inputs at once.

A convex function of inputs and outputs lies above its tangent, a sum of units, which has a line
below it on each box; a constraint g <= 0 lets only points pass where the line below g is at most 0.
What is left on each box is a linear program, bounded by weak duality. Boxes whose bounds are too
low are halved along the input that their lines are off by most.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Self

import numpy as np

from ..bounds.curves import RELU, Array
from .composition import Block, Combination, Composition
from .lines import ROUNDING, Sums, Way, lines_of

_STEPS, _SHORTER, _CLOSE = 12, 0.95, 0.05  # of the interior point method, and how far each goes
_RIDGE = 1e-12  # of the systems of that method, relative
_SLACK = 1e-9  # of a constraint, the same
_WIDTH = 1e-2  # of what lines are off by, that the width of a box counts for
_DRAWN = 4000  # points at which derivatives are taken first
_BOTH = 6  # units whose slopes are at each end in turn
_AT_ONCE, _ENTRIES = 512, 4_000_000  # boxes that are halved together, and numbers of their lines
_KEPT = 30_000_000  # numbers of all boxes
_NARROW = 1e-9  # of the width, that is not halved
_SMALL = 1e-6  # of what intervals say, that counts as a derivative of 0


def inside_of(composition: Composition, matrix: Array, offset: Array) -> Composition:
    """Return a network of x = M v + o as one of v."""
    none = np.zeros_like(offset)
    first = Combination({0: matrix.T}, offset, none, none)
    sources = first, *range(1, len(composition.blocks) + 1)
    blocks = [replace(x, argument=_through(x.argument, sources)) for x in composition.blocks]
    return Composition(matrix.shape[1], blocks, _through(composition.output, sources))


def _through(combination: Combination, sources: Sequence[int | Combination]) -> Combination:
    """Return a combination of other sources.

    Args:
        combination: of some.
        sources: of each, from the inputs on, its other number, or what it consists of.
    """
    found, offset, off = dict[int, Array](), combination.offset, combination.off
    for source, part in combination.parts.items():
        one = sources[source]
        if isinstance(one, int):
            found[one] = found[one] + part if one in found else part
            continue
        offset, off = offset + one.offset @ part, off + one.off @ np.abs(part)
        for below, matrix in one.parts.items():
            found[below] = found.get(below, 0.0) + matrix @ part
    return replace(combination, parts=found, offset=offset, off=off)


class Rows:
    """Fields with one row for each of several boxes or nodes."""

    def of(self, which: Any) -> Self:
        """Return some."""
        return type(self)(*(x[which] for x in vars(self).values()))

    def beside(self, other: Self) -> Self:
        """Return these and others."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return type(self)(*(np.concatenate(pair) for pair in pairs))


@dataclass(frozen=True, eq=False)
class Boxes(Rows):
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


def side_by_side(networks: Sequence[Composition]) -> Composition:
    """Return networks of the same inputs as one, whose outputs are those of all."""
    if len(networks) == 1:
        return networks[0]
    blocks, sizes = list[Any](), [len(one.output.offset) for one in networks]
    parts, first = dict[int, Array](), 0
    for one, size in zip(networks, sizes, strict=True):
        numbers = 0, *(len(blocks) + k + 1 for k in range(len(one.blocks)))
        blocks += [replace(x, argument=_through(x.argument, numbers)) for x in one.blocks]
        for source, part in _through(one.output, numbers).parts.items():
            whole = parts.setdefault(source, np.zeros((len(part), sum(sizes))))
            whole[:, first : first + size] = part
        first += size
    rest = (np.concatenate([getattr(x.output, name) for x in networks])
            for name in ("offset", "off", "size"))  # fmt: skip
    return Composition(networks[0].inputs, blocks, Combination(parts, *rest))


def kinked(composition: Composition) -> Composition:
    """Return a network whose largest entries are made of kinks, max(u, w) = u + max(w - u, 0)."""
    if not any(len(block.windows) for block in composition.blocks):
        return composition
    blocks = list[Block]()
    sources: list[int | Combination] = [0]

    def picked(combination: Combination, entries: Any) -> Combination:
        parts = {k: part[:, entries] for k, part in combination.parts.items()}
        rest = (x[entries] for x in (combination.offset, combination.off, combination.size))
        return Combination(parts, *rest)

    for block in composition.blocks:
        argument = _through(block.argument, sources)
        if not len(block.windows):
            blocks.append(replace(block, argument=argument))
            sources.append(len(blocks))
            continue
        best, *others = (picked(argument, entries) for entries in block.windows.T)
        flat = np.zeros(len(block), dtype=int)
        for other in others:
            blocks.append(Block(_difference(other, best), block.numbers[:0], (RELU,), flat))
            best = replace(best, parts={**best.parts, len(blocks): np.eye(len(flat))})
        sources.append(best)
    return replace(composition, blocks=blocks, output=_through(composition.output, sources))


def _difference(one: Combination, other: Combination) -> Combination:
    parts = dict(one.parts)
    for source, part in other.parts.items():
        parts[source] = parts.get(source, 0.0) - part
    offset, off, size = one.offset - other.offset, one.off + other.off, one.size + other.size
    return Combination(parts, offset, off, size)


def lined(
    composition: Composition,
    sums: Sums,
    low: Array,
    high: Array,
    limits: tuple[Array, Array],
    curved: Array | float = 0.0,
) -> Boxes:
    """Return boxes (boxes, inputs) with their bounds.

    Args:
        composition: of v.
        sums: below the objective, and below what is to be at most 0.
        low: of the boxes.
        high: the same.
        limits: G and h, (rows, inputs) and (rows,), of G v <= h.
        curved: what the halves of every input may bring beside lines, (boxes or 1, inputs).
    """
    boxes, functions = len(low), sums.constants.shape[1]
    lines, reach = lines_of(composition, low, high)
    way, largest = Way(composition, lines, sums, boxes), np.maximum(np.abs(low), np.abs(high))
    slopes, values = way.slopes, way.least(largest)
    rows = np.concatenate([slopes[:, 1:], np.repeat(limits[0][None], boxes, 0)], 1)
    most = np.concatenate([-values[:, 1:], np.repeat(limits[1][None], boxes, 0)], 1)
    bound, at, prices = _least(slopes[:, 0], low, high, rows, most)
    bound = bound + values[:, 0]
    weights = np.concatenate([np.ones((boxes, 1)), prices[:, : functions - 1]], 1)
    off = np.zeros_like(low) + curved
    for push, line, along in zip(way.pushes, lines, reach, strict=True):
        seen = (np.abs(push) * weights[..., None]).sum(1) * line.gap
        off = off + (seen[:, None] @ along)[:, 0]
    return Boxes(low, high, bound, at, widened(off, low, high))


def widened(reach: Array, low: Array, high: Array) -> Array:
    """Return what each input's width lets boxes be off by, of what a unit of it does."""
    wide = high - low
    off: Array = reach * wide
    off += _WIDTH * off.max(1, keepdims=True) * wide / wide.max(1, keepdims=True).clip(1e-300)
    return off


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
    with np.errstate(over="ignore"):
        prices = prices * scale / length
    prices = np.where(np.isfinite(prices), prices, 0.0)  # any bound it, none the box itself
    total = slopes + (prices[:, None] @ rows)[:, 0]
    dual = (np.minimum(total * low, total * high)).sum(1) - (prices * most).sum(1)
    dual -= ROUNDING * (prices * sizes).sum(1)
    found = np.where(empty, np.inf, np.fmax(found, dual))
    return found, np.clip(center + half * z, low, high), prices


def _longest(*pairs: tuple[Array, Array]) -> Array:
    """Return the part of the way to the nearest border that steps go, (boxes, 1)."""
    far = np.ones(len(pairs[0][0]))
    for at, step in pairs:
        far = np.minimum(far, (_SHORTER * at / np.maximum(-step, _SHORTER * at)).min(1))
    return far[:, None]


def halved(boxes: Boxes) -> tuple[Array, Array]:
    """Return the ends of both halves of boxes."""
    rows, axis = np.arange(len(boxes)), boxes.off.argmax(1)
    flat = boxes.off[rows, axis] <= 0
    axis[flat] = (boxes.high - boxes.low)[flat].argmax(1)
    middle = (boxes.low[rows, axis] + boxes.high[rows, axis]) / 2
    low, high = boxes.low.copy(), boxes.high.copy()
    low[rows, axis] = high[rows, axis] = middle
    return np.concatenate([boxes.low, low]), np.concatenate([high, boxes.high])


def slopes_over(
    network: Composition, box: tuple[Array, Array], gap: float, seconds: float
) -> tuple[Array, Array, Array]:
    """Return bounds on derivatives over a box, derivatives that are attained, and where.

    Args:
        network: without windows.
        box: the least and the largest inputs, (inputs,) each.
        gap: between both, as a share of the largest derivative that was seen of an output.
        seconds: after which they are returned as they are.

    Returns:
        The least and the largest, (2, outputs, inputs), twice; and (2, outputs, inputs, inputs).
    """
    until, outputs = time.perf_counter() + seconds, len(network.output.offset)
    found = []
    for output in range(outputs):
        left = until - time.perf_counter()
        end = time.perf_counter() + left / (outputs - output)
        found.append(_Slopes(network, output, box).halved(gap, end))
    bounds, attained, at = (np.stack(x, 1) for x in zip(*found, strict=True))
    return bounds, attained, at


class _Slopes:
    """Derivatives of one output, and the negative ones, (2, inputs), from below.

    Back from an output, a unit counts for p and its pre-activation for phi'(u) p (Jordan, Dimakis,
    Exactly Computing the Local Lipschitz Constant of ReLU Networks, 2020). On a box of inputs lines
    tell the ends of u, and so those of phi'(u). A derivative is linear in each phi'(u), and extreme
    where all are at ends: those that count most are tried in all ways, of others p and phi'(u) are
    intervals. Boxes on which it may be less or more than anywhere else are halved, so that kinks
    come apart: where those in a box meet at a point, each way is a piece, and its derivative
    attained.
    """

    def __init__(self, network: Composition, output: int, box: tuple[Array, Array]) -> None:
        self.network, self.output, self.box = network, output, box
        self.signs = np.repeat([[1.0], [-1.0]], network.inputs, 1)
        self.least = np.full((2, network.inputs), np.inf)
        self.at = np.zeros((2, network.inputs, network.inputs))
        self.cuts = np.cumsum([len(block) for block in network.blocks])[:-1]
        self.drawn = np.random.default_rng(0)
        self.tried(self.drawn.uniform(*box, (_DRAWN, network.inputs)))

    def tried(self, x: Array) -> None:
        """Keep the least derivatives at points, (points, inputs)."""
        direction = np.eye(len(self.network.output.offset))[[self.output] * len(x)]
        each = self.signs[:, None] * self.network.gradient(x, direction)
        better, best = each.min(1) < self.least, each.argmin(1)
        self.least = np.minimum(self.least, each.min(1))
        self.at = np.where(better[..., None], x[best], self.at)

    def halved(self, gap: float, until: float) -> tuple[Array, Array, Array]:
        """Return bounds, derivatives that are attained, and where, from halving boxes."""
        (low, high), inputs = self.box, self.network.inputs
        boxes = self.bounded(low[None], high[None])
        scale = max(np.abs(self.least).max(), _SMALL * np.abs(boxes.bound).max())
        bound = np.full((2, inputs), -np.inf)
        widest = max((len(x.argument.offset) for x in self.network.blocks), default=1)
        most = max(1, min(_AT_ONCE, _ENTRIES // (2 * widest * inputs)))
        while True:
            wanted = self.least - 0.9 * gap * scale
            boxes = boxes.of((boxes.bound < wanted).any((1, 2)))
            bound = np.maximum(bound, np.minimum(boxes.bound.min(0, initial=np.inf), wanted))
            narrow = (boxes.high - boxes.low <= _NARROW * (high - low)).all(1)
            worst = np.where(narrow, np.inf, (boxes.bound - wanted).min((1, 2)))
            many = min(most, int((~narrow).sum()))
            if not many or time.perf_counter() > until or boxes.bound.size > _KEPT:
                bound = np.minimum(bound, self.least)
                return self.signs * bound, self.signs * self.least, self.at
            order = np.argpartition(worst, many - 1)
            found = self.bounded(*halved(boxes.of(order[:many])))
            share = self.drawn.uniform(0.25, 0.75, found.low.shape)  # a middle may be on a kink
            steps = 10 ** self.drawn.uniform(-3, 0, (2, inputs, 1)) * (high - low)
            beside = self.at + steps * self.drawn.normal(size=self.at.shape)
            self.tried(found.low + share * (found.high - found.low))
            self.tried(np.clip(beside, low, high).reshape(-1, inputs))
            boxes = boxes.of(order[many:]).beside(found)

    def bounded(self, low: Array, high: Array) -> Boxes:
        """Return boxes (boxes, inputs) with bounds (boxes, 2, inputs)."""
        lines, reach = lines_of(self.network, low, high)
        parts = [
            block.mapped(line.low, line.high, function="slopes")
            for block, line in zip(self.network.blocks, lines, strict=True)
        ]
        ends = np.concatenate([np.zeros((2, len(low), 0)), *parts], 2)
        pushes, _, size = self.back(ends)
        gap = np.ptp(ends, 0) * np.abs(pushes).max(0)
        off = np.zeros_like(low)
        for own, along in zip(self.apart(gap), reach, strict=True):
            off += (own[:, None] @ along)[:, 0]
        which = np.argsort(-gap, 1)[:, :_BOTH]
        which = which[:, : np.count_nonzero(np.take_along_axis(gap, which, 1), 1).max()]
        at, found = (np.arange(len(low))[:, None], which), list[Array]()
        for sides in product((0, 1), repeat=which.shape[1]):
            one = ends.copy()
            one[:, *at] = ends[np.array(sides, dtype=int), *at]
            found.append(self.back(one)[1])
        least, most = np.min(found, 0)[0], np.max(found, 0)[1]
        bound = np.stack([least, -most], 1) - ROUNDING * size[:, None]
        return Boxes(low, high, bound, low, widened(off, low, high))

    def apart(self, x: Array) -> list[Array]:
        """Return what there is of the units of each block, of all, (..., units)."""
        return np.split(x, self.cuts, -1)[: len(self.network.blocks)]

    def back(self, ends: Array) -> tuple[Array, Array, Array]:
        """Return the ends of p and of derivatives, (2, boxes, ...), and sizes of their terms.

        Args:
            ends: of phi'(u) of all units, (2, boxes, units).
        """
        network, slopes = self.network, self.apart(ends)
        pushes = [np.zeros((3, 1, len(x))) for x in network.blocks]  # both ends, and sizes
        pushes.insert(0, np.zeros((3, 1, network.inputs)))

        def through(combination: Combination, push: Array, which: Any = slice(None)) -> None:
            for source, matrix in combination.parts.items():
                back = matrix[:, which].T
                middle, half = (push[0] + push[1]) / 2 @ back, (push[1] - push[0]) / 2 @ abs(back)
                added = np.stack([middle - half, middle + half, push[2] @ abs(back)])
                pushes[source] = pushes[source] + added

        through(network.output, np.ones((3, 1, 1)), [self.output])
        for number in range(len(network.blocks), 0, -1):
            push, slope = pushes[number], slopes[number - 1]
            each = (slope[:, None] * push[:2]).reshape(4, *slope.shape[1:])
            size = push[2] * np.abs(slope).max(0)
            through(network.blocks[number - 1].argument, np.stack([each.min(0), each.max(0), size]))
        p = [np.broadcast_to(x[:2], (2, ends.shape[1], x.shape[2])) for x in pushes[1:]]
        return np.concatenate([ends[..., :0], *p], 2), pushes[0][:2], pushes[0][2]
