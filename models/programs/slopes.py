"""The least and the largest derivatives of a network in its inputs over a box, proven.

Back from an output, a unit counts for p and its pre-activation for phi'(u) p (Jordan, Dimakis,
Exactly Computing the Local Lipschitz Constant of ReLU Networks, 2020). On a box of inputs lines
tell the ends of u, and so those of phi'(u). A derivative is linear in each phi'(u), and extreme
where all are at ends: those that count most are tried in all ways, of others p and phi'(u) are
intervals. Boxes on which it may be less or more than anywhere else are halved, so that kinks
come apart: where those in a box meet at a point, each way is a piece, and its derivative attained.
"""

from __future__ import annotations

import time
from itertools import product
from typing import Any

import numpy as np
import torch

from ..bounds.curves import Array, Curve
from .composition import Combination, Composition
from .halving import Boxes, halved, widened
from .lines import ROUNDING, lines_of

_DRAWN = 4000  # points at which derivatives are taken first
_BOTH = 6  # units whose slopes are at each end in turn
_AT_ONCE, _ENTRIES = 512, 4_000_000  # boxes that are halved together, and numbers of their lines
_KEPT = 30_000_000  # numbers of all boxes
_NARROW = 1e-9  # of the width, that is not halved
_SMALL = 1e-6  # of what intervals say, that counts as a derivative of 0


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
    """Derivatives of one output, and the negative ones, (2, inputs), from below."""

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
            block.by_curve(_ends, np.ascontiguousarray(line.low), np.ascontiguousarray(line.high))
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


def _ends(curve: Curve, *u: Array) -> Array:
    """Return the ends of phi' between those of u, (2, boxes, units)."""
    found: Array = torch.stack(curve.slopes(*map(torch.from_numpy, u))).numpy()
    return found
