"""Branch and bound over the sides of units: each is held on one side of its kink, then the other.

A node holds units between ends of their own, on which the lines beside them are closer; that its
inputs keep to the ends counts with multipliers (Beta-CROWN, see `lines`). Hundreds of nodes are
bounded together by a few steps from what their parents have found, and the unit whose lines are off
by most, where the bound is attained on them, is split next.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from liftednet.lazy import cvxpy as cp

from ..bounds.curves import Array
from .composition import Block, Composition
from .halving import Rows
from .lines import Least, Lines, Raised, Sums, Way

_ROOT, _STEPS, _RATE = 40, 4, 0.2  # steps of the first node, of others, and how wide they are
_AT_ONCE = 256  # nodes that are split together
_ENTRIES = 40_000_000  # of all nodes, some gigabyte
_WIDTH, _TURNED = 1e-2, 1e-6  # of the gap in the middle, that counts beside what is off, by chords
_SMALL = 1e-10  # that lines are off by, relative and by rounding, where a unit counts as straight


Stated = Callable[[Any, Any], tuple[Any, list[Any]]]


@dataclass(frozen=True, eq=False)
class Nodes(Rows):
    """Nodes of the tree, one row each.

    Attributes:
        bound: no input in it has less, (nodes,).
        low: ends of all pre-activations, (nodes, units).
        high: the same.
        mix: of lines, (nodes, units).
        held: multipliers of the ends, (nodes, units).
        weights: of sums, (nodes, sums).
        worth: what splitting a unit may bring, (nodes, units); 0 of those that are straight.
        rate: of steps, (nodes,); 0 of leaves that are solved.
    """

    bound: Array
    low: Array
    high: Array
    mix: Array
    held: Array
    weights: Array
    worth: Array
    rate: Array


class Tree:
    """The least of weighted sums over a set of inputs, from below.

    Attributes:
        nodes: that are open.
        count: how many there have been.
        bound: no input has less, or less than the cutoff.
        cutoff: from which on nodes are of no interest; whoever finds better answers lowers it.
    """

    def __init__(
        self,
        composition: Composition,
        sums: Sums,
        least: Least,
        largest: Array,
        lines: Sequence[Lines],
        weights: Array,
        scales: Array,
        stated: Stated,
    ) -> None:
        """Bound the first nodes.

        Args:
            composition: the network, without windows.
            sums: of inputs and units.
            least: of slopes and values of lines, what is bounded, and where it is least.
            largest: sizes of inputs, (1, inputs).
            lines: of all units.
            weights: of the sums in each of the first nodes, (nodes, sums).
            scales: of steps in the weights, (sums,); 0 where a weight stays.
            stated: of x and lines of the sums, or of one weighted sum where weights stay, in CVXPY:
                what is to be least, what is to hold of these lines, and what else.
        """
        self.composition, self.sums, self.least = composition, sums, least
        self.largest, self.scales = largest, scales
        self.cuts = np.cumsum([0, *map(len, composition.blocks)])
        low, high, mix = (
            np.repeat(_together([getattr(x, name) for x in lines], 1), len(weights), 0)
            for name in ("low", "high", "mix")
        )
        lowest, rate = (np.full(len(weights), x) for x in (-np.inf, _RATE))
        first = Nodes(lowest, low, high, mix, 0 * mix, weights, 0 * mix, rate)
        self.nodes, self.x = self.bounded(first, _ROOT)
        self.count, self.bound = len(weights), float(self.nodes.bound.min())
        self.cutoff = np.inf
        rows, (_, functions, inputs) = self.nodes.low.shape[1], sums.slopes.shape
        functions = functions if scales.any() else 1
        shapes = (rows, inputs), rows, rows, (functions, inputs), functions
        x: Any = cp.Variable(inputs)
        self.given: list[Any] = [cp.Parameter(shape) for shape in shapes]
        matrix, least_u, most_u, slopes, values = self.given
        cost, self.limits = stated(x, slopes @ x + values)
        self.sides = [matrix @ x <= most_u, matrix @ x >= least_u] if rows else []
        self.leaf = cp.Problem(cp.Minimize(cost), [*self.sides, *self.limits])

    def rounds(self) -> Iterator[Array]:
        """Yield inputs of new nodes, (nodes, inputs), until none is below the cutoff."""
        yield self.x
        while True:
            nodes = self.nodes.of(self.nodes.bound < self.cutoff)
            self.bound = min(float(nodes.bound.min(initial=np.inf)), self.cutoff)
            self.nodes = nodes
            left = np.where(nodes.rate > 0, nodes.bound, np.inf)
            many = min(max(_AT_ONCE, len(left) // 16), int(np.isfinite(left).sum()))
            if not many or nodes.low.size > _ENTRIES:
                return
            order = np.argpartition(left, many - 1)
            some, found = nodes.of(order[:many]), nodes.of(order[many:])
            done, points = some.worth.max(1, initial=0.0) <= 0, []
            for own, step in ((~done, self.split), (done, self.solved)):
                if own.any():
                    new, x = step(some.of(own))
                    found, self.count = found.beside(new), self.count + len(x)
                    points.append(x)
            self.nodes = found
            yield np.concatenate(points)

    def split(self, nodes: Nodes) -> tuple[Nodes, Array]:
        """Return both sides of the unit of each node that is worth most."""
        unit, rows = nodes.worth.argmax(1), np.arange(len(nodes.bound))
        at = self.places(nodes.low[rows, unit], nodes.high[rows, unit], unit)
        both = nodes.beside(nodes)
        both.high[rows, unit] = both.low[len(rows) + rows, unit] = at
        held, none = (  # multipliers may prove less on the lines of a half than none at all
            self.bounded(replace(both, bound=both.bound - np.inf, held=x), 0)[0].bound
            for x in (both.held, 0 * both.held)
        )
        both.held[none > held] = 0.0
        return self.bounded(both, _STEPS)

    def solved(self, nodes: Nodes) -> tuple[Nodes, Array]:
        """Return leaves with the multipliers of CLARABEL: on each of them all is affine."""
        inputs = self.composition.inputs
        points = np.zeros((len(nodes.bound), inputs))
        for row in range(len(points)):
            one = nodes.of([row])
            lines, sides = self.lines(one), list[Way]()
            for block in self.composition.blocks:
                sums = Sums.both_ways(block.argument, slice(None), inputs)
                sides.append(Way(self.composition, lines[: len(sides)], sums, 1))
            weights = None if self.scales.any() else one.weights[:, None]
            whole = Way(self.composition, lines, self.sums.weighted(weights), 1)
            offset = _together([x.values[:, : len(x.values[0]) // 2] for x in sides], 1)[0]
            slopes = [np.zeros((0, inputs)), *(x.slopes[0, : len(x.slopes[0]) // 2] for x in sides)]
            values = np.concatenate(slopes), one.low[0] - offset, one.high[0] - offset
            for parameter, value in zip(
                self.given, (*values, whole.slopes[0], whole.values[0]), strict=True
            ):
                parameter.value = value
            with warnings.catch_warnings(action="ignore", category=UserWarning):  # any bound holds
                self.leaf.solve(solver=cp.CLARABEL)
            nodes.rate[row] = 0.0
            if self.leaf.status == cp.INFEASIBLE:
                nodes.bound[row] = np.inf
            if self.leaf.status not in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE):
                continue
            points[row] = self.leaf.variables()[0].value
            prices = np.ravel(self.limits[0].dual_value)
            if self.sides:
                nodes.held[row] = self.sides[0].dual_value - self.sides[1].dual_value
            if len(prices) < len(whole.values[0]):
                nodes.weights[row, 1:] = prices
            else:
                nodes.held[row] /= max(float(prices[0]), _SMALL)
        return self.bounded(nodes, 0)[0], points

    def places(self, low: Array, high: Array, units: Any) -> Array:
        """Return where units are split: at the knot nearest to the middle, or there."""
        found = (low + high) / 2
        which = np.concatenate([block.which for block in self.composition.blocks])
        number = np.searchsorted(self.cuts, units, side="right") - 1
        for k, block in enumerate(self.composition.blocks):
            for curve_number, curve in enumerate(block.curves):
                own = (number == k) & (which[units] == curve_number)
                if not own.any() or not curve.knots:
                    continue
                knots = np.array(curve.knots)
                inside = (low[own, None] < knots) & (knots < high[own, None])
                far = np.where(inside, np.abs(knots - found[own, None]), np.inf)
                near = np.where(inside.any(1), knots[far.argmin(1)], found[own])
                found[own] = near
        return found

    def lines(self, nodes: Nodes) -> list[Lines]:
        """Return the lines of all blocks."""
        ends = zip(self.composition.blocks, pairwise(self.cuts), strict=True)
        return [Lines.of(block, nodes.low[:, a:b], nodes.high[:, a:b]) for block, (a, b) in ends]

    def bounded(self, nodes: Nodes, steps: int) -> tuple[Nodes, Array]:
        """Return nodes with their bounds, and the inputs where these are attained on lines."""

        def apart(x: Array) -> list[Array]:
            return [x[:, None, a:b] for a, b in pairwise(self.cuts)]

        blocks = self.composition.blocks
        lines = self.lines(nodes)
        raised = Raised(apart(nodes.mix), apart(nodes.held), nodes.weights[:, None], self.scales)
        raised.climb(
            self.composition, lines, self.sums, self.least, self.largest, steps,
            nodes.rate[:, None, None],
        )  # fmt: skip
        way, rows = raised.way, len(nodes.bound)
        each = zip(blocks, lines, way.mix, way.pushes, raised.arguments, strict=True)
        worth = _together([_worth(*one) for one in each], rows)
        mix, held = (_together([x[:, 0] for x in y], rows) for y in (raised.mix, raised.held))
        found = Nodes(
            np.fmax(nodes.bound, raised.bound[:, 0]), nodes.low, nodes.high, mix, held,
            raised.weights[:, 0], worth,
            nodes.rate,
        )  # fmt: skip
        return found, raised.x[:, 0]


def _together(parts: Sequence[Array], rows: int) -> Array:
    """Return parts (rows, units) side by side; of no units where there are none."""
    return np.concatenate([np.zeros((rows, 0)), *parts], 1)


def _worth(block: Block, line: Lines, mix: Array, push: Array, u: Array) -> Array:
    """Return how far units are from their lines, times how much that counts, (nodes, units)."""
    slope, value = (x[:, 0] for x in line.on(push, mix))
    at, push = np.clip(u[:, 0], line.low, line.high), push[:, 0]
    share = np.where((push >= 0) == line.under, _TURNED, _WIDTH)
    off = np.abs(slope * at + value - block.mapped(at)) + share * line.gap
    straight = line.gap <= _SMALL * (1 + np.abs(line.low) + np.abs(line.high))
    return np.where(straight, 0.0, (np.abs(push) + 1e-12) * off)
