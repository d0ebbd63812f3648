"""Block-tridiagonal systems over time, one program for each sample, in float64.

A program takes the T steps of one sample one after another, with about 6 n^3 operations each for n
units; of 32 units, a card of 132 multiprocessors runs 264 programs at once. Cyclic reduction would
halve the steps log2 T times and take about 12 n^3 for each, as it forms two couplings and two
updates for every step that it removes. At T = 1,000 it would therefore take a 45th of the time for
one sample, three quarters for 100, and more from 132 on where samples fill the programs. Training
has more, so the steps stay one after another. (A count, not a measurement.)
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["steps", "samples", "units"])
def eliminate(
    block_ptr,
    between_ptr,
    free_ptr,
    right_ptr,
    value_ptr,
    steps,
    samples,
    units,
    UNITS: tl.constexpr,
):
    """Solve B_t x_t + E_t x_{t-1} + E_{t+1}' x_{t+1} = r_t for one sample.

    From the last step to the first, X_t = (B_t - E_{t+1}' X_{t+1})^-1 E_t takes the place of B_t,
    and the same of r_t its place in value; then x_t follows forward in time. E_t is the same for
    all but for its rows and columns where a unit is not free, which are zero.

    Args:
        block_ptr: B, (steps, samples, units, units), overwritten.
        between_ptr: E without the units that are not free, (units, units).
        free_ptr: (steps, samples, units) int8.
        right_ptr: r, (steps, samples, units).
        value_ptr: x, (steps, samples, units).
        steps: how many.
        samples: how many.
        units: how many.
        UNITS: units, rounded up to a power of two, at least 16.
    """
    sample, samples = tl.program_id(0).to(tl.int64), samples.to(tl.int64)
    i, j = tl.arange(0, UNITS), tl.arange(0, UNITS)
    known, square = i < units, (i < units)[:, None] & (j < units)[None, :]
    at = i[:, None] * units + j[None, :]
    beyond = tl.where((i[:, None] == j[None, :]) & (i >= units)[:, None], 1.0, 0.0)
    update = tl.zeros([UNITS, UNITS], tl.float64)
    carried = tl.zeros([UNITS], tl.float64)
    for back in range(0, steps):
        step = steps - 1 - back
        row = (step * samples + sample) * units
        here = block_ptr + row * units
        block = tl.load(here + at, mask=square, other=0.0) + beyond
        inverse = _inverted(block - update, units, UNITS)
        right = tl.load(right_ptr + row + j, mask=known, other=0.0) - carried
        half = tl.sum(inverse * right[None, :], 1)
        tl.store(value_ptr + row + i, half, mask=known)
        tl.store(here + at, inverse, mask=square)
        tl.debug_barrier()
        free, early = free_ptr + row, free_ptr + row - samples * units
        before = tl.load(early + j, mask=known & (step > 0), other=0) != 0
        gain = _gained(here, between_ptr, free, before, units, UNITS)
        tl.debug_barrier()
        tl.store(here + at, gain, mask=square)
        tl.debug_barrier()
        update = _updated(here, between_ptr, free, before, units, UNITS)
        linked = (tl.load(free + i, mask=known, other=0) != 0)[:, None] & before[None, :]
        between = tl.load(between_ptr + at, mask=square & linked, other=0.0)
        carried = tl.sum(between * half[:, None], 0)
    tl.debug_barrier()
    _follow(block_ptr, value_ptr, sample, steps, samples, units, UNITS)


@triton.jit
def _gained(here, between_ptr, free_ptr, before, units, UNITS: tl.constexpr):
    """Return the matrix that stands here times E."""
    i = tl.arange(0, UNITS)
    gain = tl.zeros([UNITS, UNITS], tl.float64)
    for k in range(0, units):
        column = tl.load(here + i * units + k, mask=i < units, other=0.0)
        gain += column[:, None] * _coupling(between_ptr, free_ptr, before, k, units, UNITS)[None, :]
    return gain


@triton.jit
def _updated(here, between_ptr, free_ptr, before, units, UNITS: tl.constexpr):
    """Return E' times the matrix that stands here."""
    j = tl.arange(0, UNITS)
    update = tl.zeros([UNITS, UNITS], tl.float64)
    for k in range(0, units):
        gained = tl.load(here + k * units + j, mask=j < units, other=0.0)
        coupling = _coupling(between_ptr, free_ptr, before, k, units, UNITS)
        update += coupling[:, None] * gained[None, :]
    return update


@triton.jit
def _coupling(between_ptr, free_ptr, before, k, units, UNITS: tl.constexpr):
    """Return row k of E, zero where a unit is not free, (UNITS,)."""
    j = tl.arange(0, UNITS)
    linked = before & (tl.load(free_ptr + k) != 0)
    return tl.load(between_ptr + k * units + j, mask=(j < units) & linked, other=0.0)


@triton.jit
def _follow(gain_ptr, value_ptr, sample, steps, samples, units, UNITS: tl.constexpr):
    """Subtract the gain of every step times the solution before it, forward in time."""
    i, j = tl.arange(0, UNITS), tl.arange(0, UNITS)
    square = (i < units)[:, None] & (j < units)[None, :]
    before = tl.zeros([UNITS], tl.float64)
    for step in range(0, steps):
        row = (step * samples + sample) * units
        at = gain_ptr + row * units + i[:, None] * units + j[None, :]
        gain = tl.load(at, mask=square, other=0.0)
        half = tl.load(value_ptr + row + i, mask=i < units, other=0.0)
        value = half - tl.sum(gain * before[None, :], 1)
        tl.debug_barrier()
        tl.store(value_ptr + row + i, value, mask=i < units)
        before = value


@triton.jit
def _inverted(matrix, units, UNITS: tl.constexpr):
    """Return the inverse of a positive definite matrix by Gauss and Jordan, without pivoting."""
    i, j = tl.arange(0, UNITS)[:, None], tl.arange(0, UNITS)[None, :]
    for k in range(0, units):
        row = tl.sum(tl.where(i == k, matrix, 0.0), 0)[None, :]
        column = tl.sum(tl.where(j == k, matrix, 0.0), 1)[:, None]
        pivot = tl.sum(tl.where(j == k, row, 0.0))
        scaled = row / pivot
        matrix = tl.where(
            i == k,
            tl.where(j == k, 1.0 / pivot, scaled),
            tl.where(j == k, -column / pivot, matrix - column * scaled),
        )
    return matrix
