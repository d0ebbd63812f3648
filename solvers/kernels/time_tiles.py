"""States over time: one launch for all steps of a color, the odd or the even ones."""

from __future__ import annotations

import triton
import triton.language as tl

from .groups import Tile
from .state_tiles import fetch_states, write_back
from .tile_steps import descend


# Numbers that change from launch to launch must not each ask for a kernel of their own.
@triton.jit(do_not_specialize=["steps", "samples", "color", "sweep", "limit"])
def colored_tiles(
    drive_ptr,
    z_ptr,
    valid_ptr,
    worst_ptr,
    goal,
    layer,
    links,
    steps,
    samples,
    color,
    sweep,
    limit,
    PLAN: tl.constexpr,
):
    """Solve the state fits of every second step, their neighbors in time fixed.

    No two of them are neighbors, so that z is changed in place. The fits are those of
    `state_tiles`, with U_t = Z_{t-1} W + D_t. Where no fit of the sweep before had a violation
    above the goal, nothing is done: sweeps can be handed on without looking at their outcome.

    Args:
        drive_ptr: D, (steps, samples, units).
        z_ptr: the states, (steps, samples, units).
        valid_ptr: (steps, samples) int8, whether a sequence has the step.
        worst_ptr: (sweeps + 1,), the largest s |Y - Z| that each sweep met, infinite at 0.
        goal: a `Goal`.
        layer: a `Layer`.
        links: a tuple of `TileLink`, the first to the next step: its W is that of the layer.
        steps: of the longest sequence.
        samples: sequences.
        color: 0 for the even steps, 1 for the odd ones.
        sweep: its number, from 0.
        limit: the most steps of a tile.
        PLAN: a `TilePlan`.
    """
    s, least = tl.load(goal.step_size), tl.load(goal.violation)
    program, programs = tl.program_id(0), tl.num_programs(0)
    scratch = goal.scratch + program.to(tl.int64) * (4 * PLAN.rows * PLAN.padded)
    count = ((steps - color + 1) // 2).to(tl.int64) * samples
    tiles = tl.cdiv(count, PLAN.rows)
    if tl.load(worst_ptr + sweep) > least:
        for turn in range(0, tl.cdiv(tiles - program, programs)):
            number = program.to(tl.int64) + turn * programs
            order = number * PLAN.rows + tl.arange(0, PLAN.rows)
            time = 2 * (order // samples) + color
            rows = time * samples + order % samples
            there = order < count
            there = there & (tl.load(valid_ptr + rows, mask=there, other=0) != 0)
            tile = Tile(scratch, rows, there)
            fetch_states(z_ptr, tile, layer.units, PLAN)
            _fetch_driven(drive_ptr, z_ptr, links[0].weight, tile, time, samples, layer, PLAN)
            here, _, first = descend(tile, layer, links, s, least, limit, PLAN)
            write_back(z_ptr, tile, here, layer.units, PLAN)
            tl.atomic_max(worst_ptr + sweep + 1, first)
            tl.debug_barrier()


@triton.jit
def _fetch_driven(drive_ptr, z_ptr, weight, tile, time, samples, layer, PLAN: tl.constexpr):
    """Put U = (the states a step before) W + D into the scratch."""
    own = tile.scratch + tl.arange(0, PLAN.rows)[:, None] * PLAN.padded
    wide = tl.arange(0, PLAN.links[0].width)
    inside = tile.there[:, None] & (wide < layer.units)[None, :]
    at = tile.rows[:, None] * layer.units + wide[None, :]
    u = tl.load(drive_ptr + at, mask=inside, other=0.0)
    for first in range(0, PLAN.padded, PLAN.depth):
        deep = first + tl.arange(0, PLAN.depth)
        before = (tile.rows - samples)[:, None] * layer.units + deep[None, :]
        known = (tile.there & (time > 0))[:, None] & (deep < layer.units)[None, :]
        z = tl.load(z_ptr + before, mask=known, other=0.0)
        w = tl.load(weight + deep[:, None] * PLAN.links[0].width + wide[None, :])
        u = tl.dot(z, w, u, input_precision="tf32x3")
    to = own + 2 * PLAN.rows * PLAN.padded + wide[None, :]
    tl.store(to, u, mask=(wide < PLAN.padded)[None, :])
