"""Newton's method on the dual of state fits below quadratic links, samples in lanes.

min over y of |y + h|^2 / 2 + Phi*(u - y A') for every sample, phi piecewise linear: its slopes D
change in a few units from step to step, and so does the Hessian I + A' D A, which is kept.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .lanes import (
    WIDE,
    compiled,
    copy,
    differs,
    fill,
    filled,
    inner,
    load,
    multiply,
    padded,
    scale,
    subtract_inner,
    subtract_multiple,
)

_STEPS = 100
_PATIENCE = 8  # steps in which the violation must fall
_SEARCHES = 20
_HUGE = 1e30
_FULL = 3  # steps before lines are searched, fewest in time, measured
_FLAT = 0.5  # a line search ends when the slope has fallen to this share
# where the numbers of lanes stand
_VIOLATION, _INITIAL, _CURVATURE, _STEP, _SLOPE, _LOW, _LOW_SLOPE, _HIGH, _SHARE = range(9)


class Shared(NamedTuple):
    """What all samples share, in one precision; columns are filled up to a multiple of TOGETHER.

    Attributes:
        map: A, (units, r).
        adjoint: A', (r, units).
        products: of any two columns of A, (units, r (r + 1) / 2), row by row of a triangle.
        spectrum: the diagonal of A'A, (r, WIDE).
        alpha: the slope of phi below 0.
        low: the least value of phi.
        high: its largest.
    """

    map: Any
    adjoint: Any
    products: Any
    spectrum: Any
    alpha: Any
    low: Any
    high: Any


class Room(NamedTuple):
    """Where a block of samples stands, blocks of (rows, WIDE)."""

    u: Any
    h: Any
    y: Any
    w: Any
    moved: Any
    v: Any
    slopes: Any
    changes: Any
    hessian: Any
    factor: Any
    gradient: Any
    direction: Any
    lanes: Any
    chosen: Any


@inner
def _shared(matrix, spectrum, alpha, low, high, zero):
    """Return what all samples share, in the precision of zero."""
    units, r = matrix.shape
    kind, pairs = zero.dtype, r * (r + 1) // 2
    map_ = np.zeros((units, filled(r)), kind)
    adjoint = np.zeros((r, filled(units)), kind)
    products = np.zeros((units, filled(pairs)), kind)
    weights = np.zeros((filled(r), WIDE), kind)
    for i in range(units):
        at = 0
        for k in range(r):
            map_[i, k] = adjoint[k, i] = matrix[i, k]
            for j in range(k, r):
                products[i, at] = matrix[i, k] * matrix[i, j]
                at += 1
    for k in range(r):
        weights[k, :] = spectrum[k]
    number = kind.type
    return Shared(map_, adjoint, products, weights, number(alpha), number(low), number(high))


@inner
def _room(shared, zero):
    """Return room for a block in the precision of zero."""
    kind, units, r = zero.dtype, len(shared.map), len(shared.adjoint)
    wide, narrow = shared.adjoint.shape[1], shared.map.shape[1]
    triangle, widest = shared.products.shape[1], max(wide, narrow)
    chosen = np.zeros(max(units, r) + units, np.int64)
    for n in range(max(units, r)):
        chosen[n] = n
    return Room(
        np.zeros((wide, WIDE), kind),
        np.zeros((narrow, WIDE), kind),
        np.zeros((narrow, WIDE), kind),
        np.zeros((wide, WIDE), kind),
        np.zeros((wide, WIDE), kind),
        np.zeros((wide, WIDE), kind),
        np.zeros((wide, WIDE), kind),
        np.zeros((widest, WIDE), kind),
        np.zeros((triangle, WIDE), kind),
        np.zeros((triangle, WIDE), kind),
        np.zeros((narrow, WIDE), kind),
        np.zeros((narrow, WIDE), kind),
        np.zeros((9, WIDE), kind),
        chosen,
    )


@inner
def _lift(shared, room, y, out):
    """Take A y from out."""
    flat, negative = y.ravel(), room.changes.ravel()
    for n in range(len(flat)):
        negative[n] = -flat[n]
    multiply(out, shared.adjoint, room.chosen, len(shared.adjoint), room.changes)


@inner
def _states(w, v, alpha, low, high):
    """Put phi(w) into v, flat arrays."""
    for n in range(len(v)):
        v[n] = min(max(max(w[n], alpha * w[n]), low), high)


@inner
def _slope(y, h, spectrum, gradient, weighed):
    """Put y + h - gradient into gradient, and its product with the spectrum; flat arrays."""
    for n in range(len(y)):
        gradient[n] = y[n] + h[n] - gradient[n]
        weighed[n] = spectrum[n] * gradient[n]


@inner
def _look(shared, room):
    """Put phi(w) into v and the gradient y + h - A'phi(w) there; return the largest violation.

    It is relative to the scale of its sample.
    """
    _states(room.w.ravel(), room.v.ravel(), shared.alpha, shared.low, shared.high)
    fill(room.gradient, 0)
    multiply(room.gradient, shared.map, room.chosen, len(shared.map), room.v)
    lanes, weighed = room.lanes, room.direction
    _slope(
        room.y.ravel(),
        room.h.ravel(),
        shared.spectrum.ravel(),
        room.gradient.ravel(),
        weighed.ravel(),
    )
    for lane in range(WIDE):
        lanes[_VIOLATION, lane] = 0
    subtract_inner(lanes, _VIOLATION, len(shared.adjoint), weighed, 0, room.gradient, 0)
    worst = lanes[_VIOLATION, 0] * lanes[_SHARE, 0]
    for lane in range(WIDE):
        lanes[_VIOLATION, lane] *= lanes[_SHARE, lane]
        worst = min(worst, lanes[_VIOLATION, lane])
    return np.sqrt(-worst)


@inner
def _slopes(w, v, slopes, changes, alpha, low, high):
    """Put the slopes of phi at w into slopes, and by how much they change into changes; flat."""
    one, zero = w.dtype.type(1), w.dtype.type(0)
    for n in range(len(w)):
        slope = one if w[n] > zero else alpha
        slope = slope if v[n] > low else zero
        slope = slope if v[n] < high else zero
        changes[n] = slope - slopes[n]
        slopes[n] = slope


@inner
def _curve(shared, room, model, kept, first):
    """Bring the Hessian to the slopes of phi at w, and factor it."""
    ends = shared.alpha, shared.low, shared.high
    _slopes(room.w.ravel(), room.v.ravel(), kept.slopes.ravel(), kept.changes.ravel(), *ends)
    count, changed = 0, room.chosen[-len(shared.map) :]
    for i in range(len(shared.map)):
        if differs(kept.changes, i):
            changed[count] = i
            count += 1
    if count > 0 or first:
        multiply(kept.hessian, model.products, changed, count, kept.changes)
        copy(kept.hessian, kept.factor)
        _factor(kept.factor, len(shared.adjoint))


@inner
def _factor(upper, r):
    """Replace a triangle of a positive definite matrix, at least I, by its factor R'R.

    On the diagonal stand the inverses.
    """
    flat, at = upper.ravel(), 0
    one = flat.dtype.type(1)
    for k in range(r):
        for lane in range(at * WIDE, (at + 1) * WIDE):
            flat[lane] = one / np.sqrt(max(flat[lane], one))
        scale(upper, at + 1, r - k - 1, upper, at)
        to = at + r - k
        for i in range(1, r - k):
            subtract_multiple(upper, to, r - k - i, upper, at + i, upper, at + i)
            to += r - k - i
        at += r - k


@inner
def _solve(upper, r, x):
    """Replace x by the solution of R'R x."""
    at = 0
    for k in range(r):
        for lane in range(WIDE):
            x[k, lane] *= upper[at, lane]
        subtract_multiple(x, k + 1, r - k - 1, upper, at + 1, x, k)
        at += r - k
    for k in range(r - 1, -1, -1):
        at -= r - k
        subtract_inner(x, k, r - k - 1, upper, at + 1, x, k + 1)
        for lane in range(WIDE):
            x[k, lane] *= upper[at, lane]


@inner
def _ahead(w, moved, v, change, alpha, low, high):
    """Put phi(w) - phi(w + moved) into change; flat arrays, v = phi(w)."""
    for n in range(len(change)):
        to = w[n] + moved[n]
        change[n] = v[n] - min(max(max(to, alpha * to), low), high)


@inner
def _add(block, values):
    flat, other = block.ravel(), values.ravel()
    for n in range(len(flat)):
        flat[n] += other[n]


@inner
def _search(shared, room):
    """Bring the direction, and what it moves w by, to the length where the slope all but vanishes.

    The slope increases with the step: secants in a bracket find its root, in each lane.
    """
    lanes, units, r = room.lanes, len(shared.map), len(shared.adjoint)
    w, moved, v, change = room.w, room.moved, room.v, room.changes
    for row in range(1, _SHARE):
        for lane in range(WIDE):
            lanes[row, lane] = 0
    subtract_inner(lanes, _INITIAL, r, room.direction, 0, room.gradient, 0)
    subtract_inner(lanes, _CURVATURE, r, room.direction, 0, room.direction, 0)
    for lane in range(WIDE):
        lanes[_LOW_SLOPE, lane] = -lanes[_INITIAL, lane]
        lanes[_STEP, lane], lanes[_HIGH, lane] = 1, np.inf
    for _ in range(_SEARCHES):
        ends = shared.alpha, shared.low, shared.high
        _ahead(w.ravel(), moved.ravel(), v.ravel(), change.ravel(), *ends)
        for lane in range(WIDE):
            lanes[_SLOPE, lane] = 0
        subtract_inner(lanes, _SLOPE, units, change, 0, moved, 0)
        going = False
        for lane in range(WIDE):
            step, initial = lanes[_STEP, lane], -lanes[_INITIAL, lane]
            slope = initial - step * lanes[_CURVATURE, lane] + lanes[_SLOPE, lane] / step
            lanes[_SLOPE, lane] = 1
            if abs(slope) <= -_FLAT * initial or not initial < 0:
                continue
            going = True
            low, low_slope = lanes[_LOW, lane], lanes[_LOW_SLOPE, lane]
            secant = step - slope * (step - low) / (slope - low_slope)
            if slope < 0:
                low = lanes[_LOW, lane] = step
                lanes[_LOW_SLOPE, lane] = slope
            else:
                lanes[_HIGH, lane] = step
            high = lanes[_HIGH, lane]
            middle = 4 * step if np.isinf(high) else (low + high) / 2
            lanes[_STEP, lane] = secant if low < secant < high else middle
            lanes[_SLOPE, lane] = lanes[_STEP, lane] / step
        if not going:
            break
        scale(moved, 0, units, lanes, _SLOPE)
        scale(room.direction, 0, r, lanes, _SLOPE)


@inner
def _finite(found, direction):
    """Take over a direction, 0 where the factor of a Hessian too ill-conditioned overflowed."""
    for n in range(len(direction)):
        direction[n] = found[n] if abs(found[n]) < _HUGE else 0.0


@inner
def _newton(shared, room, model, kept, goal):
    """Take Newton steps until all violations are within the goal, or fall no more.

    Args:
        shared: in the precision of the steps.
        room: where they lead, with y and w = u - A y.
        model: in the precision of the Hessian.
        kept: its room, with the Hessian of its slopes.
        goal: the relative violation at which a sample is solved.

    Returns:
        The steps taken.
    """
    before, r = np.inf, len(shared.adjoint)
    for step in range(_STEPS):
        worst = _look(shared, room)
        if worst <= goal:
            return step
        if step % _PATIENCE == _PATIENCE - 1:
            if worst > 0.7 * before:
                return step
            before = worst
        _curve(shared, room, model, kept, step == 0)
        for k in range(r):
            for lane in range(WIDE):
                late = -room.lanes[_VIOLATION, lane] > goal * goal
                kept.direction[k, lane] = -room.gradient[k, lane] if late else 0.0
        _solve(kept.factor, r, kept.direction)
        _finite(kept.direction.ravel(), room.direction.ravel())
        fill(room.moved, 0)
        _lift(shared, room, room.direction, room.moved)
        if step >= _FULL:
            _search(shared, room)
        _add(room.y, room.direction)
        _add(room.w, room.moved)
    return _STEPS


@inner
def _begin(room, r):
    """Set the Hessian to I, that of slopes which are 0."""
    fill(room.slopes, 0)
    fill(room.hessian, 0)
    flat, at = room.hessian.ravel(), 0
    for k in range(r):
        for lane in range(at * WIDE, (at + 1) * WIDE):
            flat[lane] = 1
        at += r - k


@inner
def _targets(links, first, lam, turn, room):
    """Put sqrt(scale) ((V - c) / L - C) of every link into h, in the coordinates of A."""
    asked, offset, columns = room.gradient, room.direction, len(links.lam)
    load(links.target, first, asked)
    load(links.offset, first, offset)
    for k in range(columns):
        slope, curvature = links.slope[k], links.curvature[k]
        root = np.sqrt(links.lam[k] * curvature / lam)
        for lane in range(WIDE):
            asked[k, lane] = root * ((asked[k, lane] - slope) / curvature - offset[k, lane])
    fill(room.h, 0)
    multiply(room.h, turn, room.chosen, len(turn), asked)


@inner
def _typical(u, v, alpha, low, high):
    """Return the mean slope of phi at u, where it is v; flat arrays."""
    total = 0.0
    for n in range(len(u)):
        slope = 1.0 if u[n] > 0 else alpha
        total += slope if low < v[n] < high else 0.0
    return total / len(u)


@inner
def _multipliers(shared, room, start, first):
    """Put v A - h at given states v into y; from phi(u) a step for slopes that are typical."""
    slope, units = 0.0, len(shared.map)
    if len(start) > 0:
        load(start, first, room.v)
    else:
        u, v, ends = room.u[:units].ravel(), room.v[:units].ravel(), (shared.low, shared.high)
        _states(u, v, shared.alpha, *ends)
        slope = _typical(u, v, shared.alpha, *ends)
    fill(room.y, 0)
    multiply(room.y, shared.map, room.chosen, units, room.v)
    y, h, spectrum = room.y.ravel(), room.h.ravel(), shared.spectrum.ravel()
    for n in range(len(y)):
        y[n] = (y[n] - h[n]) / (1 + slope * spectrum[n])


@inner
def _scale(shared, room):
    """Put 1 over the square of the largest of 1, |u| as far as phi follows it, and A h there."""
    u, v, share = room.u, room.moved, room.lanes[_SHARE]
    _states(u.ravel(), v.ravel(), shared.alpha, shared.low, shared.high)
    share[:] = 1
    for i in range(len(v)):
        for lane in range(WIDE):
            share[lane] = max(share[lane], min(abs(u[i, lane]), abs(v[i, lane])))
    fill(room.moved, 0)
    _lift(shared, room, room.h, room.moved)
    for i in range(len(v)):
        for lane in range(WIDE):
            share[lane] = max(share[lane], abs(room.moved[i, lane]))
    for lane in range(WIDE):
        share[lane] = 1 / share[lane] ** 2


@compiled
def newton_rows(u, links, lam, start, matrix, turn, spectrum, line, tolerance, z):
    """Put the states of all samples into z.

    Args:
        u: pre-activations, (samples, units), float64 as all that follows.
        links: a `LinkRows`.
        lam: the weight of Phi.
        start: states to start from, (samples, units), or none, (0, units).
        matrix: A, (units, r), float64.
        turn: the rotation that A contains, (r, r), float64.
        spectrum: the diagonal of A'A, (r,), float64.
        line: phi, a `LoopMap`.
        tolerance: the relative violation at which a sample is solved.
        z: the states, (samples, units), written.

    Returns:
        The most steps that a block took.
    """
    alpha, low, high = line.alpha, line.low, line.high
    single, double = np.zeros(1, np.float32), np.zeros(1)
    model = _shared(matrix, spectrum, alpha, low, high, single)
    shared = _shared(matrix, spectrum, alpha, low, high, double)
    kept, room, most, r = _room(model, single), _room(shared, double), 0, len(turn)
    whole = padded(turn)
    for first in range(0, len(u), WIDE):
        load(u, first, room.u)
        _targets(links, first, lam, whole, room)
        _multipliers(shared, room, start, first)
        _scale(shared, room)
        copy(room.u, room.w)
        _lift(shared, room, room.y, room.w)
        _begin(kept, r)
        most = max(most, _newton(shared, room, model, kept, tolerance))
        for lane in range(min(WIDE, len(u) - first)):
            for i in range(z.shape[1]):
                v = room.v[i, lane]
                z[first + lane, i] = v if abs(v) < _HUGE else 0.0  # others finish it
    return most
