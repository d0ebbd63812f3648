"""State fits for a tile of samples: one launch runs all accelerated proximal steps.

A tile's states, the states before them and U lie in a scratch of its program, which is small
enough to stay in the caches of the chip; device memory sees every state once. The weights W stream
through shared memory, once in either direction for a step: Z W + C, then the gradient times W'.
The prox is the epilogue of the second product.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tile_steps import descend


@triton.jit(do_not_specialize=["samples", "limit"])  # one kernel for any of them
def state_tiles(
    u_ptr,
    z_ptr,
    scratch_ptr,
    step_ptr,
    goal_ptr,
    steps_ptr,
    links,
    samples,
    units,
    limit,
    lam,
    a,
    b,
    PROX: tl.constexpr,
    LINKS: tl.constexpr,
    FULL: tl.constexpr,
    COUNTED: tl.constexpr,
    WIDTHS: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    PADDED: tl.constexpr,
    PRECISION: tl.constexpr,
    ROUGH: tl.constexpr,
):
    """Move z from its start to argmin lam [Phi(Z) - <Z, U>] + the links, a tile at a time.

    Z <- prox_{lam Phi / s}(Y - g / s) with Y ahead of Z by the momentum of each sample; Beck and
    Teboulle (2009), restarted as O'Donoghue and Candes (2015). A tile ends when s |Y - Z| is
    within the goal for all its samples, or no longer falls.

    Args:
        u_ptr: U, (samples, units).
        z_ptr: the start, and then the states, (samples, units).
        scratch_ptr: (programs, 3, ROWS, PADDED).
        step_ptr: s, at least the links' smoothness.
        goal_ptr: the s |Y - Z| at which a tile ends.
        steps_ptr: (tiles,) int32, the steps that were taken.
        links: a tuple of `TileLink`.
        samples: rows of U.
        units: columns of U.
        limit: the most steps of a tile.
        lam: the weight of Phi.
        a: a number of the activation.
        b: another one.
        PROX: the prox of Phi.
        LINKS: for each link the gradient of R.
        FULL: for each link whether C is full.
        COUNTED: for each link whether not all samples are linked.
        WIDTHS: for each link its width, rounded up to a power of two.
        ROWS: samples of a tile.
        DEPTH: units in one part of the first product.
        COLUMNS: units in one part of the second product.
        PADDED: units, rounded up to COLUMNS.
        PRECISION: of the products.
        ROUGH: the violation, in units of the goal, down to which products are in TF32.
    """
    s, goal = tl.load(step_ptr), tl.load(goal_ptr)
    program, programs = tl.program_id(0), tl.num_programs(0)
    scratch = scratch_ptr + program.to(tl.int64) * (3 * ROWS * PADDED)
    tiles = tl.cdiv(samples, ROWS)
    for turn in range(0, tl.cdiv(tiles - program, programs)):
        tile = program + turn * programs
        rows = tile.to(tl.int64) * ROWS + tl.arange(0, ROWS)
        there = rows < samples
        _fetch(u_ptr, z_ptr, scratch, rows, there, units, ROWS, COLUMNS, PADDED)
        here, step = 0, 0
        if ROUGH > 1:
            here, step, _first = descend(
                scratch,
                here,
                step,
                ROUGH * goal,
                links,
                rows,
                there,
                units,
                limit,
                s,
                lam,
                a,
                b,
                PROX,
                LINKS,
                FULL,
                COUNTED,
                WIDTHS,
                ROWS,
                DEPTH,
                COLUMNS,
                PADDED,
                "tf32",
                8,
            )
        here, step, _first = descend(
            scratch,
            here,
            step,
            goal,
            links,
            rows,
            there,
            units,
            limit,
            s,
            lam,
            a,
            b,
            PROX,
            LINKS,
            FULL,
            COUNTED,
            WIDTHS,
            ROWS,
            DEPTH,
            COLUMNS,
            PADDED,
            PRECISION,
            200,
        )
        write_back(z_ptr, scratch + here, rows, there, units, ROWS, COLUMNS, PADDED)
        tl.store(steps_ptr + tile, step)
        tl.debug_barrier()


@triton.jit
def _fetch(
    u_ptr,
    z_ptr,
    scratch,
    rows,
    there,
    units,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PADDED: tl.constexpr,
):
    """Copy the start, twice, and U into the scratch, zero beyond the samples and units."""
    own = tl.arange(0, ROWS)[:, None] * PADDED
    for first in range(0, PADDED, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        inside = there[:, None] & (columns < units)[None, :]
        at = rows[:, None] * units + columns[None, :]
        z = tl.load(z_ptr + at, mask=inside, other=0.0)
        u = tl.load(u_ptr + at, mask=inside, other=0.0)
        to = scratch + own + columns[None, :]
        tl.store(to, z)
        tl.store(to + ROWS * PADDED, z)
        tl.store(to + 2 * ROWS * PADDED, u)


@triton.jit
def write_back(
    z_ptr,
    states,
    rows,
    there,
    units,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PADDED: tl.constexpr,
):
    """Copy the states out of the scratch."""
    own = tl.arange(0, ROWS)[:, None] * PADDED
    for first in range(0, PADDED, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        inside = there[:, None] & (columns < units)[None, :]
        z = tl.load(states + own + columns[None, :])
        tl.store(z_ptr + rows[:, None] * units + columns[None, :], z, mask=inside)
