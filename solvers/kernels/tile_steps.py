"""Accelerated proximal gradient steps of one tile, in the scratch of its program."""

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
