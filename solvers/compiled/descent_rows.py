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
    factor,
    fill,
    filled,
    inner,
    intrinsic,
    largest,
    load,
    multiply,
    padded,
    without_result,
)

_ROUNDS = 2_000  # of descent, then exact solves as long as ever fewer units contradict them
_PASSES = 500  # of a round
_SWEEPS = 40  # in which no unit turns, before an exact solve is tried again
_SAFE = 0.7  # share of the goal at which the gradient is taken anew
_DAMPINGS = 0.0, 1e-4  # of the diagonal
_BISECTIONS, _FARTHEST = 60, 1e4  # steps, that a damped one is too short
_SINGULAR = 1e-11  # of a pivot, that a factor leaves of it where it depends on others
_DIGITS = 3e-4  # by which changes fall until the gradient is taken anew


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


@inner
def _turned(pull, up, down, low, high, kink):
    """Return the state that minimizes over one unit, and 1 or -1 where it is free, else 0.

    The latter is the sign of a free state, which has a kink and the curvature on that side; up and
    down are 1 over the curvature on either.
    """
    v = max(pull - kink, 0.0) * up + min(pull + kink, 0.0) * down
    sign = 1 if pull >= kink else -1
    v = min(max(v, low), high)
    return v, sign if low < v < high and (v != 0 or kink == 0) else 0


@inner
def _solve(system, x, count):
    """Replace x by the solution of a system that is positive definite, and say if it is."""
    if not factor(system, count, _SINGULAR):
        return False
    for n in range(count):
        row, total = system[n], x[n]
        for k in range(n):
            total -= row[k] * x[k]
        x[n] = total * row[n]
    for n in range(count - 1, -1, -1):
        row = system[n]
        x[n] *= row[n]
        for m in range(n):
            x[m] -= row[m] * x[n]
    return True


@inner
def _cost(units, count):
    """Return the operations of a solve."""
    return count * (count * count / 6.0 + 4.0 * units)


@inner
def _go_along(hessian, right, rest, low, high, begun, ahead, v):
    """Put the best of the ray from a point through another one, within the ends, into v."""
    units, linear, square, share = len(v), 0.0, 0.0, _FARTHEST
    for i in range(units):
        move, pull, curved = ahead[i] - begun[i], -right[i], 0.0
        if move == 0:
            continue
        for k in range(units):
            pull += hessian[i, k] * begun[k]
            curved += hessian[i, k] * (ahead[k] - begun[k])
        linear += move * pull
        square += move * curved
        end = high[i] if move > 0 else low[i]
        share = min(share, max((end - begun[i]) / move, 0.0))
    least, most = 0.0, share
    for _ in range(_BISECTIONS):
        share = (least + most) / 2
        slope = linear + share * square
        for i in range(units):
            move = ahead[i] - begun[i]
            at = begun[i] + share * move
            side = 1.0 if at > 0 else -1.0
            slope += move * ((rest.above if at > 0 else rest.below) * at + side * rest.kink)
        if slope > 0:
            most = share
        else:
            least = share
    for i in range(units):
        v[i] = begun[i] + least * (ahead[i] - begun[i])


@inner
def _misses(hessian, right, rest, low, high, v):
    """Return the most that a slope has of the wrong sign."""
    units, worst = len(v), 0.0
    for i in range(units):
        pull = right[i]
        for k in range(units):
            pull -= hessian[i, k] * v[k]
        up = pull - rest.kink if v[i] >= 0 else pull + rest.kink
        down = pull + rest.kink if v[i] <= 0 else pull - rest.kink
        up -= (rest.above if v[i] >= 0 else rest.below) * v[i]
        down -= (rest.above if v[i] > 0 else rest.below) * v[i]
        if v[i] < high[i]:
            worst = max(worst, up)
        if v[i] > low[i]:
            worst = max(worst, -down)
    return worst


@compiled
def descend(hessian, right, rest, goal, budget, z):
    """Put the states of all samples into z.

    Descent tells which units are free, at an end or at a kink, and an exact solve what the free
    ones are, after which those that contradict it change.

    Args:
        hessian: A A', (units, units).
        right: b, (samples, units).
        rest: a `Rest`.
        goal: what a slope of each sample may have of the wrong sign, (samples, 1).
        budget: operations of all samples, beyond which they are left.
        z: where to begin, (samples, units), replaced by the states.

    Returns:
        The operations of all samples, infinite where one was not solved.
    """
    below, above, kink = rest.below, rest.above, rest.kink
    units, used = len(hessian), 0.0
    slope, v, x, up, down, signs, begun, ahead = np.empty((8, units))
    system, chosen = np.empty((units, units)), np.empty(units, np.int64)
    for i in range(units):
        curve, least = hessian[i, i], np.finfo(np.float64).tiny
        up[i], down[i] = 1 / max(curve + above, least), 1 / max(curve + below, least)
    for n in range(len(z)):
        low, high, wrong = rest.low[n % len(rest.low)], rest.high[n % len(rest.high)], 1
        for i in range(units):
            v[i], signs[i] = z[n, i], 2
        for number in range(_ROUNDS):
            for k in range(units):
                slope[k] = right[n, k]
            for i in range(units):
                if v[i] != 0:
                    for k in range(units):
                        slope[k] -= v[i] * hessian[i, k]
            for sweep in range(_PASSES):
                turned, count = 0, 0
                for i in range(units):
                    pull = slope[i] + hessian[i, i] * v[i]
                    to, sign = _turned(pull, up[i], down[i], low[i], high[i], kink)
                    turned += sign != signs[i]
                    count += sign != 0
                    signs[i], change = sign, to - v[i]
                    if change != 0:
                        v[i] = to
                        used += 2.0 * units
                        for k in range(units):
                            slope[k] -= change * hessian[i, k]
                enough = number == 0 and 2.0 * sweep * units * units > _cost(units, count)
                if (
                    enough
                    or used > budget
                    or (turned == 0 and sweep >= min(number * number, _SWEEPS))
                ):
                    break
            before, wrong, begun[:] = units + 2, units + 1, v
            ahead[:] = v
            while 0 < wrong < before:
                before, wrong, count = wrong, 0, 0
                for k in range(units):
                    slope[k] = right[n, k]
                for i in range(units):
                    if signs[i] != 0:
                        chosen[count] = i
                        count += 1
                    elif v[i] != 0:
                        for k in range(units):
                            slope[k] -= v[i] * hessian[i, k]
                used += _cost(units, count)
                if used > budget:
                    return np.inf
                for damping in _DAMPINGS:  # where more are free than samples tell apart
                    for a in range(count):
                        i = chosen[a]
                        row = hessian[i]
                        for b in range(a):
                            system[a, b] = row[chosen[b]]
                        system[a, a] = row[i] + (above if signs[i] > 0 else below)
                        x[a] = slope[i] - signs[i] * kink + damping * system[a, a] * v[i]
                        system[a, a] += damping * system[a, a]
                    solved = _solve(system, x, count)
                    if solved:
                        break
                if not solved or damping > 0:
                    for a in range(count * solved):
                        ahead[chosen[a]] = x[a]
                    wrong = units + 1
                    break
                for a in range(count):
                    i = chosen[a]
                    v[i] = x[a]
                    for k in range(units):
                        slope[k] -= x[a] * hessian[i, k]
                if before > units:
                    ahead[:] = v
                for i in range(units):
                    pull = slope[i] + hessian[i, i] * v[i]
                    to, sign = _turned(pull, up[i], down[i], low[i], high[i], kink)
                    if kink > 0 and sign * signs[i] < 0:
                        to, sign = 0.0, 0  # the kink comes first
                    if sign != signs[i] and not abs(to - v[i]) <= goal[n, 0] * min(up[i], down[i]):
                        wrong += 1
                        v[i], signs[i] = to, sign
            if wrong == 0:
                break
            _go_along(hessian, right[n], rest, low, high, begun, ahead, v)
            if not wrong <= units and _misses(hessian, right[n], rest, low, high, v) <= goal[n, 0]:
                wrong = 0  # with entries of which samples tell the sum alone
                break
        if wrong > 0:
            return np.inf
        for i in range(units):
            z[n, i] = min(max(v[i], low[i]), high[i])
    return used


@inner
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
    chosen = np.empty_like(every)
    while used < most:
        used += 1
        gradient = z @ hessian - right
        if _group_pass(hessian, rest, group, every, gradient, z) <= goal:
            return float(used)
        count = 0
        for i in every:
            for n in range(len(z)):
                if z[n, i] != 0.0:
                    chosen[count] = i
                    count += 1
                    break
        while used < most:
            used += 1
            if _group_pass(hessian, rest, group, chosen[:count], gradient, z) <= goal:
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


@inner
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


@inner
def _missed(v, base, found, line):
    """Put by how much states miss phi(-base) into found, in units of the gradient; flat arrays."""
    steep = 1.0 / line.alpha
    for n in range(len(found)):
        to = -base[n] if base[n] < 0.0 else -base[n] * line.alpha
        off = v[n] - min(max(to, line.low), line.high)
        found[n] = off * steep if v[n] < 0.0 else off


@inner
def _largest(block, share):
    """Return the largest absolute value of a block, each times the share of its lane."""
    found = 0.0
    for i in range(len(block)):
        for lane in range(WIDE):
            found = max(found, abs(block[i, lane]) * share[0, lane])
    return found


@compiled
def sweep(hessian, panels, right, line, goal, most, z):
    """Put the states of all samples into z.

    Args:
        hessian: H, (units, units), float64.
        panels: the same as `panelled` has it.
        right: b, (samples, units), float64.
        line: phi, a `LoopMap`.
        goal: what a gradient of each sample may miss, (samples, 1).
        most: sweeps over all units at most.
        z: where to begin, (samples, units), float64, replaced by the states.

    Returns:
        The most sweeps that a sample took, infinite where one was not solved.
    """
    samples, units = z.shape
    rows, every, longest = filled(units), np.arange(units), 0.0
    whole = padded(hessian)
    v, b = np.zeros((rows, WIDE)), np.zeros((rows, WIDE))
    base, off = np.zeros((rows, WIDE)), np.zeros((rows, WIDE))
    moved, change = np.zeros((rows, WIDE), np.float32), np.zeros((rows, WIDE), np.float32)
    ahead, worst = np.zeros((TOGETHER, WIDE), np.float32), np.zeros((1, WIDE), np.float32)
    numbers, share = np.zeros((units, 6)), np.zeros((1, WIDE))
    for i in range(units):
        curve = hessian[i, i]
        numbers[i, 0], numbers[i, 5] = curve, 1.0 + curve
        numbers[i, 1], numbers[i, 2] = 1.0 / (1.0 + curve), line.alpha / (1.0 + line.alpha * curve)
        numbers[i, 3], numbers[i, 4] = line.low, line.high
    for first in range(0, samples, WIDE):
        load(right, first, b)
        load(z, first, v)
        load(goal, first, share)
        for lane in range(WIDE):
            share[0, lane] = 1.0 / share[0, lane]
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
            done = _largest(off[:units], share) <= 1.0
            if done or count >= most:
                break
            begun, before = np.inf, 0.0
            while count < most:
                fill(worst, 0)
                _over(panels, v, base, moved, ahead, change, worst, every, numbers)
                count += 1
                now = _largest(worst, share)
                left = now * min(now / before, 1.0)  # after a sweep that came so much nearer
                begun = now if begun == np.inf else begun
                before = now
                if left <= max(_SAFE, _DIGITS * begun):
                    break
        if not done:
            return np.inf
        longest = max(longest, float(count))
        for lane in range(min(WIDE, samples - first)):
            for i in range(units):
                z[first + lane, i] = v[i, lane]
    return longest
