"""State fits below quadratic links, and weights by their Gram matrix, by coordinate descent.

min over z of rest(z) - <z, b> + z'Hz / 2 for every sample, or unit of weights, with a rest of two
parabolas and a kink for each entry: one sample after another, ended by exact solves, or, of states
with H = A A', in sweeps over sixteen samples in lanes. There a
unit's gradient is brought up to date when its turn comes, by one product with the last changes of
all units; these products are in float32, around states whose gradient is known in float64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from .lanes import (
    SINGLE,
    TOGETHER,
    WIDE,
    Writer,
    add_rows,
    compiled,
    copy,
    fill,
    filled,
    intrinsic,
    largest,
    load,
    multiply,
    without_result,
)

_ROUNDS = 20  # of descent and exact solves in turn
_SOLVES = 5  # in turn, as long as ever fewer units change their piece
_PASSES = 500  # of a round
_SAFE = 0.7  # share of the goal at which the gradient is taken anew
_DIGITS = 3e-4  # by which changes fall until the gradient is taken anew
_LOW, _BELOW, _ZERO, _ABOVE, _HIGH = range(5)  # the pieces of a unit, where it may be


class Rest(NamedTuple):
    """What each unit has of its own: curvature z^2 / 2 + kink |z| between its ends.

    Attributes:
        low: of each, (1 or samples, units).
        high: likewise.
        below: the curvature below 0.
        above: that above.
        kink: at 0.
    """

    low: Any
    high: Any
    below: Any
    above: Any
    kink: Any


class Place(NamedTuple):
    """Room for one sample.

    Attributes:
        z: states, float64.
        single: the same in float32.
        gradient: H z - b, float64.
        slope: the same in float32.
        pieces: where each unit is.
        free: the units that are at no end, `count` of them.
    """

    z: Any
    single: Any
    gradient: Any
    slope: Any
    pieces: Any
    free: Any


@compiled
def _place(units):
    whole, half = np.float64, np.float32
    return Place(
        np.zeros(units, whole), np.zeros(units, half), np.zeros(units, whole),
        np.zeros(units, half), np.zeros(units, np.int64), np.zeros(units, np.int64),
    )  # fmt: skip


@compiled
def _piece(v, low, high, rest):
    """Return the piece that a state is on."""
    if v <= low:
        return _LOW
    if v >= high:
        return _HIGH
    if v == 0 and rest.kink > 0:
        return _ZERO
    return _BELOW if v < 0 and (rest.kink > 0 or rest.below != rest.above) else _ABOVE


@compiled
def _gradient(hessian, right, z, gradient):
    """Put H z - b into the gradient."""
    units = len(z)
    for k in range(units):
        gradient[k] = -right[k]
    for i in range(units):
        if z[i] != 0:
            v, row = z[i], hessian[i]
            for k in range(units):
                gradient[k] += v * row[k]


@compiled
def _pass(hessian, low, high, rest, at, slope, pieces):
    """Minimize over one unit after another; return how many changed their state and their piece."""
    moved, turned, zero, one = 0, 0, rest.kink - rest.kink, rest.kink - rest.kink + 1
    for i in range(len(at)):
        row = hessian[i]
        pull, steep = row[i] * at[i] - slope[i], rest.above + row[i]
        excess = pull - rest.kink
        if excess <= zero:
            steep = rest.below + row[i]
            excess = min(pull + rest.kink, zero)
        v = excess / (steep if steep > zero else one)
        v = min(max(v, low[i]), high[i])
        change = v - at[i]
        if change != 0:
            at[i] = v
            moved += 1
            for k in range(len(at)):
                slope[k] += change * row[k]
            piece = _piece(v, low[i], high[i], rest)
            turned += piece != pieces[i]
            pieces[i] = piece
    return moved, turned


@compiled
def _solved(hessian, right, low, high, rest, place):
    """Put the minimizer on the pieces into z."""
    units, count = len(right), 0
    z, pieces, free = place.z, place.pieces, place.free
    for i in range(units):
        z[i] = 0.0
        if pieces[i] == _LOW:
            z[i] = low[i]
        elif pieces[i] == _HIGH:
            z[i] = high[i]
        elif pieces[i] != _ZERO:
            free[count] = i
            count += 1
    if count == 0:
        return
    _gradient(hessian, right, z, place.gradient)
    system = np.empty((count, count))
    for n in range(count):
        i = free[n]
        row = hessian[i]
        for m in range(n + 1):
            system[n, m] = row[free[m]]
        system[n, n] += rest.below if pieces[i] == _BELOW else rest.above
    factor = np.linalg.cholesky(system)
    x = np.empty(count)
    for n in range(count):
        i, row = free[n], factor[n]
        total = -place.gradient[i] - (rest.kink if pieces[i] == _ABOVE else -rest.kink)
        for m in range(n):
            total -= row[m] * x[m]
        x[n] = total / row[n]
    for n in range(count - 1, -1, -1):
        row = factor[n]
        x[n] /= row[n]
        for m in range(n):
            x[m] -= row[m] * x[n]
    for n in range(count):
        z[free[n]] = x[n]


@compiled
def _cost(pieces):
    """Return the operations of a solve."""
    count = 0
    for i in range(len(pieces)):
        count += _LOW < pieces[i] < _HIGH and pieces[i] != _ZERO
    return count * (count * count / 6.0 + 4.0 * len(pieces))


@compiled
def _turned(hessian, right, low, high, rest, place, goal):
    """Move units to the piece where their state or slope is; return how many were elsewhere."""
    z, gradient, pieces, turned = place.z, place.gradient, place.pieces, 0
    _gradient(hessian, right, z, gradient)
    for i in range(len(z)):
        piece, v = pieces[i], z[i]
        if piece == _ZERO:
            if abs(gradient[i]) > rest.kink + goal:
                pieces[i] = _BELOW if gradient[i] > 0 else _ABOVE
                turned += 1
            continue
        if piece in (_LOW, _HIGH):
            right_of = v > 0 or (v == 0 and piece == _LOW)
            slope = gradient[i] + (rest.above if v > 0 else rest.below) * v
            slope += rest.kink if right_of else -rest.kink
            if (slope if piece == _LOW else -slope) < -goal and low[i] < high[i]:
                one = rest.kink == 0 and rest.below == rest.above
                pieces[i] = _ABOVE if one or right_of else _BELOW
                turned += 1
            continue
        if rest.kink > 0 and (v <= 0 if piece == _ABOVE else v >= 0):
            v = 0.0
        z[i] = min(max(v, low[i]), high[i])
        pieces[i] = _piece(z[i], low[i], high[i], rest)
        turned += piece != pieces[i]
    return turned


@compiled
def descend(hessian, single, right, rest, goal, budget, z):
    """Put the states of all samples into z.

    Args:
        hessian: A A', (units, units), float64.
        single: the same in float32.
        right: b, (samples, units).
        rest: a `Rest` in float64.
        goal: what a slope may have of the wrong sign.
        budget: operations of all samples, beyond which they are left.
        z: where to begin, (samples, units), replaced by the states.

    Returns:
        The operations of all samples, infinite where one was not solved.
    """
    half, units = np.float32, len(hessian)
    lows, highs = rest.low.astype(half), rest.high.astype(half)
    quick = Rest(lows, highs, half(rest.below), half(rest.above), half(rest.kink))
    place, used = _place(units), 0.0
    for n in range(len(z)):
        own = n if len(lows) > 1 else 0
        low, high = rest.low[own], rest.high[own]
        place.z[:] = z[n]
        ended = False
        for number in range(_ROUNDS):
            for i in range(units):
                place.single[i] = place.z[i]
                place.pieces[i] = _piece(place.single[i], lows[own, i], highs[own, i], quick)
            _gradient(hessian, right[n], place.z, place.gradient)
            for i in range(units):
                place.slope[i] = place.gradient[i]
            ends = lows[own], highs[own], quick
            for sweep in range(_PASSES):
                moved, turned = _pass(single, *ends, place.single, place.slope, place.pieces)
                used += 2.0 * moved * units
                if (turned == 0 and sweep >= number * number) or used > budget:
                    break
            before = units + 1
            for _ in range(_SOLVES):
                _solved(hessian, right[n], low, high, rest, place)
                used += _cost(place.pieces)
                if used > budget:
                    return np.inf
                turned = _turned(hessian, right[n], low, high, rest, place, goal)
                ended = turned == 0
                if ended or turned >= before:
                    break
                before = turned
            if ended:
                break
        if not ended:
            return np.inf
        z[n] = place.z
    return used


@compiled
def _group_pass(hessian, rest, group, chosen, gradient, z):
    """Minimize over one entry of all samples after another; return the most one moves, by slope."""
    worst, samples = 0.0, len(z)
    for i in chosen:
        curve, length, moved = hessian[i, i], 0.0, 0.0
        for n in range(samples):
            length += (curve * z[n, i] - gradient[n, i]) ** 2
        share = 0.0
        if length > group * group and curve + rest > 0.0:
            share = (1.0 - group / np.sqrt(length)) / (curve + rest)
        for n in range(samples):
            change = share * (curve * z[n, i] - gradient[n, i]) - z[n, i]
            if change != 0.0:
                z[n, i] += change
                moved = max(moved, abs(change))
                for k in range(len(hessian)):
                    gradient[n, k] += change * hessian[i, k]
        worst = max(worst, (curve + rest) * moved)
    return worst


@compiled
def descend_together(hessian, right, rest, group, goal, most, z):
    """Put the z of least sum of z'Hz / 2 - <z, b> + rest |z|^2 / 2 + group |z_i|_2 into its place.

    z_i has the entries i of all samples. Passes over all i, and between over those that are not 0.

    Args:
        hessian: H, (units, units).
        right: b, (samples, units).
        rest: the curvature of a square.
        group: of the length of each z_i.
        goal: what a slope may miss.
        most: passes at most.
        z: where to begin, (samples, units), replaced.

    Returns:
        The passes, infinite where these were not enough.
    """
    every, used = np.arange(len(hessian)), 0
    while used < most:
        used += 1
        gradient = z @ hessian - right
        if _group_pass(hessian, rest, group, every, gradient, z) <= goal:
            return float(used)
        chosen = every[np.abs(z).sum(0) > 0.0]
        while used < most:
            used += 1
            if _group_pass(hessian, rest, group, chosen, gradient, z) <= goal:
                break
    return np.inf


@compiled
def panelled(hessian):
    """Return H in float32, (units / TOGETHER, units, TOGETHER), columns beyond the last 0."""
    units = len(hessian)
    panels = np.zeros((filled(units) // TOGETHER, units, TOGETHER), np.float32)
    for i in range(units):
        for k in range(units):
            panels[k // TOGETHER, i, k % TOGETHER] = hessian[i, k]
    return panels


@intrinsic
def _turn(typing, v, base, ahead, change, worst, row, place, numbers):
    """Minimize over one unit in each lane, and put what its state changes by into change.

    `v`, `base` and `change` at `row`, `ahead` at `place`; numbers are its curvature, the slopes of
    the minimizer above and below 0, low, high, and 1 and the curvature.
    """

    def write(context, builder, signature, arguments):
        w = Writer(context, builder, signature, arguments)
        single = Writer(context, builder, signature, arguments, number=SINGLE)
        v, base, ahead, change, worst, row, place, numbers = w.arguments
        curve, above, below, low, high, weight = (w.spread(numbers, row.type(n)) for n in range(6))
        zero = ir.Constant(w.vector, [0.0] * WIDE)
        at = w.load(v, row)
        slope = builder.fadd(w.load(base, row), builder.fpext(single.load(ahead, place), w.vector))
        pull = builder.fsub(builder.fmul(curve, at), slope)
        steep = builder.select(builder.fcmp_ordered(">", pull, zero), above, below)
        to = builder.fmul(pull, steep)
        to = builder.select(builder.fcmp_ordered("<", to, low), low, to)
        to = builder.select(builder.fcmp_ordered(">", to, high), high, to)
        step = builder.fptrunc(builder.fsub(to, at), single.vector)
        w.store(to, v, row)
        single.store(step, change, row)
        size = builder.fmul(step, builder.fptrunc(weight, single.vector))
        size = builder.select(
            builder.fcmp_ordered("<", size, builder.fneg(size)), builder.fneg(size), size
        )
        most = single.load(worst, row.type(0))
        single.store(
            builder.select(builder.fcmp_ordered(">", size, most), size, most), worst, row.type(0)
        )
        return context.get_dummy_value()

    return without_result(v, base, ahead, change, worst, row, place, numbers), write


@compiled
def _over(panels, v, base, moved, ahead, change, worst, every, numbers):
    """Minimize over one unit after another, in each lane."""
    units = len(every)
    for group in range(len(panels)):
        at, panel = group * TOGETHER, panels[group]
        part = moved[at : at + TOGETHER]
        add_rows(part, 0, panel, TOGETHER, every, units, change)
        copy(part, ahead)
        for i in range(at, min(at + TOGETHER, units)):
            _turn(v, base, ahead, change, worst, i, i - at, numbers[i])
            add_rows(ahead, 0, panel, TOGETHER, every[i:], 1, change)


@compiled
def _missed(v, base, found, line):
    """Put by how much states miss phi(-base) into found, in units of the gradient; flat arrays."""
    steep = 1.0 / line.alpha
    for n in range(len(found)):
        to = -base[n] if base[n] < 0.0 else -base[n] * line.alpha
        off = v[n] - min(max(to, line.low), line.high)
        found[n] = off * steep if v[n] < 0.0 else off


@compiled
def sweep(hessian, panels, right, line, goal, most, z):
    """Put the states of all samples into z.

    Args:
        hessian: H, (units, units), float64.
        panels: the same as `panelled` has it.
        right: b, (samples, units), float64.
        line: phi in float64.
        goal: what a gradient may miss.
        most: sweeps over all units at most.
        z: where to begin, (samples, units), float64, replaced by the states.

    Returns:
        The most sweeps that a sample took, infinite where one was not solved.
    """
    samples, units = z.shape
    rows, every, longest = filled(units), np.arange(units), 0.0
    whole = np.zeros((units, rows))
    whole[:, :units] = hessian
    v, b = np.zeros((rows, WIDE)), np.zeros((rows, WIDE))
    base, off = np.zeros((rows, WIDE)), np.zeros((rows, WIDE))
    moved, change = np.zeros((rows, WIDE), np.float32), np.zeros((rows, WIDE), np.float32)
    ahead, worst = np.zeros((TOGETHER, WIDE), np.float32), np.zeros((1, WIDE), np.float32)
    numbers = np.zeros((units, 6))
    for i in range(units):
        curve = hessian[i, i]
        numbers[i, 0], numbers[i, 5] = curve, 1.0 + curve
        numbers[i, 1], numbers[i, 2] = 1.0 / (1.0 + curve), line.alpha / (1.0 + line.alpha * curve)
        numbers[i, 3], numbers[i, 4] = line.low, line.high
    for first in range(0, samples, WIDE):
        load(right, first, b)
        load(z, first, v)
        done, count, begun = False, 0, np.inf
        while not done:
            fill(moved, 0)
            fill(change, 0)
            flat, asked = base.ravel(), b.ravel()
            for n in range(len(flat)):
                flat[n] = -asked[n]
            if largest(v, 0.0) > 0.0:
                multiply(base, whole, every, units, v)
            _missed(v[:units].ravel(), base[:units].ravel(), off[:units].ravel(), line)
            done = largest(off[:units], 0.0) <= goal
            if done or count >= most:
                break
            begun, before = np.inf, 0.0
            while count < most:
                fill(worst, 0)
                _over(panels, v, base, moved, ahead, change, worst, every, numbers)
                count += 1
                now = largest(worst, 0.0)
                left = now * min(now / before, 1.0)  # after a sweep that came so much nearer
                begun = now if begun == np.inf else begun
                before = now
                if left <= max(_SAFE * goal, _DIGITS * begun):
                    break
        if not done:
            return np.inf
        longest = max(longest, float(count))
        for lane in range(min(WIDE, samples - first)):
            for i in range(units):
                z[first + lane, i] = v[i, lane]
    return longest
