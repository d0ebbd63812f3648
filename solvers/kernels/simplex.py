"""The cross-entropy on the simplex for a tile of samples: one read and one write of each.

A tile is a tuple of parts. With many classes they are blocks of some columns each, whose rows are
summed across a few threads; with few, one vector for each class, so that a thread has a sample of
its own and sums are in its registers. Arithmetic, not memory, is what the time goes to otherwise.
"""

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
    PART: tl.constexpr,
):
    """Write argmin over the simplex of -<y, log z> + lam |z - u|^2 / 2 for ROWS samples.

    Lifted Neural Networks, appendix A: sum_i z_i(nu) = 1, increasing and convex in nu, from the
    printed upper bound nu <= 1 - max(u + y / lam) down. Rows with one label at most have one
    square root for each sample, any other ones for each entry. A part has PART classes.
    """
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    y = _loaded(y_ptr, rows, samples, 0.0, CLASSES, PART)
    u = _loaded(u_ptr, rows, samples, -1e18, CLASSES, PART)
    s, label = _shifted(y, u, 1.0 / lam, PART > 1), _summed(y, PART > 1)
    many = (label > _largest(y, PART > 1)).to(tl.int32)
    if tl.max(many, 0) > 0:
        z = _soft_rows(y, s, 1.0 / lam, PART > 1)
    else:
        z = _one_hot_rows(y, s, label, 1.0 / lam, PART > 1)
    if PART > 1:
        _store_parts(z_ptr, z, rows, samples, CLASSES, PART)
    else:
        _store_columns(z_ptr, z, rows, samples, ROWS, CLASSES)


@triton.jit
def _loaded(ptr, rows, samples, beyond, CLASSES: tl.constexpr, PART: tl.constexpr):
    """Return the parts: blocks, or a vector for each class, read in pairs where those align."""
    parts = ()
    if PART > 1:
        for first in tl.static_range(0, CLASSES, PART):
            columns = first + tl.arange(0, PART)
            there = (rows < samples)[:, None] & (columns < CLASSES)[None, :]
            at = rows[:, None] * CLASSES + columns[None, :]
            parts = parts + (tl.load(ptr + at, mask=there, other=beyond),)  # noqa: RUF005
    elif CLASSES % 2 == 0:
        there = (rows < samples)[:, None]
        for first in tl.static_range(0, CLASSES, 2):
            at = rows[:, None] * CLASSES + first + tl.arange(0, 2)[None, :]
            even, odd = tl.split(tl.load(ptr + at, mask=there, other=0.0))
            parts = parts + (even, odd)  # noqa: RUF005 (what the compiler reads)
    else:
        for k in tl.static_range(CLASSES):
            one = tl.load(ptr + rows * CLASSES + k, mask=rows < samples, other=0.0)
            parts = parts + (one,)  # noqa: RUF005
    return parts


@triton.jit
def _store_parts(ptr, parts, rows, samples, CLASSES: tl.constexpr, PART: tl.constexpr):
    """Write blocks of columns."""
    for k in tl.static_range(len(parts)):
        columns = k * PART + tl.arange(0, PART)
        there = (rows < samples)[:, None] & (columns < CLASSES)[None, :]
        tl.store(ptr + rows[:, None] * CLASSES + columns[None, :], parts[k], mask=there)


@triton.jit
def _store_columns(ptr, parts, rows, samples, ROWS: tl.constexpr, CLASSES: tl.constexpr):
    """Write a vector for each class as one block, so that whole lines are written at once."""
    block = _block(parts, ROWS, triton.next_power_of_2(CLASSES))
    columns = tl.arange(0, triton.next_power_of_2(CLASSES))
    there = (rows < samples)[:, None] & (columns < CLASSES)[None, :]
    tl.store(ptr + rows[:, None] * CLASSES + columns[None, :], block, mask=there)


@triton.jit
def _block(parts, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return vectors as the columns of a block, (ROWS, COLUMNS), zero beyond them."""
    wide = _filled(parts, ROWS, COLUMNS)
    for _ in tl.static_range(5):
        if len(wide) > 1:
            wide = _joined(wide, ROWS, COLUMNS // (len(wide) // 2))
    return wide[0]


@triton.jit
def _filled(parts, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return as many blocks of one column, (ROWS, 1) each, zero beyond the parts."""
    wide = ()
    for k in tl.static_range(COLUMNS):
        part = parts[k] if k < len(parts) else tl.zeros([ROWS], tl.float32)
        wide = wide + (tl.reshape(part, [ROWS, 1]),)  # noqa: RUF005
    return wide


@triton.jit
def _joined(blocks, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Return half as many blocks, columns of two in turn, (ROWS, WIDTH) each."""
    joined = ()
    for k in tl.static_range(len(blocks) // 2):
        both = tl.join(blocks[k], blocks[k + len(blocks) // 2])
        joined = joined + (tl.reshape(both, [ROWS, WIDTH]),)  # noqa: RUF005
    return joined


@triton.jit
def _shifted(y, u, scale, WIDE: tl.constexpr):
    """Return u less the largest u + y / lam of its row."""
    sums, s = (), ()
    for k in tl.static_range(len(y)):
        sums = sums + (u[k] + scale * y[k],)  # noqa: RUF005
    top = _spread(_largest(sums, WIDE), WIDE)
    for k in tl.static_range(len(y)):
        s = s + (u[k] - top,)  # noqa: RUF005
    return s


@triton.jit
def _largest(parts, WIDE: tl.constexpr):
    """Return the largest entry of each row."""
    top = parts[0]
    for k in tl.static_range(1, len(parts)):
        top = tl.maximum(top, parts[k])
    return tl.max(top, 1) if WIDE else top


@triton.jit
def _summed(parts, WIDE: tl.constexpr):
    """Return the sum of each row."""
    total = parts[0]
    for k in tl.static_range(1, len(parts)):
        total += parts[k]
    return tl.sum(total, 1) if WIDE else total


@triton.jit
def _spread(row, WIDE: tl.constexpr):
    return row[:, None] if WIDE else row


@triton.jit
def _normalized(z, WIDE: tl.constexpr):
    """Return the states over their sums."""
    share, states = _spread(1.0 / _summed(z, WIDE), WIDE), ()
    for k in tl.static_range(len(z)):
        states = states + (share * z[k],)  # noqa: RUF005
    return states


@triton.jit
def _soft_rows(
    y, s, scale, WIDE: tl.constexpr, STEPS: tl.constexpr = 50, EPS: tl.constexpr = 1.1920929e-07
):
    """Return the states for any labels, by Newton's method from above."""
    a = ()
    for k in tl.static_range(len(y)):
        a = a + (scale * y[k],)  # noqa: RUF005
    nu = _summed(a, WIDE) * 0.0 + 1.0
    step, moving = 0, 1
    while (moving > 0) & (step < STEPS):
        z, slope = _states(a, s, nu, WIDE)
        excess = _summed(z, WIDE) - 1.0
        to = nu - tl.maximum(excess, 0.0) / tl.maximum(_summed(slope, WIDE), EPS)
        moves = (excess > 8 * EPS) & (nu - to > 4 * EPS * tl.maximum(tl.abs(nu), 1.0))
        nu = to
        moving = tl.max(moves.to(tl.int32), 0)
        step += 1
    z, slope = _states(a, s, nu, WIDE)
    return _normalized(z, WIDE)


@triton.jit
def _states(a, s, nu, WIDE: tl.constexpr):
    """Return z >= 0 with z - a / z = s + nu, and dz / dnu = z / sqrt((s + nu)^2 + 4 a).

    Nothing cancels.
    """
    states, slopes = (), ()
    for k in tl.static_range(len(a)):
        x = s[k] + _spread(nu, WIDE)
        root = tl.maximum(tl.sqrt(x * x + 4.0 * a[k]), 1e-30)
        larger = 0.5 * (tl.abs(x) + root)
        z = tl.where(x >= 0, larger, a[k] / larger)
        states, slopes = states + (z,), slopes + (z / root,)  # noqa: RUF005
    return states, slopes


@triton.jit
def _one_hot_rows(y, s, label, scale, WIDE: tl.constexpr):
    """Return the states where each row has one label at most.

    Of the other entries those with s + nu > 0 are not zero. For a set of them that is given, nu is
    a root of a quadratic equation; down from the upper bound the sets shrink, so that a handful
    of them is looked at. Labels are told by products: conditions cost more.
    """
    share = 1.0 / tl.where(label > 0, label, 1.0)
    own, others = (), ()
    for k in tl.static_range(len(y)):
        part = _spread(share, WIDE) * y[k]  # 1 at the label
        own = own + (part * s[k],)  # noqa: RUF005
        others = others + (s[k] - 1e18 * part,)  # noqa: RUF005
    own, label = _summed(own, WIDE), scale * label
    nu, z, before = label * 0.0 + 1.0, label, label * 0.0 - 1.0
    going = 1
    while going > 0:
        count, total = _active(others, nu, WIDE)
        changed = count != before
        z = tl.where(changed, _labeled(label, own, count, total), z)
        nu = tl.minimum(nu, _multiplier(label, own, count, total, z))
        going = tl.max(changed.to(tl.int32), 0)
        before = count
    states = ()
    for k in tl.static_range(len(y)):
        rest = tl.maximum(others[k] + _spread(nu, WIDE), 0.0)
        states = states + (rest + _spread(share * z, WIDE) * y[k],)  # noqa: RUF005
    return _normalized(states, WIDE)


@triton.jit
def _labeled(a, own, count, total):
    """Return the z > 0 of the label where `count` other entries sum to total + count nu.

    From z - a / z = own + nu and z + total + count nu = 1; zero where a row has no label.
    """
    b = count * own + 1.0 - total
    root = tl.sqrt(b * b + 4.0 * a * count * (count + 1.0))
    small = 2.0 * a * count / tl.maximum(root - b, 1e-30)
    z = tl.where(b > 0, (b + root) / (2.0 * (count + 1.0)), small)
    return tl.where(a > 0, z, 0.0)


@triton.jit
def _multiplier(a, own, count, total, z):
    """Return nu for the z of the label; where there is no other entry it is that of z = 1."""
    return tl.where(count > 0, (1.0 - total - z) / tl.maximum(count, 1.0), 1.0 - a - own)


@triton.jit
def _active(others, nu, WIDE: tl.constexpr):
    """Return how many entries have s + nu > 0, and the sum of their s."""
    ones, values = (), ()
    for k in tl.static_range(len(others)):
        on = others[k] > -_spread(nu, WIDE)
        ones = ones + (tl.where(on, 1.0, 0.0),)  # noqa: RUF005
        values = values + (tl.where(on, others[k], 0.0),)  # noqa: RUF005
    return _summed(ones, WIDE), _summed(values, WIDE)
