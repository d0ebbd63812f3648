"""Block-tridiagonal systems over time, one program for each sample, in float64."""

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
    sample = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, UNITS), tl.arange(0, UNITS)
    known, square = i < units, (i < units)[:, None] & (j < units)[None, :]
    at = i[:, None] * units + j[None, :]
    update = tl.zeros([UNITS, UNITS], tl.float64)
    carried = tl.zeros([UNITS], tl.float64)
    for back in range(0, steps):
        step = steps - 1 - back
        row = (step * samples + sample) * units
        block = tl.load(block_ptr + row * units + at, mask=square, other=0.0)
        block += tl.where((i[:, None] == j[None, :]) & (i >= units)[:, None], 1.0, 0.0)
        inverse = _inverted(block - update, units, UNITS)
        right = tl.load(right_ptr + row + j, mask=known, other=0.0) - carried
        half = tl.sum(inverse * right[None, :], 1)
        tl.store(value_ptr + row + i, half, mask=known)
        free = tl.load(free_ptr + row + i, mask=known, other=0) != 0
        early = (row - samples * units) + j
        free_before = tl.load(free_ptr + early, mask=known & (step > 0), other=0) != 0
        here = block_ptr + row * units
        tl.store(here + at, inverse, mask=square)
        tl.debug_barrier()
        gain = tl.zeros([UNITS, UNITS], tl.float64)
        for k in range(0, units):
            column = tl.load(here + i * units + k, mask=known, other=0.0)
            linked = free_before & (tl.load(free_ptr + row + k) != 0)
            coupling = tl.load(between_ptr + k * units + j, mask=known & linked, other=0.0)
            gain += column[:, None] * coupling[None, :]
        tl.debug_barrier()
        tl.store(here + at, gain, mask=square)
        tl.debug_barrier()
        update = tl.zeros([UNITS, UNITS], tl.float64)
        for k in range(0, units):
            gained = tl.load(here + k * units + j, mask=known, other=0.0)
            linked = free_before & (tl.load(free_ptr + row + k) != 0)
            coupling = tl.load(between_ptr + k * units + i, mask=known & linked, other=0.0)
            update += coupling[:, None] * gained[None, :]
        between = tl.load(between_ptr + at, mask=square, other=0.0)
        between = tl.where(free[:, None] & free_before[None, :], between, 0.0)
        carried = tl.sum(between * half[:, None], 0)
    tl.debug_barrier()
    before = tl.zeros([UNITS], tl.float64)
    for step in range(0, steps):
        row = (step * samples + sample) * units
        gain = tl.load(block_ptr + row * units + at, mask=square, other=0.0)
        half = tl.load(value_ptr + row + i, mask=known, other=0.0)
        value = half - tl.sum(gain * before[None, :], 1)
        tl.debug_barrier()
        tl.store(value_ptr + row + i, value, mask=known)
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
