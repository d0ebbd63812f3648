"""A composition over a box as rows of a mixed-integer program, and the ranges of its units.

Every unit v = phi(u) has a range [l, h] of u, from intervals and, in the time that is given, from
linear programs over all rows before it. Where phi is linear on [l, h] v is affine in the columns
that are there. Else [l, h] falls into pieces t_0 < t_1 < ... < t_K, filled one after another,

    u = t_0 + sum_k d_k,  0 <= d_k <= h_k,  h_k s_k <= d_k (k < K),  d_k <= h_k s_{k-1} (k > 1),
    v = phi(t_0) + sum_k (c_k d_k - r_k),

with c_k the slope of the chord, s_k whole numbers 0 or 1, and r_k what phi is below its chord
(above where it is concave): 0 where phi is linear, at most what three tangents leave. d_1 follows
from u. Of a ReLU that is v >= 0, v >= u, v <= h s, v <= u - l (1 - s); the incremental form of
Markowitz and Manne, 1957. A smooth phi without pieces has a few lines below and above it, and no
whole numbers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from liftednet.curvature import Array, Curve
from liftednet.errors import DataError
from liftednet.lazy import sparse
from liftednet.solvers.mixed_integer import Program, least

from .composition import Block, Composition, Places

_OFF = 1e-9  # to which a reading of x may lie outside of its box
_FEW = 6  # entries of a row that is written several times
_EPS = float(np.finfo(float).eps)
Row = dict[int, float]
Splits = Mapping[tuple[int, int], Sequence[float]]  # by block and unit


@dataclass(frozen=True, eq=False)
class _Unit:
    """What a unit has in the program: columns from `first` on."""

    first: int = 0

    def columns(self, u: Any, v: float) -> list[float]:
        """Return their values at u and v = phi(u)."""
        return []


@dataclass(frozen=True, eq=False)
class _Stable(_Unit):
    """v is affine in u: none."""


@dataclass(frozen=True, eq=False)
class _Between(_Unit):
    """v lies between lines: one column."""

    def columns(self, u: Any, v: float) -> list[float]:
        return [v]


@dataclass(frozen=True, eq=False)
class _Pieces(_Unit):
    """Columns u, where it has one of its `own`, d_2 .. d_K, r_k where it bends, s_1 .. s_{K-1}."""

    ends: Array = field(default_factory=lambda: np.zeros(2))
    chords: Array = field(default_factory=lambda: np.zeros(1))
    bent: Sequence[int] = ()
    base: float = 0.0
    own: bool = False

    def columns(self, u: Any, v: float) -> list[float]:
        at, width = float(u), np.diff(self.ends)
        filled = np.clip(at - self.ends[:-1], 0, width)
        piece = min(int((at >= self.ends[1:-1]).sum()), len(width) - 1)
        rest = abs(self.base + float(self.chords @ filled) - v)
        rests = [rest if k == piece else 0.0 for k in self.bent]
        return [
            *([at] if self.own else []),
            *filled[1:],
            *rests,
            *(at >= self.ends[1:-1]).astype(float),
        ]


@dataclass(frozen=True, eq=False)
class _Largest(_Unit):
    """v is the largest of some entries: one column, and s of each entry."""

    window: Places = field(default_factory=lambda: np.zeros(1, dtype=int))

    def columns(self, u: Any, v: float) -> list[float]:
        chosen = np.zeros(len(self.window))
        chosen[int(np.argmax(u[self.window]))] = 1
        return [v, *chosen]


@dataclass(eq=False)
class Relaxation:
    """Rows that hold for z = [x, columns of the units] wherever y is the network's output at x.

    Attributes:
        composition: the network.
        program: the rows; columns 0 to inputs - 1 are x.
        states: (matrix, offset) of what each block gives, affine in z.
        output: the same of y.
        ranges: (lower, upper) of the pre-activations of each block.
        exact: whether the rows hold nowhere else.
        seconds: that linear programs have taken.
        units: of each block.
    """

    composition: Composition
    program: Program
    states: list[tuple[Any, Array]]
    output: tuple[Any, Array]
    ranges: list[tuple[Array, Array]]
    exact: bool
    seconds: float
    units: list[list[_Unit]]

    @property
    def whole(self) -> int:
        """How many whole numbers there are."""
        return int(self.program.whole.sum())

    def point(self, x: Array) -> Array:
        """Return z at x, (columns,)."""
        values, found = self.composition.values(x), [np.asarray(x, dtype=float)]
        for block, units, v in zip(self.composition.blocks, self.units, values[1:], strict=True):
            u = block.argument.of(values)
            for number, (unit, each) in enumerate(zip(units, v.tolist(), strict=True)):
                of = u if isinstance(unit, _Largest) else u[number]
                found.append(np.array(unit.columns(of, each)))
        return np.concatenate(found)

    def output_range(self) -> tuple[Array, Array]:
        """Return the least and the largest output, from the bounds of the columns."""
        return _intervals(*self.output, self.program.lower, self.program.upper)

    def off(self, z: Array) -> list[tuple[float, int, int, float]]:
        """Return by how much the value of smooth units at z is off phi(u), most first.

        Each with its block, its number, and u.
        """
        found = []
        for number, (block, (matrix, offset)) in enumerate(
            zip(self.composition.blocks, self.states, strict=True)
        ):
            if block.windows:
                continue
            sources = [z[: self.composition.inputs]]
            sources += [m @ z + c for m, c in self.states[:number]]
            u, v = block.argument.of(sources), matrix @ z + offset
            for unit in np.flatnonzero(np.abs(block.forward(u) - v) > 0).tolist():
                if not block.curves[unit].piecewise_linear:
                    off = abs(float(block.forward(u)[unit] - v[unit]))
                    found.append((off, number, unit, float(u[unit])))
        return sorted(found, reverse=True)


def relaxation(
    composition: Composition,
    box: tuple[Array, Array],
    *,
    seconds: float = 0.0,
    splits: Splits | None = None,
    known: Sequence[tuple[Array, Array]] = (),
) -> Relaxation:
    """Return a composition over a box as rows of a mixed-integer program.

    Args:
        composition: the network.
        box: the least and the largest x, (inputs,) each, finite.
        seconds: that linear programs which tighten ranges may take.
        splits: where pieces of smooth units end, by block and unit.
        known: ranges of the pre-activations of the blocks that were found before.
    """
    return _Builder(composition, box, seconds, splits or {}, known).built()


class _Builder:
    """A program under construction: bounds of columns, rows, and what blocks give."""

    def __init__(
        self,
        composition: Composition,
        box: tuple[Array, Array],
        seconds: float,
        splits: Splits,
        known: Sequence[tuple[Array, Array]],
    ) -> None:
        self.composition, self.splits, self.known = composition, splits, known
        self.left, self.spent = seconds, 0.0
        self.lower, self.upper = box[0].tolist(), box[1].tolist()
        self.whole = [False] * composition.inputs
        self.rows: list[Row] = []
        self.ends: list[tuple[float, float]] = []
        inputs = composition.inputs
        self.sources: list[tuple[Any, Array]] = [(sparse.eye_array(inputs), np.zeros(inputs))]
        self.exact = True

    def built(self) -> Relaxation:
        units, ranges = [], []
        for number, block in enumerate(self.composition.blocks):
            matrix, offset = self.combined(block.argument)
            ends = self.range(number, block, matrix, offset)
            ranges.append(ends)
            u = [
                (dict(zip(matrix.indices[a:b].tolist(), matrix.data[a:b].tolist(), strict=True)), c)
                for a, b, c in zip(matrix.indptr, matrix.indptr[1:], offset.tolist(), strict=False)
            ]
            affine, made = [], []
            for unit in range(len(block.windows) or len(block.curves)):
                value, recipe = (
                    self.largest(u, block.windows[unit], *ends)
                    if block.windows
                    else self.mapped(u[unit], block.curves[unit], (number, unit), *ends)
                )
                affine.append(value)
                made.append(recipe)
            self.sources.append((self.matrix([row for row, _ in affine]), _constants(affine)))
            units.append(made)
        output = self.combined(self.composition.output)
        states = [(self.widened(matrix), offset) for matrix, offset in self.sources[1:]]
        return Relaxation(
            self.composition, self.program(), states, output, ranges, self.exact, self.spent, units
        )

    def matrix(self, rows: Sequence[Row]) -> Any:
        counts = np.cumsum([0, *map(len, rows)])
        data = [x for row in rows for x in row.values()]
        places = [x for row in rows for x in row]
        return sparse.csr_array((data, places, counts), shape=(len(rows), len(self.lower)))

    def widened(self, matrix: Any) -> Any:
        found = sparse.csr_array(matrix, copy=True)
        found.resize(found.shape[0], len(self.lower))
        return found

    def combined(self, combination: Any) -> tuple[Any, Array]:
        """Return u = z M' + c of a combination of sources, M sparse."""
        total: Any = sparse.csr_array((len(combination.offset), len(self.lower)))
        offset = combination.offset.copy()
        for source, part in combination.parts.items():
            matrix, constant = self.sources[source]
            total = total + sparse.csr_array(part.T) @ self.widened(matrix)
            offset += constant @ part
        return sparse.csr_array(total), offset

    def program(self) -> Program:
        low, high = np.array(self.ends, dtype=float).reshape(-1, 2).T
        return Program(
            self.matrix(self.rows), low, high, np.array(self.lower), np.array(self.upper),
            np.array(self.whole),
        )  # fmt: skip

    def range(self, number: int, block: Block, matrix: Any, offset: Array) -> tuple[Array, Array]:
        """Return the ends of u: by intervals, from before, and by linear programs."""
        low, high = _intervals(matrix, offset, np.array(self.lower), np.array(self.upper))
        if number < len(self.known):
            cut = (self.known[number][0] > low) | (self.known[number][1] < high)
            low = np.maximum(low, self.known[number][0])
            high = np.minimum(high, self.known[number][1])
            for unit in np.flatnonzero(cut).tolist():  # which nothing else has to hold
                a, b = matrix.indptr[unit : unit + 2]
                row = dict(
                    zip(matrix.indices[a:b].tolist(), matrix.data[a:b].tolist(), strict=True)
                )
                self.row(row, low[unit] - offset[unit], high[unit] - offset[unit])
        if number and self.left > 0 and self.rows:
            self.tighten(block, matrix, offset, low, high)
        return low, np.maximum(low, high)

    def tighten(self, block: Block, matrix: Any, offset: Array, low: Array, high: Array) -> None:
        """Move the ends of what is not linear between them by linear programs, in place."""
        which = np.arange(len(low))
        if not block.windows:
            linear = [c.is_linear(a, b) for c, a, b in zip(block.curves, low, high, strict=True)]
            which = which[~np.array(linear)]
        if not len(which):
            return
        started, rows = time.perf_counter(), matrix[which].toarray()
        costs = np.concatenate([rows, -rows])[
            np.arange(2 * len(which)).reshape(2, -1).T.ravel()
        ]  # both ends of a unit, one after the other
        found = least(self.program(), costs, self.left).reshape(-1, 2)
        spent = time.perf_counter() - started
        self.left, self.spent = self.left - spent, self.spent + spent
        low[which] = np.maximum(low[which], _down(found[:, 0] + offset[which]))
        high[which] = np.minimum(high[which], -_down(found[:, 1] - offset[which]))

    # Units.

    def column(self, lower: float, upper: float, whole: bool = False) -> int:
        self.lower.append(lower)
        self.upper.append(upper)
        self.whole.append(whole)
        return len(self.lower) - 1

    def row(self, row: Row, low: float, high: float) -> None:
        self.rows.append(row)
        self.ends.append((low, high))

    def mapped(
        self,
        u: tuple[Row, float],
        curve: Curve,
        place: tuple[int, int],
        lows: Array,
        highs: Array,
    ) -> tuple[tuple[Row, float], _Unit]:
        """Return v = phi(u) as a row and a constant, with what it needs."""
        low, high = float(lows[place[1]]), float(highs[place[1]])
        if curve.is_linear(low, high):
            slope, value = curve.chord(low, high) if high > low else (0.0, curve.at(low))
            return (
                {k: slope * x for k, x in u[0].items() if slope},
                slope * u[1] + value,
            ), _Stable()
        splits = self.splits.get(place, ())
        if curve.piecewise_linear or splits:
            return self.pieces(u, curve, curve.pieces(low, high, splits))
        self.exact = False
        below, above = curve.below(low, high), curve.above(low, high)
        first = self.column(below[0][1], above[0][1])
        for lines, sign in ((below[1:], 1.0), (above[1:], -1.0)):
            for slope, value in lines:  # sign (v - slope u - value) >= 0
                row = {k: -sign * slope * x for k, x in u[0].items()}
                self.row({**row, first: sign}, sign * (value + slope * u[1]), math.inf)
        return ({first: 1.0}, 0.0), _Between(first)

    def pieces(
        self, u: tuple[Row, float], curve: Curve, ends: Sequence[float]
    ) -> tuple[tuple[Row, float], _Unit]:
        at, width = np.array(ends), np.diff(ends)
        first, own = len(self.lower), len(u[0]) > _FEW
        if own:
            self.column(ends[0], ends[-1])
            self.row({**u[0], first: -1.0}, -u[1], -u[1])
            u = {first: 1.0}, 0.0
        values = curve.forward(at)
        chords = np.diff(values) / width
        signs = [curve.sign(a, b) for a, b in pairwise(ends)]
        bent = [k for k, sign in enumerate(signs) if sign]
        count = len(width)
        later = [self.column(0.0, float(x)) for x in width[1:]]
        rests = {k: self.column(0.0, math.inf) for k in bent}
        switch = [self.column(0.0, 1.0, True) for _ in range(count - 1)]
        # d_1 = u - t_0 - d_2 - ...
        d: list[tuple[Row, float]] = [({**u[0], **dict.fromkeys(later, -1.0)}, u[1] - ends[0])]
        d += [({column: 1.0}, 0.0) for column in later]
        for k in range(count):
            row, constant = d[k]
            if k < count - 1:
                self.row({**row, switch[k]: -width[k]}, -constant, math.inf)
            if k:
                self.row({**row, switch[k - 1]: -width[k]}, -math.inf, -constant)
            else:
                self.row(row, -constant, width[0] - constant)
        v, constant = {k: chords[0] * x for k, x in u[0].items()}, values[0]
        constant += chords[0] * (u[1] - ends[0])
        for k, column in enumerate(later, start=1):
            v[column] = chords[k] - chords[0]
        for k in bent:
            self.exact = False
            largest = 0.0
            for slope, value in curve.tangents(ends[k], ends[k + 1]):
                # r <= sign ((c_k - slope) d_k + phi(t) - value - slope t)
                factor = signs[k] * (chords[k] - slope)
                most = signs[k] * (values[k] - value - slope * ends[k])
                most += 1e-12 * (1 + abs(values[k]) + abs(slope * ends[k]))
                row, shift = d[k]
                self.row(
                    {**{i: -factor * x for i, x in row.items()}, rests[k]: 1.0},
                    -math.inf, most + factor * shift,
                )  # fmt: skip
                largest = max(largest, most, most + factor * width[k])
            self.upper[rests[k]] = largest
            v[rests[k]] = -float(signs[k])
        unit = _Pieces(first, at, chords, bent, float(values[0]), own)
        return ({k: float(x) for k, x in v.items() if x}, float(constant)), unit

    def largest(
        self, u: Sequence[tuple[Row, float]], window: Places, lows: Array, highs: Array
    ) -> tuple[tuple[Row, float], _Unit]:
        """Return the largest of some pre-activations."""
        floor = float(lows[window].max())
        chosen = window[highs[window] >= floor]
        if len(chosen) == 1:
            row, constant = u[int(chosen[0])]
            return (dict(row), constant), _Stable()
        top = float(highs[chosen].max())
        first = self.column(floor, top)
        switch = [self.column(0.0, 1.0, True) for _ in chosen]
        for which, column in zip(chosen.tolist(), switch, strict=True):
            row, constant = u[which]
            below = {**{k: -x for k, x in row.items()}, first: 1.0}
            self.row(below, constant, math.inf)
            slack = top - float(lows[which])
            self.row({**below, column: slack}, -math.inf, constant + slack)
        self.row(dict.fromkeys(switch, 1.0), 1.0, 1.0)
        return ({first: 1.0}, 0.0), _Largest(first, chosen)


def tightened(
    found: Relaxation, rows: Program, columns: int, seconds: float
) -> tuple[tuple[Array, Array], list[tuple[Array, Array]]]:
    """Return a box and ranges of units within which all solutions of more rows lie.

    Args:
        found: over a larger box.
        rows: its program with rows that hold for what is sought alone, such as a bound on the
            objective.
        columns: of x.
        seconds: that linear programs may take.
    """
    started, program = time.perf_counter(), found.program
    box = program.lower[:columns].copy(), program.upper[:columns].copy()
    width = len(program.lower)
    sources = [(sparse.eye_array(columns, width, format="csr"), np.zeros(columns)), *found.states]
    places: list[tuple[Array, Array, Places]] = [(*box, np.arange(columns))]
    costs, offsets = [np.eye(columns, width)], [np.zeros(columns)]
    ranges = []
    for block, (low, high) in zip(found.composition.blocks, found.ranges, strict=True):
        ranges.append((low.copy(), high.copy()))
        matrix: Any = sparse.csr_array((len(low), width))
        offset = block.argument.offset.copy()
        for source, part in block.argument.parts.items():
            below, constant = sources[source]
            matrix, offset = matrix + sparse.csr_array(part.T) @ below, offset + constant @ part
        which = np.arange(len(low))
        if not block.windows:
            ends = zip(block.curves, low, high, strict=True)
            which = which[[not curve.is_linear(a, b) for curve, a, b in ends]]
        places.append((*ranges[-1], which))
        costs.append(matrix[which].toarray())
        offsets.append(offset[which])
    every, shift = np.concatenate(costs), np.concatenate(offsets)
    both = np.concatenate([every, -every])[np.arange(2 * len(every)).reshape(2, -1).T.ravel()]
    bounds = least(rows, both, seconds).reshape(-1, 2)
    low_ends, high_ends = _down(bounds[:, 0] + shift), -_down(bounds[:, 1] - shift)
    first = 0
    for low, high, which in places:
        last = first + len(which)
        low[which] = np.maximum(low[which], low_ends[first:last])
        high[which] = np.minimum(high[which], high_ends[first:last])
        first = last
    found.seconds += time.perf_counter() - started
    return box, ranges


def _constants(affine: Sequence[tuple[Row, float]]) -> Array:
    return np.array([constant for _, constant in affine])


def _intervals(matrix: Any, offset: Array, lower: Array, upper: Array) -> tuple[Array, Array]:
    """Return the ends of M z + c for z between others, rounded outward."""
    plus, minus = matrix.maximum(0), (-matrix).maximum(0)
    low = plus @ lower - minus @ upper + offset
    high = plus @ upper - minus @ lower + offset
    sizes = (plus + minus) @ np.maximum(np.abs(lower), np.abs(upper)) + np.abs(offset)
    rounding = 4 * (matrix.shape[1] + 8) * _EPS * sizes
    return low - rounding, high + rounding


def _down(values: Array) -> Array:
    return values - 16 * _EPS * np.abs(values)


def require_box(box: Any, inputs: int) -> tuple[Array, Array]:
    """Return the ends of a box, (inputs,) each.

    Raises:
        DataError: it is no pair, has other sizes, is not finite, or empty.
    """
    pair = isinstance(box, tuple | list) and len(box) == 2
    try:
        low, high = (np.broadcast_to(np.asarray(x, dtype=float), (inputs,)).copy() for x in box)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"box must be (lowest, highest), numbers or {inputs} of them each, got {box!r}."
        ) from error
    if not pair or not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise DataError(
            "box must be two finite ends, (lowest, highest): a network that is not convex is "
            f"relaxed between them. Got {box!r}."
        )
    if not (low <= high).all():
        raise DataError(f"the box is empty: input {int((low > high).argmax())} has no value in it.")
    return low, high
