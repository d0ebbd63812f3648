"""A first answer: projected steps on the input of a network, from the best of many points.

Points are drawn in the region of the inputs, {v : low <= G v <= high}: on rays from its center, or
everywhere in a box. Steps go along the gradient, as wide as the region and shorter with every one;
what leaves the region is drawn back towards the center, and comes to lie on its border.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from liftednet.lazy import cvxpy as cp
from liftednet.lazy import sparse
from liftednet.solvers.mixed_integer import Program, Told, branch_and_bound

from ..bounds.curves import Array
from .boxes import Part, can_be_boxed, halved, lined
from .cvxpy_network import Graph

if TYPE_CHECKING:
    from cvxpy.expressions.expression import Expression

_DRAWN, _DRAWN_ONE_BY_ONE = 512, 64  # where the objective is affine, and where it is not
_KEPT, _KEPT_ONE_BY_ONE = 48, 8
_STEPS = 50
_FIRST, _LAST = 0.3, 1e-3  # of the width of the region, the length of steps
_SHORT = 0.03  # the same of the first one from a point that is good
_CORNERS = 4  # times that the corner along the gradient is tried
_TINY = 1e-300
_FARTHEST = 10.0  # along a ray that does not end
_AT_ONCE = 256  # boxes that are halved together, at least
_BOXES = 300_000  # that are kept, some hundred megabytes


Both = Callable[[Array], tuple[Array, Array]]


@dataclass(frozen=True, eq=False)
class Affine:
    """J v + c of the entries of some variables, one after another.

    Attributes:
        matrix: J, (entries, entries of the variables).
        offset: c, (entries,).
    """

    matrix: Array
    offset: Array


def affine_in(expression: Any, variables: Sequence[Any]) -> Affine:
    """Return an affine expression of CVXPY in variables, whose values become 0."""
    for variable in expression.variables():
        variable.save_value(np.zeros(variable.shape))
    return linear_in(expression, variables)


def linear_in(expression: Any, variables: Sequence[Any]) -> Affine:
    """Return the derivatives of an expression, and its value, where its variables are."""
    slopes, size = expression.grad, max(expression.size, 1)
    parts = [
        slopes[x].toarray().T
        if sparse.issparse(slopes.get(x))
        else np.broadcast_to(np.asarray(slopes.get(x, 0.0), dtype=float), (size, max(x.size, 1)))
        for x in variables
    ]
    matrix = np.concatenate(parts, axis=1) if parts else np.zeros((size, 0))
    return Affine(matrix, np.asarray(expression.value, dtype=float).flatten(order="F"))


@dataclass(frozen=True, eq=False)
class Region:
    """{v : low <= G v <= high}, with a point inside it.

    Attributes:
        rows: G, (rows, entries).
        low: (rows,).
        high: (rows,).
        center: as far from the border as a ball fits in.
        box: whether G is the identity.
        whole: whether no other constraint is left.
    """

    rows: Array
    low: Array
    high: Array
    center: Array
    box: bool
    whole: bool = True

    @cached_property
    def ends(self) -> tuple[Array, Array]:
        """The ends of every entry of v, as far as rows of one entry tell them, (entries,) each."""
        single = (self.rows != 0).sum(1) == 1
        which = np.abs(self.rows[single]).argmax(1)
        factor = self.rows[single, which]
        both = np.stack([self.low[single], self.high[single]]) / factor
        low, high = np.full(len(self.center), -np.inf), np.full(len(self.center), np.inf)
        np.maximum.at(low, which, both.min(0))
        np.minimum.at(high, which, both.max(0))
        return low, high

    @property
    def together(self) -> tuple[Array, Array, Array]:
        """Rows of several entries, and their ends."""
        several = (self.rows != 0).sum(1) > 1
        return self.rows[several], self.low[several], self.high[several]

    @property
    def width(self) -> Array:
        """The width along every entry of v, as far as single rows tell it, else 1, (entries,)."""
        low, high = self.ends
        return np.where(np.isfinite(high - low), high - low, 1.0)

    def drawn(self, samples: int, generator: np.random.Generator) -> Array:
        """Return points of the region, (samples, entries)."""
        if self.box:
            return generator.uniform(self.low, self.high, (samples, len(self.low)))
        rays = generator.normal(size=(samples, len(self.center))) * self.width
        far = self.inside(self.center + _FARTHEST * rays) - self.center
        share = generator.uniform(size=(samples, 1)) ** (1 / far.shape[1])
        found: Array = self.center + share * far
        return found

    def descended(self, v: Array, both: Both, first: float = _FIRST) -> Array:
        """Return the best points on the way of projected steps, (points, entries), best first.

        Args:
            v: where they begin.
            both: returns values, (points,), and gradients, (points, entries).
            first: length of the first step, in widths of the region.
        """
        value, gradient = both(v)
        kept, least, width = v.copy(), value.copy(), self.width
        for length in np.geomspace(first, _LAST, _STEPS):
            step = gradient * width**2
            size = np.abs(step / np.maximum(width, _TINY)).max(1, keepdims=True)
            v = self.inside(v - length * step / np.maximum(size, _TINY))
            value, gradient = both(v)
            better = value < least
            kept[better], least[better] = v[better], value[better]
        for _ in range(_CORNERS if self.box else 0):  # steps are short where others are steeper
            v = np.where(both(kept)[1] > 0, self.low, self.high)
            value = both(v)[0]
            better = value < least
            kept[better], least[better] = v[better], value[better]
        return kept[np.argsort(least)]

    def inside(self, v: Array) -> Array:
        """Return v where it is inside, else where the ray from the center to it leaves."""
        if self.box:
            return np.clip(v, self.low, self.high)
        ray = v - self.center
        along, start = ray @ self.rows.T, self.rows @ self.center
        equal = self.high <= self.low
        if equal.any():  # the nearest direction in which these rows stand still
            held = self.rows[equal]
            ray = ray - np.linalg.lstsq(held, (ray @ held.T).T, rcond=None)[0].T
            along = ray @ self.rows.T
        room = np.where(along > 0, self.high - start, start - self.low)
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = np.where((np.abs(along) > 0) & ~equal, room / np.abs(along), np.inf)
        found: Array = self.center + np.clip(ends.min(1, initial=1.0), 0, 1)[:, None] * ray
        return found


def region_of(
    graphs: Sequence[Graph], variables: Sequence[Any], constraints: Sequence[Any]
) -> Region | None:
    """Return where x of all graphs is in its box and the linear constraints on it hold, or None."""
    rows, low, high = [], [], []
    for graph in graphs:
        x = affine_in(graph.x, variables)
        rows.append(x.matrix)
        low.append(graph.box[0] - x.offset)
        high.append(graph.box[1] - x.offset)
    known, whole = {variable.id for variable in variables}, True
    own = [one for variable in variables for one in variable.domain]
    for one in (*constraints, *own):
        inside = {variable.id for variable in one.variables()}
        equal = isinstance(one, cp.constraints.Equality)
        linear = equal or isinstance(one, cp.constraints.Inequality)
        if linear and inside <= known and one.expr.is_affine():
            left = affine_in(one.expr, variables)
            rows.append(left.matrix)
            low.append(-left.offset if equal else np.full(len(left.offset), -np.inf))
            high.append(-left.offset)
        else:
            whole = False
    matrix, lows, highs = np.concatenate(rows), np.concatenate(low), np.concatenate(high)
    box = len(rows) == 1 and np.array_equal(matrix, np.eye(len(matrix)))
    if box:
        return Region(matrix, lows, highs, (lows + highs) / 2, True, whole)
    center = _center(matrix, lows, highs)
    return None if center is None else Region(matrix, lows, highs, center, False, whole)


def _center(rows: Array, low: Array, high: Array) -> Array | None:
    """Return the center of a ball that is as large as fits between rows that are not equal."""
    lengths = np.where(high > low, np.linalg.norm(rows, axis=1), 0.0)[:, None]
    entries = rows.shape[1]
    above, below = np.hstack([rows, lengths]), np.hstack([rows, -lengths])
    free = np.full(entries, np.inf)
    program = Program(
        sparse.csr_array(np.concatenate([above, below])),
        np.concatenate([np.full(len(rows), -np.inf), low]),
        np.concatenate([high, np.full(len(rows), np.inf)]),
        np.append(-free, 0.0), np.append(free, 1e3), np.zeros(entries + 1, dtype=bool),
    )  # fmt: skip
    found = branch_and_bound(program, np.append(np.zeros(entries), -1.0), gap=0.0)
    return None if found.z is None else found.z[:-1]


@dataclass(eq=False)
class Search:
    """Steps over v, the variables in x, down an objective that is affine or convex.

    Attributes:
        graphs: of the samples.
        variables: in x.
        objective: to be minimized.
        region: of v.
    """

    graphs: Sequence[Graph]
    variables: Sequence[Any]
    objective: Expression
    region: Region

    def __post_init__(self) -> None:
        """Take the objective apart, where it is affine."""
        self._x = [affine_in(graph.x, self.variables) for graph in self.graphs]
        self._ends = np.cumsum([x.size for x in self.variables])[:-1]
        outputs = [graph.y for graph in self.graphs]
        self._seen = [*self.variables, *outputs]
        self._affine = affine_in(self.objective, self._seen) if self.objective.is_affine() else None

    def parts(self) -> list[Part]:
        """Return the networks from v to their outputs, with what these cost."""
        assert self._affine is not None
        sizes = [graph.y.size for graph in self.graphs]
        first = len(self.region.center)
        costs = np.split(self._affine.matrix[0, first:], np.cumsum(sizes)[:-1])
        return [
            Part.of(graph.composition, x.matrix, x.offset, cost)
            for graph, x, cost in zip(self.graphs, self._x, costs, strict=True)
        ]

    def answers(self, v: Array) -> list[Array]:
        """Return the outputs of all graphs, (points, outputs) each, at v (points, entries)."""
        return [
            graph.composition.forward(v @ x.matrix.T + x.offset)
            for graph, x in zip(self.graphs, self._x, strict=True)
        ]

    def assign(self, v: Array) -> None:
        """Give v, and the outputs there, to the variables."""
        for variable, value in zip(self.variables, np.split(v, self._ends), strict=True):
            variable.save_value(value.reshape(variable.shape, order="F"))
        for graph, y in zip(self.graphs, self.answers(v[None]), strict=True):
            graph.y.save_value(y[0])

    def values(self, v: Array) -> tuple[Array, Array]:
        """Return the objective, (points,), and its derivatives in v and outputs as they stand."""
        outputs = self.answers(v)
        if self._affine is not None:
            both = np.concatenate([v, *outputs], axis=1)
            matrix, offset = self._affine.matrix, self._affine.offset
            return both @ matrix[0] + offset[0], np.repeat(matrix, len(v), 0)
        found = []
        for point in v:
            self.assign(point)
            found.append(linear_in(self.objective, self._seen))
        return np.array([x.offset[0] for x in found]), np.concatenate([x.matrix for x in found])

    def gradients(self, v: Array, slopes: Array) -> Array:
        """Return the gradients of the objective, (points, entries)."""
        entries = v.shape[1]
        found, first = slopes[:, :entries].copy(), entries
        for graph, x in zip(self.graphs, self._x, strict=True):
            outputs = graph.y.size
            push = slopes[:, first : first + outputs]
            at = v @ x.matrix.T + x.offset
            found += graph.composition.gradient(at, push) @ x.matrix
            first += outputs
        return found

    def best(self, given: Sequence[Array], generator: np.random.Generator) -> Array:
        """Return the ends of steps from the best of points that are given or drawn, best first."""
        many = _DRAWN if self._affine is not None else _DRAWN_ONE_BY_ONE
        drawn = self.region.drawn(many, generator)
        v = np.concatenate([*(x[None] for x in given), self.region.center[None], drawn])
        kept = _KEPT if self._affine is not None else _KEPT_ONE_BY_ONE
        return self.stepped(v[np.argsort(self.values(v)[0])[:kept]])

    def stepped(self, v: Array, first: float = _FIRST) -> Array:
        """Return the best points on the way of projected steps, the best first."""

        def both(v: Array) -> tuple[Array, Array]:
            value, slopes = self.values(v)
            return value, self.gradients(v, slopes)

        return self.region.descended(v, both, first)

    @property
    def can_be_boxed(self) -> bool:
        """Whether halving of boxes can prove what is least."""
        ends = np.concatenate(self.region.ends)
        alike = all(can_be_boxed(graph.composition) for graph in self.graphs)
        affine = self._affine is not None and self.region.whole
        return bool(affine and alike and np.isfinite(ends).all())

    def bounded(
        self, best: float, cutoff: Callable[[float], float], seconds: float, told: Told
    ) -> tuple[float, Array | None, int]:
        """Return a bound of the objective by halving boxes, a better answer, and how many boxes.

        Args:
            best: the objective of the best answer there is.
            cutoff: returns what a bound is to be at least, given an answer's objective.
            seconds: after which what is proven until then is returned.
            told: called with the best objective, the bound, and the number of boxes.
        """
        assert self._affine is not None
        started, parts, point = time.perf_counter(), self.parts(), None
        cost, shift = self._affine.matrix[0, : len(self.region.center)], self._affine.offset[0]
        limits, count = self.region.together, 1
        low, high = self.region.ends
        boxes = lined(parts, cost, low[None], high[None], limits)
        while True:
            bound = float(boxes.bound.min(initial=np.inf)) + shift
            told(best, min(bound, cutoff(best)), count)
            late = time.perf_counter() - started > seconds or len(boxes) > _BOXES
            if bound >= cutoff(best) or late:
                return min(bound, cutoff(best)), point, count
            many = min(max(_AT_ONCE, len(boxes) // 8), len(boxes))
            order = np.argpartition(boxes.bound, many - 1)
            below = halved(boxes.of(order[:many]))
            found = lined(parts, cost, *below, limits)
            corners = self.region.inside(found.at)
            values = self.values(corners)[0]
            if values.min() < best:
                best, point = float(values.min()), corners[values.argmin()]
            boxes = boxes.of(order[many:]).beside(found)
            boxes, count = boxes.of(boxes.bound + shift < cutoff(best)), count + len(found)

    def refined(self, v: Array) -> Array:
        """Return the best point on the way of short steps from one, (entries,)."""
        found: Array = self.stepped(v[None], _SHORT)[0]
        return found
