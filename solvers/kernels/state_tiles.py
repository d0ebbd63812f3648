"""State fits for a tile of samples: one launch runs all accelerated proximal steps.

A tile's states, the states before them, U and what pulls at them lie in a scratch of its program,
which is small enough to stay in the L2 cache of the chip; device memory sees every state once. The
weights W stream through shared memory. The prox is the epilogue of the product that is the
gradient.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .groups import Tile
from .tile_steps import descend


@triton.jit(do_not_specialize=["samples", "limit"])  # one kernel for any of them
def state_tiles(u_ptr, z_ptr, steps_ptr, goal, layer, links, samples, limit, PLAN: tl.constexpr):
    """Move z from its start to argmin lam [Phi(Z) - <Z, U>] + the links, a tile at a time.

    Z <- prox_{lam Phi / s}(Y - g / s) with Y ahead of Z by the momentum of each sample; Beck and
    Teboulle (2009), restarted as O'Donoghue and Candes (2015). A tile ends when s |Y - Z| is
    within the goal for all its samples, or no longer falls.

    Args:
        u_ptr: U, (samples, units).
        z_ptr: the start, and then the states, (samples, units).
        steps_ptr: (tiles,) int32, the steps that were taken.
        goal: a `Goal`.
        layer: a `Layer`.
        links: a tuple of `TileLink`.
        samples: rows of U.
        limit: the most steps of a tile.
        PLAN: a `TilePlan`.
    """
    s, least = tl.load(goal.step_size), tl.load(goal.violation)
    program, programs = tl.program_id(0), tl.num_programs(0)
    scratch = goal.scratch + program.to(tl.int64) * (4 * PLAN.rows * PLAN.padded)
    tiles = tl.cdiv(samples, PLAN.rows)
    for turn in range(0, tl.cdiv(tiles - program, programs)):
        number = program + turn * programs
        rows = number.to(tl.int64) * PLAN.rows + tl.arange(0, PLAN.rows)
        tile = Tile(scratch, rows, rows < samples)
        fetch_states(z_ptr, tile, layer.units, PLAN)
        _fetch_drive(u_ptr, tile, layer.units, PLAN)
        here, step, _ = descend(tile, layer, links, s, least, limit, PLAN)
        write_back(z_ptr, tile, here, layer.units, PLAN)
        tl.store(steps_ptr + number, step)
        tl.debug_barrier()


@triton.jit
def fetch_states(z_ptr, tile, units, PLAN: tl.constexpr):
    """Copy the states into the scratch, twice, zero beyond the samples and units."""
    own = tile.scratch + tl.arange(0, PLAN.rows)[:, None] * PLAN.padded
    for first in range(0, PLAN.padded, PLAN.columns):
        columns = first + tl.arange(0, PLAN.columns)
        inside = tile.there[:, None] & (columns < units)[None, :]
        z = tl.load(z_ptr + tile.rows[:, None] * units + columns[None, :], mask=inside, other=0.0)
        tl.store(own + columns[None, :], z)
        tl.store(own + PLAN.rows * PLAN.padded + columns[None, :], z)


@triton.jit
def _fetch_drive(u_ptr, tile, units, PLAN: tl.constexpr):
    """Copy U into the scratch, zero beyond the samples and units."""
    own = tile.scratch + tl.arange(0, PLAN.rows)[:, None] * PLAN.padded
    for first in range(0, PLAN.padded, PLAN.columns):
        columns = first + tl.arange(0, PLAN.columns)
        inside = tile.there[:, None] & (columns < units)[None, :]
        u = tl.load(u_ptr + tile.rows[:, None] * units + columns[None, :], mask=inside, other=0.0)
        tl.store(own + 2 * PLAN.rows * PLAN.padded + columns[None, :], u)


@triton.jit
def write_back(z_ptr, tile, here, units, PLAN: tl.constexpr):
    """Copy the states out of the scratch."""
    own = tile.scratch + here + tl.arange(0, PLAN.rows)[:, None] * PLAN.padded
    for first in range(0, PLAN.padded, PLAN.columns):
        columns = first + tl.arange(0, PLAN.columns)
        inside = tile.there[:, None] & (columns < units)[None, :]
        z = tl.load(own + columns[None, :])
        tl.store(z_ptr + tile.rows[:, None] * units + columns[None, :], z, mask=inside)
