"""The cross-entropy on the simplex for a tile of samples: one read and one write of each."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["samples"])
def simplex_rows(
    y_ptr,
    u_ptr,
    z_ptr,
    samples,
    lam,
    CLASSES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write argmin over the simplex of -<y, log z> + lam |z - u|^2 / 2 for ROWS samples.

    Lifted Neural Networks, appendix A: sum_i z_i(nu) = 1, increasing and convex in nu, so that
    Newton's method from the printed upper bound nu <= 1 - max(u + y / lam) is monotone. A tile of
    one-hot rows has one square root for each sample, any other one for each entry.
    """
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    inside = (columns < CLASSES)[None, :]
    there = (rows < samples)[:, None] & inside
    at = rows[:, None] * CLASSES + columns[None, :]
    a = tl.load(y_ptr + at, mask=there, other=0.0) / lam
    u = tl.load(u_ptr + at, mask=there, other=0.0)
    labeled = tl.sum((a > 0).to(tl.int32), 1)
    if tl.max(labeled, 0) > 1:  # noqa: SIM108 (a branch, not a choice between two values)
        z = _soft_rows(a, u, inside)
    else:
        z = _one_hot_rows(a, u, inside)
    tl.store(z_ptr + at, z, mask=there)


@triton.jit
def _soft_rows(a, u, inside, STEPS: tl.constexpr = 50, EPS: tl.constexpr = 1.1920929e-07):
    """Return the states for any labels."""
    s = tl.where(inside, u - tl.max(tl.where(inside, u + a, float("-inf")), 1)[:, None], 0.0)
    nu = tl.full([u.shape[0]], 1.0, tl.float32)
    step, moving = 0, 1
    while (moving > 0) & (step < STEPS):
        z, slope = _states(a, s + nu[:, None])
        excess = tl.sum(tl.where(inside, z, 0.0), 1) - 1.0
        rise = tl.sum(tl.where(inside, slope, 0.0), 1)
        to = nu - tl.maximum(excess, 0.0) / tl.maximum(rise, EPS)
        moves = (excess > 8 * EPS) & (nu - to > 4 * EPS * tl.maximum(tl.abs(nu), 1.0))
        nu = to
        moving = tl.max(moves.to(tl.int32), 0)
        step += 1
    z, slope = _states(a, s + nu[:, None])
    z = tl.where(inside, z, 0.0)
    return z / tl.sum(z, 1)[:, None]


@triton.jit
def _one_hot_rows(a, u, inside, STEPS: tl.constexpr = 50, EPS: tl.constexpr = 1.1920929e-07):
    """Return the states where each row has one label at most."""
    s = tl.where(inside, u - tl.max(tl.where(inside, u + a, float("-inf")), 1)[:, None], 0.0)
    labeled = a > 0
    other = inside & (a == 0)
    weight = tl.sum(a, 1)
    own = tl.sum(tl.where(labeled, s, 0.0), 1)
    nu = tl.full([u.shape[0]], 1.0, tl.float32)
    step, moving = 0, 1
    while (moving > 0) & (step < STEPS):
        z, slope = _own_states(weight, own + nu)
        active = other & (s + nu[:, None] > 0)
        excess = z + tl.sum(tl.where(active, s + nu[:, None], 0.0), 1) - 1.0
        rise = slope + tl.sum(active.to(tl.float32), 1)
        to = nu - tl.maximum(excess, 0.0) / tl.maximum(rise, EPS)
        moves = (excess > 8 * EPS) & (nu - to > 4 * EPS * tl.maximum(tl.abs(nu), 1.0))
        nu = to
        moving = tl.max(moves.to(tl.int32), 0)
        step += 1
    z, slope = _own_states(weight, own + nu)
    rest = tl.where(other, tl.maximum(s + nu[:, None], 0.0), 0.0)
    states = tl.where(labeled, z[:, None], rest)
    return states / tl.sum(states, 1)[:, None]


@triton.jit
def _own_states(a, s):
    """Return the states of the labels and their slopes, zero where a row has no label."""
    z, slope = _states(a, s)
    return tl.where(a > 0, z, 0.0), tl.where(a > 0, slope, 0.0)


@triton.jit
def _states(a, s):
    """Return z >= 0 with z - a / z = s, and dz / ds = z / sqrt(s^2 + 4 a), cancellation free."""
    root = tl.maximum(tl.sqrt(s * s + 4.0 * a), 1e-30)
    larger = 0.5 * (tl.abs(s) + root)
    z = tl.where(s >= 0, larger, a / larger)
    return z, z / root
