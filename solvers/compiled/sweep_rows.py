"""State fits below quadratic links by coordinate descent, samples in lanes.

min over z of Phi(z) - <z, b> + z'Hz / 2 with H = A A' for every sample, phi piecewise linear. A
unit's gradient is brought up to date when its turn comes, by one product with the last changes of
all units; these products are in float32, around states whose gradient is known in float64.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from liftednet.compiled.lanes import compiled, copy, fill, load
from liftednet.compiled.states import largest
from liftednet.compiled.vectors import (
    SINGLE,
    TOGETHER,
    WIDE,
    Writer,
    add_rows,
    filled,
    intrinsic,
    multiply,
    without_result,
)

_SAFE = 0.7  # share of the goal at which the gradient is taken anew
_DIGITS = 3e-4  # by which changes fall until the gradient is taken anew


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
