"""States over time: one launch for all steps of a color, the odd or the even ones."""

from __future__ import annotations

import triton
import triton.language as tl

from .state_tiles import write_back
from .tile_steps import descend


# Numbers that change from launch to launch must not each ask for a kernel of their own.
@triton.jit(do_not_specialize=["steps", "color", "sweep", "limit"])
def colored_tiles(
    drive_ptr,
    z_ptr,
    valid_ptr,
    recurrent_ptr,
    scratch_ptr,
    step_ptr,
    goal_ptr,
    worst_ptr,
    links,
    steps,
    samples,
    units,
    color,
    sweep,
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
    WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Solve the state fits of every second step, their neighbors in time fixed.

    No two of them are neighbors, so that z is changed in place. The fits are those of
    `state_tiles`, with U_t = Z_{t-1} W + D_t. Where no fit of the sweep before had a violation
    above the goal, nothing is done: sweeps can be handed on without looking at their outcome.

    Args:
        drive_ptr: D, (steps, samples, units).
        z_ptr: the states, (steps, samples, units).
        valid_ptr: (steps, samples) int8, whether a sequence has the step.
        recurrent_ptr: W, (PADDED, WIDTH), zero beyond its size.
        scratch_ptr: (programs, 3, ROWS, PADDED).
        step_ptr: s, at least the links' smoothness.
        goal_ptr: the s |Y - Z| at which a tile ends.
        worst_ptr: (sweeps + 1,), the largest s |Y - Z| that each sweep met, infinite at 0.
        links: a tuple of `TileLink`.
        steps: of the longest sequence.
        samples: sequences.
        units: of the layer.
        color: 0 for the even steps, 1 for the odd ones.
        sweep: its number, from 0.
        limit: the most steps of a tile.
        lam: the weight of Phi.
        a: a number of the activation.
        b: another one.
        PROX: the prox of Phi.
        LINKS: for each link the gradient of R.
        FULL: for each link whether C is full.
        COUNTED: for each link whether not all steps are linked.
        WIDTHS: for each link its width, rounded up to a power of two.
        ROWS: states of a tile.
        DEPTH: units in one part of the products with W.
        COLUMNS: units in one part of the products with W'.
        PADDED: units, rounded up to COLUMNS.
        WIDTH: units, rounded up to a power of two.
        PRECISION: of the products.
    """
    s, goal = tl.load(step_ptr), tl.load(goal_ptr)
    program, programs = tl.program_id(0), tl.num_programs(0)
    scratch = scratch_ptr + program.to(tl.int64) * (3 * ROWS * PADDED)
    count = (steps - color + 1) // 2 * samples
    tiles = tl.cdiv(count, ROWS)
    if tl.load(worst_ptr + sweep) > goal:
        for turn in range(0, tl.cdiv(tiles - program, programs)):
            tile = program + turn * programs
            order = tile * ROWS + tl.arange(0, ROWS)
            time = 2 * (order // samples) + color
            rows = time.to(tl.int64) * samples + order % samples
            there = order < count
            there = there & (tl.load(valid_ptr + rows, mask=there, other=0) != 0)
            _fetch_driven(
                drive_ptr,
                z_ptr,
                recurrent_ptr,
                scratch,
                rows,
                there,
                there & (time > 0),
                samples,
                units,
                ROWS,
                DEPTH,
                COLUMNS,
                PADDED,
                WIDTH,
                PRECISION,
            )
            here, step = 0, 0
            here, step, first = descend(
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
            tl.atomic_max(worst_ptr + sweep + 1, first)
            tl.debug_barrier()


@triton.jit
def _fetch_driven(
    drive_ptr,
    z_ptr,
    recurrent_ptr,
    scratch,
    rows,
    there,
    after,
    samples,
    units,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    PADDED: tl.constexpr,
    WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Put the states, twice, and U = (the states a step before) W + D into the scratch."""
    own = tl.arange(0, ROWS)[:, None] * PADDED
    for first in range(0, PADDED, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        inside = there[:, None] & (columns < units)[None, :]
        z = tl.load(z_ptr + rows[:, None] * units + columns[None, :], mask=inside, other=0.0)
        to = scratch + own + columns[None, :]
        tl.store(to, z)
        tl.store(to + ROWS * PADDED, z)
    wide = tl.arange(0, WIDTH)
    inside = there[:, None] & (wide < units)[None, :]
    at = rows[:, None] * units + wide[None, :]
    u = tl.load(drive_ptr + at, mask=inside, other=0.0)
    for first in range(0, PADDED, DEPTH):
        deep = first + tl.arange(0, DEPTH)
        before = (rows - samples)[:, None] * units + deep[None, :]
        known = after[:, None] & (deep < units)[None, :]
        z = tl.load(z_ptr + before, mask=known, other=0.0)
        w = tl.load(recurrent_ptr + deep[:, None] * WIDTH + wide[None, :])
        u = tl.dot(z, w, u, input_precision=PRECISION)
    to = scratch + 2 * ROWS * PADDED + own + wide[None, :]
    tl.store(to, u, mask=(wide < PADDED)[None, :])
