"""State fits for a tile of samples: one launch runs all accelerated proximal steps.

A tile's states, the states before them and U lie in a scratch of its program, which is small
enough to stay in the caches of the chip; device memory sees every state once. The weights W stream
through shared memory, once in either direction for a step: Z W + C, then the gradient times W'.
The prox is the epilogue of the second product.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl


class TileLink(NamedTuple):
    """One link, as the kernel takes it.

    Attributes:
        weight: W, (PADDED, WIDTH), zero beyond its size.
        adjoint: W', (WIDTH, PADDED).
        offset: C, (samples, width) where it is full, else (width,).
        target: V, (samples, width).
        counted: (samples,) int8, which samples are linked, where not all of them are.
        ahead: how many rows later a sample finds its offset and target.
        width: columns of W.
        lam: the weight of the link.
        a: a number of its activation.
        b: another one.
    """

    weight: Any
    adjoint: Any
    offset: Any
    target: Any
    counted: Any
    ahead: int
    width: int
    lam: float
    a: float
    b: float


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
def descend(
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
    PATIENCE: tl.constexpr,
):
    """Step until s |Y - Z| is within the goal, or does not fall in PATIENCE steps.

    Returns:
        Where the states stand in the scratch, the steps so far, and s |Y - Z| at the first one.
    """
    momentum = tl.full([ROWS], 1.0, tl.float32)
    beta = tl.zeros([ROWS], tl.float32)
    waited, going = 0, 1
    earlier = goal + float("inf")
    first, begun = goal * 0.0, step
    while (going > 0) & (step < limit):
        tl.debug_barrier()
        slopes = ()
        for k in tl.static_range(len(links)):
            x = _lifted(
                scratch, here, beta, links[k].weight, ROWS, DEPTH, PADDED, WIDTHS[k], PRECISION
            )
            slope = _slope(x, links[k], rows, there, LINKS[k], FULL[k], COUNTED[k], WIDTHS[k])
            slopes = slopes + (slope,)  # noqa: RUF005 (what the compiler reads)
        tl.debug_barrier()
        turned, violation = _advance(
            scratch,
            here,
            beta,
            slopes,
            links,
            units,
            s,
            lam,
            a,
            b,
            PROX,
            WIDTHS,
            ROWS,
            COLUMNS,
            PADDED,
            PRECISION,
        )
        momentum = tl.where(turned > 0, 1.0, momentum)
        larger = (1.0 + tl.sqrt(1.0 + 4.0 * momentum * momentum)) / 2.0
        beta = (momentum - 1.0) / larger
        momentum = larger
        here = ROWS * PADDED - here
        step += 1
        waited += 1
        worst = tl.max(tl.where(there, violation, 0.0), 0)
        first = tl.where(step == begun + 1, worst, first)
        going = (worst > goal).to(tl.int32)
        if waited >= PATIENCE:
            going = going & (worst < 0.7 * earlier).to(tl.int32)
            earlier, waited = worst, 0
    tl.debug_barrier()
    return here, step, first


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


@triton.jit
def _lifted(
    scratch,
    here,
    beta,
    weight,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    PADDED: tl.constexpr,
    WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Return Y W with Y = Z + beta (Z - the states before), (ROWS, WIDTH)."""
    before = ROWS * PADDED - here
    own = tl.arange(0, ROWS)[:, None] * PADDED
    wide = tl.arange(0, WIDTH)[None, :]
    x = tl.zeros([ROWS, WIDTH], tl.float32)
    for first in range(0, PADDED, DEPTH):
        units = first + tl.arange(0, DEPTH)
        z = tl.load(scratch + here + own + units[None, :])
        earlier = tl.load(scratch + before + own + units[None, :])
        w = tl.load(weight + units[:, None] * WIDTH + wide)
        x = tl.dot(z + beta[:, None] * (z - earlier), w, x, input_precision=PRECISION)
    return x


@triton.jit
def _slope(
    x,
    link,
    rows,
    there,
    LINK: tl.constexpr,
    FULL: tl.constexpr,
    COUNTED: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Return lam (grad R(x + C) - V), zero where nothing is linked, (ROWS, WIDTH)."""
    columns = tl.arange(0, WIDTH)
    valid = (columns < link.width)[None, :]
    linked = there
    if COUNTED:
        linked = there & (tl.load(link.counted + rows, mask=there, other=0) != 0)
    inside = linked[:, None] & valid
    at = (rows + link.ahead)[:, None] * link.width + columns[None, :]
    if FULL:
        c = tl.load(link.offset + at, mask=inside, other=0.0)
    else:
        c = tl.load(link.offset + columns, mask=columns < link.width, other=0.0)[None, :]
    v = tl.load(link.target + at, mask=inside, other=0.0)
    push = LINK(tl.where(valid, x + c, -1e30), link.a, link.b)
    return tl.where(inside, link.lam * (push - v), 0.0)


@triton.jit
def _advance(
    scratch,
    here,
    beta,
    slopes,
    links,
    units,
    s,
    lam,
    a,
    b,
    PROX: tl.constexpr,
    WIDTHS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PADDED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Put the next states over those before; return <Y - Z+, Z+ - Z> and s |Y - Z+| per sample."""
    before = ROWS * PADDED - here
    own = tl.arange(0, ROWS)[:, None] * PADDED
    turned = tl.zeros([ROWS], tl.float32)
    violation = tl.zeros([ROWS], tl.float32)
    for first in range(0, PADDED, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        gradient = tl.zeros([ROWS, COLUMNS], tl.float32)
        for k in tl.static_range(len(links)):
            deep = tl.arange(0, WIDTHS[k])[:, None] * PADDED
            adjoint = tl.load(links[k].adjoint + deep + columns[None, :])
            gradient = tl.dot(slopes[k], adjoint, gradient, input_precision=PRECISION)
        at = own + columns[None, :]
        z = tl.load(scratch + here + at)
        earlier = tl.load(scratch + before + at)
        u = tl.load(scratch + 2 * ROWS * PADDED + at)
        ahead = z + beta[:, None] * (z - earlier)
        following = PROX(ahead - (gradient - lam * u) / s, lam / s, a, b)
        following = tl.where((columns < units)[None, :], following, 0.0)
        move = ahead - following
        turned += tl.sum(move * (following - z), 1)
        violation = tl.maximum(violation, s * tl.max(tl.abs(move), 1))
        tl.store(scratch + before + at, following)
    return turned, violation
