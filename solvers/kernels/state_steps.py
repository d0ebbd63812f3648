"""State fits for a tile of samples: one launch runs all accelerated proximal steps.

A tile's states, the states before them, U and what pulls at them lie in a scratch of its program,
which is small enough to stay in the L2 cache of the chip; device memory sees every state once. The
weights W stream through shared memory. The prox is the epilogue of the product that is the
gradient. A step reads W once, in float16, for both of its products: they are of what has changed
since the products were last formed anew, in split TF32, and so are their errors, which fall with
the steps.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .states import Tile, Walk


@triton.jit(do_not_specialize=["samples", "limit"])  # one kernel for any of them
def state_tiles(u_ptr, z_ptr, steps_ptr, goal, layer, links, samples, limit, PLAN: tl.constexpr):
    """Move z from its start to argmin lam [Phi(Z) - <Z, U>] + the links, a tile at a time.

    Z <- prox_{lam Phi / s}(Y - g / s) with Y ahead of Z by the momentum of each sample; Beck and
    Teboulle (2009), restarted as O'Donoghue and Candes (2015). A tile ends when s |Y - Z| is
    within the goals of all its samples, or no longer falls.

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
    s = tl.load(goal.step_size)
    program, programs = tl.program_id(0), tl.num_programs(0)
    scratch = goal.scratch + program.to(tl.int64) * (4 * PLAN.rows * PLAN.padded)
    tiles = tl.cdiv(samples, PLAN.rows)
    for turn in range(0, tl.cdiv(tiles - program, programs)):
        number = program + turn * programs
        rows = number.to(tl.int64) * PLAN.rows + tl.arange(0, PLAN.rows)
        there = rows < samples
        tile = Tile(scratch, rows, there, tl.load(goal.violation + rows, mask=there, other=1.0))
        _fetch(u_ptr, z_ptr, tile, layer.units, PLAN)
        here, step = _descend(tile, layer, links, s, limit, PLAN)
        _write_back(z_ptr, tile, here, layer.units, PLAN)
        tl.store(steps_ptr + number, step)
        tl.debug_barrier()


@triton.jit
def _fetch(u_ptr, z_ptr, tile, units, PLAN: tl.constexpr):
    """Copy the states, twice, and U into the scratch, zero beyond the samples and units."""
    own = tile.scratch + tl.arange(0, PLAN.rows)[:, None] * PLAN.padded
    for first in range(0, PLAN.padded, PLAN.columns):
        columns = first + tl.arange(0, PLAN.columns)
        inside = tile.there[:, None] & (columns < units)[None, :]
        at = tile.rows[:, None] * units + columns[None, :]
        z = tl.load(z_ptr + at, mask=inside, other=0.0)
        tl.store(own + columns[None, :], z)
        tl.store(own + PLAN.rows * PLAN.padded + columns[None, :], z)
        u = tl.load(u_ptr + at, mask=inside, other=0.0)
        tl.store(own + 2 * PLAN.rows * PLAN.padded + columns[None, :], u)


@triton.jit
def _write_back(z_ptr, tile, here, units, PLAN: tl.constexpr):
    """Copy the states out of the scratch."""
    own = tile.scratch + here + tl.arange(0, PLAN.rows)[:, None] * PLAN.padded
    for first in range(0, PLAN.padded, PLAN.columns):
        columns = first + tl.arange(0, PLAN.columns)
        inside = tile.there[:, None] & (columns < units)[None, :]
        z = tl.load(own + columns[None, :])
        tl.store(z_ptr + tile.rows[:, None] * units + columns[None, :], z, mask=inside)


@triton.jit
def _descend(tile, layer, links, s, limit, PLAN: tl.constexpr, SPAN: tl.constexpr = 50):
    """Step until s |Y - Z| over the goals is at most 1, or does not fall in 200 steps.

    It is judged where products are exact: at the first step after they are formed anew, which
    they are when it has fallen by PLAN.drop, or after SPAN steps. A step moves Z by about the
    violation over s, so that what float16 takes from the gradient stays below SPAN / 1000 of it.

    Returns:
        Where the states stand in the scratch, and the steps.
    """
    rest = _row(PLAN.rows)
    walk = Walk(0, 0, s * 0.0, rest + 1.0, rest, _link_blocks(PLAN), _link_blocks(PLAN))
    opened, earlier = s * 0.0, s + float("inf")
    floor, waited, going = s * 0.0, 0, 1
    while (going > 0) & (walk.step < limit):
        tl.debug_barrier()
        seen, base = _exact(tile, walk.here, layer, links, PLAN)
        walk = Walk(walk.here, walk.step, walk.worst, walk.momentum, walk.beta, seen, walk.moved)
        span = 0
        while (span == 0) | ((walk.worst > floor) & (span < SPAN) & (walk.step < limit)):
            tl.debug_barrier()
            walk = _stepped(tile, layer, links, base, walk, s, PLAN)
            opened = tl.where(span == 0, walk.worst, opened)
            floor = tl.maximum(0.7, opened / PLAN.drop)
            span += 1
        going = (opened > 1.0).to(tl.int32)
        waited += span
        if waited >= 200:
            going = going & (opened < 0.7 * earlier).to(tl.int32)
            earlier, waited = opened, 0
    tl.debug_barrier()
    return walk.here, walk.step


@triton.jit
def _exact(tile, here, layer, links, PLAN: tl.constexpr):
    """Return Z W and the slope there for each link; put lam U - the slopes W' in the scratch."""
    seen, base = (), ()
    for k in tl.static_range(len(PLAN.links)):
        x = _product(tile.scratch + here, links[k].weight, PLAN.links[k].width, PLAN)
        slope = _slope(x, links[k], tile, k, PLAN)
        _pull(tile.scratch, slope, links[k].weight, layer.lam, PLAN.links[k].width, k == 0, PLAN)
        seen = seen + (x,)  # noqa: RUF005 (what the compiler reads)
        base = base + (slope,)  # noqa: RUF005
    return seen, base


@triton.jit
def _product(states, weight, WIDTH: tl.constexpr, PLAN: tl.constexpr):
    """Return Z W, (ROWS, WIDTH)."""
    own = tl.arange(0, PLAN.rows)[:, None] * PLAN.padded
    wide = tl.arange(0, WIDTH)[None, :]
    x = _block(PLAN.rows, WIDTH)
    for first in range(0, PLAN.padded, PLAN.depth):
        units = first + tl.arange(0, PLAN.depth)
        z = tl.load(states + own + units[None, :])
        w = tl.load(weight + units[:, None] * WIDTH + wide)
        x = tl.dot(z, w, x, input_precision="tf32x3")
    return x


@triton.jit
def _pull(
    scratch, slope, weight, lam, WIDTH: tl.constexpr, FIRST: tl.constexpr, PLAN: tl.constexpr
):
    """Subtract a link's slope W' from what pulls at the states; before the first link lam U."""
    size: tl.constexpr = PLAN.rows * PLAN.padded
    own = tl.arange(0, PLAN.rows)[:, None] * PLAN.padded
    wide = tl.arange(0, WIDTH)[None, :]
    tl.debug_barrier()
    for first in range(0, PLAN.padded, PLAN.columns):
        units = first + tl.arange(0, PLAN.columns)
        at = scratch + own + units[None, :]
        if FIRST:  # noqa: SIM108 (a branch, not a choice between two values)
            pull = lam * tl.load(at + 2 * size)
        else:
            pull = tl.load(at + 3 * size)
        w = tl.load(weight + units[:, None] * WIDTH + wide)
        pull = tl.dot(-slope, tl.trans(w), pull, input_precision="tf32x3")
        tl.store(at + 3 * size, pull)


@triton.jit
def _slope(x, link, tile, K: tl.constexpr, PLAN: tl.constexpr):
    """Return lam (grad R(x + C) - V) of link K, zero beyond the samples, (ROWS, WIDTH)."""
    kind: tl.constexpr = PLAN.links[K]
    columns = tl.arange(0, kind.width)
    valid = (columns < link.columns)[None, :]
    inside = tile.there[:, None] & valid
    at = tile.rows[:, None] * link.columns + columns[None, :]
    if kind.full:
        c = tl.load(link.offset + at, mask=inside, other=0.0)
    else:
        c = tl.load(link.offset + columns, mask=columns < link.columns, other=0.0)[None, :]
    v = tl.load(link.target + at, mask=inside, other=0.0)
    u = tl.where(valid, x + c, -1e30)
    if kind.classes:
        e = tl.exp(u - tl.max(u, 1)[:, None])
        push = e / tl.sum(e, 1)[:, None]
    else:
        scale, shift, alpha, low, high = link.map
        push = scale * u + shift
        push = tl.minimum(tl.maximum(tl.maximum(push, alpha * push), low), high)
    return tl.where(inside, link.lam * (push - v), 0.0)


@triton.jit
def _stepped(tile, layer, links, base, walk, s, PLAN: tl.constexpr):
    """Return the walk after one step, whose states stand where those before stood."""
    pushes, sizes = (), ()
    for k in tl.static_range(len(PLAN.links)):
        x = walk.seen[k] + walk.beta[:, None] * walk.moved[k]
        push, size = _scaled(_slope(x, links[k], tile, k, PLAN) - base[k])
        pushes = pushes + (push,)  # noqa: RUF005 (what the compiler reads)
        sizes = sizes + (size * tl.load(links[k].largest),)  # noqa: RUF005
    turned, violation, moved = _advanced(tile, layer, links, pushes, sizes, walk, s, PLAN)
    seen = ()
    for k in tl.static_range(len(PLAN.links)):
        seen = seen + (walk.seen[k] + moved[k],)  # noqa: RUF005
    momentum = tl.where(turned > 0, 1.0, walk.momentum)
    larger = (1.0 + tl.sqrt(1.0 + 4.0 * momentum * momentum)) / 2.0
    worst = tl.max(tl.where(tile.there, violation / tile.goal, 0.0), 0)
    here = PLAN.rows * PLAN.padded - walk.here
    return Walk(here, walk.step + 1, worst, larger, (momentum - 1.0) / larger, seen, moved)


@triton.jit
def _advanced(tile, layer, links, pushes, sizes, walk, s, PLAN: tl.constexpr):
    """Put the next states over those before, a part of the units at a time.

    Returns:
        <Y - Z+, Z+ - Z> and s |Y - Z+| of each sample, and (Z+ - Z) W for each link.
    """
    size: tl.constexpr = PLAN.rows * PLAN.padded
    own = tile.scratch + tl.arange(0, PLAN.rows)[:, None] * PLAN.padded
    turned, largest = _block(PLAN.rows, PLAN.columns), _block(PLAN.rows, PLAN.columns)
    moved = _link_blocks(PLAN)
    for first in range(0, PLAN.padded, PLAN.columns):
        units = first + tl.arange(0, PLAN.columns)
        at = own + units[None, :]
        gradient, weights = _block(PLAN.rows, PLAN.columns), ()
        for k in tl.static_range(len(PLAN.links)):
            wide = tl.arange(0, PLAN.links[k].width)[None, :]
            w = tl.load(links[k].half + units[:, None] * PLAN.links[k].width + wide)
            gradient += sizes[k] * tl.dot(pushes[k], tl.trans(w))
            weights = weights + (w,)  # noqa: RUF005 (what the compiler reads)
        z, before = tl.load(at + walk.here), tl.load(at + (size - walk.here))
        ahead = z + walk.beta[:, None] * (z - before)
        pulled = ahead + tl.load(at + 3 * size) / s - gradient / s
        share = layer.lam / s
        following = tl.maximum(pulled / (1.0 + share), pulled / (1.0 + share / layer.alpha))
        following = tl.minimum(tl.maximum(following, layer.low), layer.high)
        following = tl.where((units < layer.units)[None, :], following, 0.0)
        turned += (ahead - following) * (following - z)
        largest = tl.maximum(largest, tl.abs(ahead - following))
        tl.store(at + (size - walk.here), following)
        moved = _added(moved, following - z, weights, links, PLAN)
    return tl.sum(turned, 1), s * tl.max(largest, 1), moved


@triton.jit
def _added(moved, change, weights, links, PLAN: tl.constexpr):
    """Return moved + change W for each link."""
    half, size = _scaled(change)
    sums = ()
    for k in tl.static_range(len(PLAN.links)):
        scale = size * tl.load(links[k].largest)
        sums = sums + (moved[k] + scale * tl.dot(half, weights[k]),)  # noqa: RUF005
    return sums


@triton.jit
def _scaled(x):
    """Return x over the largest entry of its row, in float16, and that entry, (ROWS, 1)."""
    size = tl.maximum(tl.max(tl.abs(x), 1), 1e-30)[:, None]
    return (x / size).to(tl.float16), size


@triton.jit
def _link_blocks(PLAN: tl.constexpr):
    """Return zeros, (ROWS, WIDTH) for each link."""
    blocks = ()
    for k in tl.static_range(len(PLAN.links)):
        blocks = blocks + (_block(PLAN.rows, PLAN.links[k].width),)  # noqa: RUF005
    return blocks


@triton.jit
def _block(ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    return tl.zeros([ROWS, COLUMNS], tl.float32)


@triton.jit
def _row(ROWS: tl.constexpr):
    return tl.zeros([ROWS], tl.float32)
