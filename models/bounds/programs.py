"""Values of units over a box by linear programs: closer than intervals, and proven as they are.

Columns are units between their ends. A linear step is a row, up to its rounding; v = phi(u) on
[l, h] lies between the lines of its steepest and its flattest slope through both ends, and on the
side of the chord where phi bends away from it (Ehlers, Formal verification of piece-wise linear
feed-forward neural networks, 2017). What multipliers of a solver prove is rounded outward.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from liftednet.lazy import sparse
from liftednet.solvers.mixed_integer import Program, least

from .units import EPS, Bent, Linear, Units

_COLUMNS, _PROGRAMS = 1_500, 2_000  # of one network at most; beyond, intervals are all there is
Entries = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # rows, units, factors; low and high ends


class Closer:
    """Brings the ends of values closer together, until there have been too many programs."""

    def __init__(self) -> None:
        """Begin to count."""
        self.left = _PROGRAMS

    def __call__(self, units: Units, which: Tensor) -> None:
        """Write the ends of some units (n,) into the table."""
        which = which.unique()
        low, high = units.span(which)
        which = which[(low < high) & low.isfinite() & high.isfinite()]
        columns, blocks = _columns(units, which)
        self.left -= 2 * len(which)
        if not len(which) or not blocks or len(columns) > _COLUMNS or self.left < 0:
            return
        program = _program(units, columns, blocks)
        places = torch.searchsorted(columns, which)
        costs = np.zeros((2 * len(which), len(columns)))
        costs[np.arange(len(which)), places] = 1.0
        costs[len(which) + np.arange(len(which)), places] = -1.0
        found = torch.from_numpy(least(program, costs, np.inf)).reshape(2, -1)
        units.low[which, -1] = torch.maximum(units.low[which, -1], found[0])
        units.high[which, -1] = torch.minimum(units.high[which, -1], -found[1])


def _columns(units: Units, which: Tensor) -> tuple[Tensor, list[int]]:
    """Return all units that some come from, in order, and their blocks that have rows."""
    found, blocks, new = which, [], set(units.block[which].tolist())
    known: set[int] = set()
    while new:
        block = new.pop()
        known.add(block)
        step = units.steps.get(block)
        if step is None:
            continue
        matrix = isinstance(step, Linear) and step.matrix
        count = len(step.below) * (step.factors.shape[1] if matrix else 1)  # type: ignore[union-attr]
        own = torch.arange(units.first[block], units.first[block] + count)
        every = torch.cat([own, step.below.flatten()]).unique()
        if not bool(torch.stack(units.span(every)).isfinite().all()):
            continue  # which is only known by intervals
        blocks.append(block)
        found = torch.cat([found, every])
        new |= set(units.block[step.below].unique().tolist()) - known
    return found.unique(), blocks


def _program(units: Units, columns: Tensor, blocks: list[int]) -> Program:
    rows: list[Tensor] = []
    places: list[Tensor] = []
    factors: list[Tensor] = []
    lows: list[Tensor] = []
    highs: list[Tensor] = []
    count = 0
    for block in blocks:
        step, first = units.steps[block], units.first[block]
        parts = _linear(units, step, first) if isinstance(step, Linear) else _bent(step, first)
        for row, unit, factor, low, high in parts:
            rows.append(row + count)
            places.append(torch.searchsorted(columns, unit))
            factors.append(factor)
            lows.append(low)
            highs.append(high)
            count += len(low)
    entries: Any = (
        torch.cat(factors).numpy(),
        (torch.cat(rows).numpy(), torch.cat(places).numpy()),
    )
    matrix = sparse.csr_array(sparse.coo_array(entries, shape=(count, len(columns))))
    lower, upper = (x.numpy().copy() for x in units.span(columns))
    ends = torch.cat(lows).numpy(), torch.cat(highs).numpy()
    return Program(matrix, *ends, lower, upper, np.zeros(len(columns), dtype=bool))


def _linear(units: Units, step: Linear, first: int) -> Iterator[Entries]:
    """Yield u - sum c x = b, up to what the products and sums of a network in float64 may round."""
    below, factors, shift = step.below, step.factors, step.shift
    if step.matrix:
        below = below.repeat_interleave(factors.shape[1], 0)
        factors, shift = factors.T.repeat(len(step.below), 1), shift.flatten()
    count, wide = below.shape
    size = torch.maximum(*(end.abs() for end in units.span(below)))
    off = 8 * (wide + 4) * EPS * ((factors.abs() * size).sum(1) + shift.abs())
    off = off if step.off is None else off + 2 * step.off
    own = torch.arange(count)
    row = torch.cat([own, own.repeat_interleave(wide)])
    unit = torch.cat([first + own, below.flatten()])
    yield (
        row, unit, torch.cat([torch.ones(count).double(), -factors.flatten()]),
        shift - off, shift + off,
    )  # fmt: skip


def _bent(step: Bent, first: int) -> Iterator[Entries]:
    """Yield lines below and above v = phi(u)."""
    (low, high), own = step.span, torch.arange(len(step.below))
    (least_low, most_low), (least_high, most_high) = step.ends
    chord = (most_high + least_high - most_low - least_low) / 2 / (high - low)
    chord = torch.where(high > low, chord, 0.0)
    none = torch.full_like(low, torch.inf)
    # phi - s u rises up to the flattest slope, and falls from the steepest one on
    for slope, up in ((step.flattest, True), (step.steepest, False)):
        ends = (least_low, low, most_high, high) if up else (least_high, high, most_low, low)
        yield _lines(step, first, own, slope, *ends)
    convex, concave = step.bends
    at = torch.stack([most_low - chord * low, most_high - chord * high]).amax(0)
    under = torch.stack([least_low - chord * low, least_high - chord * high]).amin(0)
    size = 4 * EPS * (at.abs() + under.abs() + (chord * low).abs() + (chord * high).abs())
    yield _between(
        step, first, own, chord, torch.where(concave, under - size, -none),
        torch.where(convex, at + size, none),
    )  # fmt: skip


def _lines(
    step: Bent, first: int, own: Tensor, slope: Tensor,
    least: Tensor, least_at: Tensor, most: Tensor, most_at: Tensor,
) -> Entries:  # fmt: skip
    """Return least - s least_at <= v - s u <= most - s most_at."""
    size = 4 * EPS * (least.abs() + most.abs() + (slope * least_at).abs() + (slope * most_at).abs())
    return _between(
        step, first, own, slope, least - slope * least_at - size, most - slope * most_at + size
    )


def _between(
    step: Bent, first: int, own: Tensor, slope: Tensor, low: Tensor, high: Tensor
) -> Entries:
    row, unit = torch.cat([own, own]), torch.cat([first + own, step.below])
    return row, unit, torch.cat([torch.ones(len(own)).double(), -slope]), low, high
