"""Output fits for a tile of samples: one read and one write of each."""

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
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr = 50,
    EPS: tl.constexpr = 1.1920929e-07,
):
    """Write argmin over the simplex of -<y, log z> + lam |z - u|^2 / 2 for ROWS samples.

    Lifted Neural Networks, appendix A: sum_i z_i(nu) = 1, increasing and convex in nu, by Newton's
    method from the printed upper bound nu <= 1 - max(u + y / lam) down. WIDTH is a power of two.
    """
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    there = (rows < samples)[:, None] & (columns < CLASSES)[None, :]
    at = rows[:, None] * CLASSES + columns[None, :]
    a = tl.load(y_ptr + at, mask=there, other=0.0) / lam
    u = tl.load(u_ptr + at, mask=there, other=-1e18)
    s = u - tl.max(u + a, 1)[:, None]
    nu = tl.sum(a, 1) * 0.0 + 1.0
    step, moving = 0, 1
    while (moving > 0) & (step < STEPS):
        z, slope = _states(a, s + nu[:, None])
        excess = tl.sum(z, 1) - 1.0
        to = nu - tl.maximum(excess, 0.0) / tl.maximum(tl.sum(slope, 1), EPS)
        moves = (excess > 8 * EPS) & (nu - to > 4 * EPS * tl.maximum(tl.abs(nu), 1.0))
        nu = to
        moving = tl.max(moves.to(tl.int32), 0)
        step += 1
    z, slope = _states(a, s + nu[:, None])
    tl.store(z_ptr + at, z / tl.sum(z, 1)[:, None], mask=there)


@triton.jit
def _states(a, x):
    """Return z >= 0 with z - a / z = x, and dz / dx = z / sqrt(x^2 + 4 a); nothing cancels."""
    root = tl.maximum(tl.sqrt(x * x + 4.0 * a), 1e-30)
    larger = 0.5 * (tl.abs(x) + root)
    z = tl.where(x >= 0, larger, a / larger)
    return z, z / root
