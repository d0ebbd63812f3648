"""A composition over a box as rows of a mixed-integer program, and the ranges of its units.

Every unit v = phi(u) has a range [l, h] of u, from intervals and, in the time that is given, from
linear programs over all rows before it. Where phi is linear on [l, h] v is affine in the columns
that are there. Else [l, h] falls into pieces t_0 < t_1 < ... < t_K, filled one after another,

    u = t_0 + sum_k d_k,  0 <= d_k <= h_k,  h_k s_k <= d_k (k < K),  d_k <= h_k s_{k-1} (k > 1),
    v = phi(t_0) + sum_k c_k d_k,

with c_k the slope of the chord and s_k whole numbers 0 or 1; d_1 follows from u. Of a ReLU that is
v >= 0, v >= u, v <= h s, v <= u - l (1 - s); the incremental form of Markowitz and Manne, 1957. A
smooth phi has a few lines below and above it, and no whole numbers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from liftednet.lazy import sparse
from liftednet.solvers.mixed_integer import Program, least

from ..bounds.curves import Array, Curve
from .composition import Block, Combination, Composition, Places

_FEW = 6  # entries of a row that is written several times
_EPS = float(np.finfo(float).eps)
Row = dict[int, float]


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
    """Columns u, where it has one of its `own`, d_2 .. d_K, s_1 .. s_{K-1}."""

    ends: Array = field(default_factory=lambda: np.zeros(2))
    own: bool = False

    def columns(self, u: Any, v: float) -> list[float]:
        at, width = float(u), np.diff(self.ends)
        filled = np.clip(at - self.ends[:-1], 0, width)
        return [
            *([at] if self.own else []),
            *filled[1:],
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
        arguments: the same of the pre-activations of each block, and last of y; third is what
            they are off by rounding.
        ranges: (lower, upper) of these.
        exact: whether the rows hold nowhere else.
        seconds: that linear programs have taken.
        units: of each block.
    """

    composition: Composition
    program: Program
    states: list[tuple[Any, Array]]
    arguments: list[tuple[Any, Array, Array]]
    ranges: list[tuple[Array, Array]]
    exact: bool
    seconds: float
    units: list[list[_Unit]]

    @property
    def whole(self) -> int:
        """How many whole numbers there are."""
        return int(self.program.whole.sum())

    @property
    def box(self) -> tuple[Array, Array]:
        """The ends of x."""
        inputs = self.composition.inputs
        return self.program.lower[:inputs], self.program.upper[:inputs]

    @property
    def output(self) -> tuple[Any, Array]:
        """(matrix, offset) of y."""
        return self.arguments[-1][:2]

    def point(self, x: Array) -> Array:
        """Return z at x, (columns,)."""
        values, found = self.composition.values(x), [np.asarray(x, dtype=float)]
        for block, units, v in zip(self.composition.blocks, self.units, values[1:], strict=True):
            u = block.argument.of(values)
            for number, (unit, each) in enumerate(zip(units, v.tolist(), strict=True)):
                of = u if isinstance(unit, _Largest) else u[number]
                found.append(np.array(unit.columns(of, each)))
        return np.concatenate(found)


def relaxation(
    composition: Composition,
    box: tuple[Array, Array],
    *,
    seconds: float = 0.0,
    known: Sequence[tuple[Array, Array]] = (),
    lines: bool = False,
) -> Relaxation:
    """Return a composition over a box as rows of a mixed-integer program.

    Args:
        composition: the network.
        box: the least and the largest x, (inputs,) each, finite.
        seconds: that linear programs which tighten ranges may take.
        known: ranges that were found before.
        lines: whether no units have pieces, but a few lines below and above them.
    """
    return _Builder(composition, box, seconds, known, lines).built()


class _Builder:
    """A program under construction: bounds of columns, rows, and what blocks give."""

    def __init__(
        self,
        composition: Composition,
        box: tuple[Array, Array],
        seconds: float,
        known: Sequence[tuple[Array, Array]],
        lines: bool,
    ) -> None:
        self.composition, self.known = composition, known
        self.lines = lines
        self.left, self.spent = seconds, 0.0
        self.lower, self.upper = box[0].tolist(), box[1].tolist()
        self.whole = [False] * composition.inputs
        self.rows: list[Row] = []
        self.ends: list[tuple[float, float]] = []
        inputs = composition.inputs
        self.sources: list[tuple[Any, Array]] = [(sparse.eye_array(inputs), np.zeros(inputs))]
        largest = np.maximum(np.abs(box[0]), np.abs(box[1]))
        self.rounding = [(np.zeros(inputs), largest)]  # of sources: what they are off, their size
        self.exact = True

    def built(self) -> Relaxation:
        units, arguments, ranges = [], [], []
        for number, block in enumerate(self.composition.blocks):
            matrix, offset = self.combined(block.argument)
            arguments.append((matrix, offset, self.slack))
            ends = self.range(number, block, matrix, offset)
            ranges.append(ends)
            u = [
                (dict(zip(matrix.indices[a:b].tolist(), matrix.data[a:b].tolist(), strict=True)), c)
                for a, b, c in zip(matrix.indptr, matrix.indptr[1:], offset.tolist(), strict=False)
            ]
            self.drift, affine, made = np.zeros(len(block)), [], []
            for unit in range(len(block)):
                value, recipe = (
                    self.largest(u, block.windows[unit], unit, *ends)
                    if len(block.windows)
                    else self.mapped(u[unit], block.curve(unit), unit, *ends)
                )
                affine.append(value)
                made.append(recipe)
            constants = np.array([constant for _, constant in affine])
            self.sources.append((self.matrix([row for row, _ in affine]), constants))
            self.rounding.append((self.drift, self.sizes(*self.sources[-1])))
            units.append(made)
        matrix, offset = self.combined(self.composition.output)
        arguments.append((matrix, offset, self.slack))
        ranges.append(self.range(len(units), None, matrix, offset))
        states, arguments = (
            [(self.widened(matrix), *rest) for matrix, *rest in each]
            for each in (self.sources[1:], arguments)
        )
        return Relaxation(
            self.composition, self.program(), states, arguments, ranges, self.exact, self.spent,
            units,
        )  # fmt: skip

    def matrix(self, rows: Sequence[Row]) -> Any:
        counts = np.cumsum([0, *map(len, rows)])
        data = [x for row in rows for x in row.values()]
        places = [x for row in rows for x in row]
        return sparse.csr_array((data, places, counts), shape=(len(rows), len(self.lower)))

    def widened(self, matrix: Any) -> Any:
        found = sparse.csr_array(matrix, copy=True)
        found.resize(found.shape[0], len(self.lower))
        return found

    def combined(self, combination: Combination) -> tuple[Any, Array]:
        """Return u = z M' + c of a combination of sources, M sparse, and note what it is off by."""
        total: Any = sparse.csr_array((len(combination.offset), len(self.lower)))
        offset, size = combination.offset.copy(), np.abs(combination.offset)
        self.slack = np.where(np.isfinite(combination.off), combination.off, 0.0)
        for source, part in combination.parts.items():
            matrix, constant = self.sources[source]
            total = total + sparse.csr_array(part.T) @ self.widened(matrix)
            offset += constant @ part
            off, sizes = self.rounding[source]
            size += sizes @ np.abs(part)
            self.slack += (off + 2 * (len(part) + 4) * _EPS * sizes) @ np.abs(part)
        self.slack += 4 * _EPS * size
        return sparse.csr_array(total), offset

    def sizes(self, matrix: Any, offset: Array) -> Array:
        """Return bounds on the sums of the sizes of all terms of M z + c."""
        largest = np.maximum(np.abs(self.lower), np.abs(self.upper))
        found: Array = abs(self.widened(matrix)) @ largest + np.abs(offset)
        return found

    def program(self) -> Program:
        low, high = np.array(self.ends, dtype=float).reshape(-1, 2).T
        return Program(
            self.matrix(self.rows), low, high, np.array(self.lower), np.array(self.upper),
            np.array(self.whole),
        )  # fmt: skip

    def range(
        self, number: int, block: Block | None, matrix: Any, offset: Array
    ) -> tuple[Array, Array]:
        """Return the ends of u, or of y: by intervals, from before, and by linear programs."""
        low, high = _intervals(matrix, offset, np.array(self.lower), np.array(self.upper))
        low, high = low - self.slack, high + self.slack
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
            started = time.perf_counter()
            which = bent_between(block, low, high)
            argument = matrix, offset, self.slack
            _move_ends(self.program(), [(low, high, which)], [argument], self.left)
            spent = time.perf_counter() - started
            self.left, self.spent = self.left - spent, self.spent + spent
        return low, np.maximum(low, high)

    # Units.

    def column(self, lower: float, upper: float, whole: bool = False) -> int:
        self.lower.append(lower)
        self.upper.append(upper)
        self.whole.append(whole)
        return len(self.lower) - 1

    def row(self, row: Row, low: float, high: float, off: float = 0.0) -> None:
        self.rows.append(row)
        self.ends.append((low - off, high + off))

    def mapped(
        self,
        u: tuple[Row, float],
        curve: Curve,
        place: int,
        lows: Array,
        highs: Array,
    ) -> tuple[tuple[Row, float], _Unit]:
        """Return v = phi(u) as a row and a constant, with what it needs."""
        low, high, off = (float(x[place]) for x in (lows, highs, self.slack))
        if curve.is_linear(low, high):
            slope, value = curve.chord(low, high) if high > low else (0.0, curve.at(low))
            self.drift[place] = abs(slope) * off + 8 * _EPS * max(map(abs, (value, low, high)))
            return (
                {k: slope * x for k, x in u[0].items() if slope},
                slope * u[1] + value,
            ), _Stable()
        if curve.piecewise_linear and not self.lines:
            return self.pieces(u, curve, curve.pieces(low, high), place)
        self.exact = False
        ends = (torch.tensor([x], dtype=torch.float64) for x in (low, high))
        slopes, least, most = (x[0].tolist() for x in curve.beside(*ends))
        first = self.column(least[0], most[0])
        for slope, *values in zip(slopes[1:], least[1:], most[1:], strict=True):
            row = {first: 1.0, **{k: -slope * x for k, x in u[0].items()}}
            below, above = (value + slope * u[1] for value in values)
            loose = abs(slope) * off + 8 * _EPS * max(abs(below), abs(above))
            self.row(row, below, above, loose)
        return ({first: 1.0}, 0.0), _Between(first)

    def pieces(
        self, u: tuple[Row, float], curve: Curve, ends: Sequence[float], unit: int
    ) -> tuple[tuple[Row, float], _Unit]:
        at, width = np.array(ends), np.diff(ends)
        first, own, off = len(self.lower), len(u[0]) > _FEW, float(self.slack[unit])
        if own:
            self.column(ends[0], ends[-1])
            self.row({**u[0], first: -1.0}, -u[1], -u[1], off)
            u, off = ({first: 1.0}, 0.0), 0.0
        values = curve.of(at)
        chords = np.diff(values) / width
        self.drift[unit] = abs(chords[0]) * off + 16 * _EPS * np.abs(values).max()
        count = len(width)
        later = [self.column(0.0, float(x)) for x in width[1:]]
        switch = [self.column(0.0, 1.0, True) for _ in range(count - 1)]
        # d_1 = u - t_0 - d_2 - ...
        d: list[tuple[Row, float]] = [({**u[0], **dict.fromkeys(later, -1.0)}, u[1] - ends[0])]
        d += [({column: 1.0}, 0.0) for column in later]
        off += 8 * _EPS * max(map(abs, (u[1], ends[0], ends[-1])))
        for k in range(count):
            row, constant = d[k]
            if k < count - 1:
                self.row({**row, switch[k]: -width[k]}, -constant, math.inf, off)
            if k:
                self.row({**row, switch[k - 1]: -width[k]}, -math.inf, -constant, off)
            else:
                self.row(row, -constant, width[0] - constant, off)
        v, constant = {k: chords[0] * x for k, x in u[0].items()}, values[0]
        constant += chords[0] * (u[1] - ends[0])
        for k, column in enumerate(later, start=1):
            v[column] = chords[k] - chords[0]
        recipe = _Pieces(first, at, own)
        return ({k: float(x) for k, x in v.items() if x}, float(constant)), recipe

    def largest(
        self, u: Sequence[tuple[Row, float]], window: Places, unit: int, lows: Array, highs: Array
    ) -> tuple[tuple[Row, float], _Unit]:
        """Return the largest of some pre-activations."""
        floor = float(lows[window].max())
        chosen = np.unique(window[highs[window] >= floor])
        if len(chosen) == 1:
            row, constant = u[int(chosen[0])]
            self.drift[unit] = self.slack[chosen[0]]
            return (dict(row), constant), _Stable()
        top = float(highs[chosen].max())
        first = self.column(floor, top)
        switch = [self.column(0.0, 1.0, True) for _ in chosen]
        for which, column in zip(chosen.tolist(), switch, strict=True):
            row, constant = u[which]
            below = {**{k: -x for k, x in row.items()}, first: 1.0}
            off, slack = float(self.slack[which]), top - float(lows[which])
            self.row(below, constant, math.inf, off)
            self.row({**below, column: slack}, -math.inf, constant + slack, off)
        self.row(dict.fromkeys(switch, 1.0), 1.0, 1.0)
        return ({first: 1.0}, 0.0), _Largest(first, chosen)


def _move_ends(
    program: Program,
    places: Sequence[tuple[Array, Array, Places]],
    arguments: Sequence[tuple[Any, Array, Array]],
    seconds: float,
) -> None:
    """Move ends closer together by linear programs, in place.

    Args:
        program: whose columns everything is affine in.
        places: ends, and which of them.
        arguments: (matrix, offset) of what lies between them, and what it is off.
        seconds: that there are.
    """
    pairs = list(zip(places, arguments, strict=True))
    every = np.concatenate([matrix[which].toarray() for (*_, which), (matrix, *_) in pairs])
    both = np.stack([every, -every], 1).reshape(-1, every.shape[1])  # one after the other
    bounds, first = least(program, both, seconds).reshape(-1, 2), 0
    for (low, high, which), (_, offset, slack) in pairs:
        own = bounds[first : first + len(which)]
        first += len(which)
        down, up = own[:, 0] + offset[which], -own[:, 1] + offset[which]
        off = slack[which] + 16 * _EPS * np.abs(offset[which])
        low[which] = np.maximum(low[which], down - 16 * _EPS * np.abs(down) - off)
        high[which] = np.minimum(high[which], up + 16 * _EPS * np.abs(up) + off)


def bent_between(block: Block | None, low: Array, high: Array) -> Places:
    """Return the units of a block that are not linear between two ends; all of no block."""
    which = np.arange(len(low))
    if block is None or len(block.windows):
        return which
    linear = np.zeros(len(low), dtype=bool)
    for number, curve in enumerate(block.curves):
        own = block.which == number
        linear[own] = curve.linear_between(*map(torch.from_numpy, (low[own], high[own]))).numpy()
    return which[~linear]


def _intervals(matrix: Any, offset: Array, lower: Array, upper: Array) -> tuple[Array, Array]:
    """Return the ends of M z + c for z between others, rounded outward."""
    plus, minus = matrix.maximum(0), (-matrix).maximum(0)
    low = plus @ lower - minus @ upper + offset
    high = plus @ upper - minus @ lower + offset
    sizes = (plus + minus) @ np.maximum(np.abs(lower), np.abs(upper)) + np.abs(offset)
    rounding = 4 * (matrix.shape[1] + 8) * _EPS * sizes
    return low - rounding, high + rounding
