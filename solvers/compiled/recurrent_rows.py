"""A recurrent network and products with its Jacobian, samples in vector registers.

h_t = phi([h_(t-1), x_t, 1] P), u_t = [h_t, 1] Q. Rows are (blocks, steps, entries, samples), WIDE
samples in a block; outputs are (outputs, steps, samples of all blocks). What stands beyond the last
sample has slopes 0.
"""

from __future__ import annotations

import math

import numpy as np

from .lanes import WIDE, compiled, copy, fill, inner, multiply, padded
from .loops import RAMP, SIGMOID


@compiled
def mapped(one, u):
    """Return a curved phi(u) and the slope that autograd has there: not 0 where an end begins."""
    if one.kind == SIGMOID:
        e = math.exp(-abs(u))
        v = (1.0 if u >= 0 else e) / (1.0 + e)
        slope = v - v * v
    else:
        v = math.tanh(u)
        slope = 1 - v * v
    inside = one.low <= v <= one.high
    return min(max(v, one.low), one.high), slope if inside else 0.0


@inner
def _put(rows, first, block, at):
    """Put samples of rows (entries, samples) from `first` on into a block from row `at` on."""
    for i in range(len(rows)):
        for lane in range(WIDE):
            block[at + i, lane] = rows[i, first + lane]


@inner
def _activate(one, u, units, counts, states, slopes):
    """Put phi(u) and phi'(u) into the first rows of blocks, times what counts, (WIDE,)."""
    if one.kind == RAMP:  # by itself, as the branches of other maps are not for registers
        alpha, low, high = one.alpha, one.low, one.high
        for i in range(units):
            for lane in range(WIDE):
                at, count = u[i, lane], counts[lane]
                positive = at > 0.0
                value = at if positive else alpha * at
                slope = count if positive else alpha * count
                slopes[i, lane] = slope if low <= value <= high else 0.0
                value = low if value < low else value
                value = high if value > high else value
                states[i, lane] = value if count > 0.0 else 0.0
        return
    for i in range(units):
        for lane in range(WIDE):
            value, slope = mapped(one, u[i, lane])
            slopes[i, lane] = slope if counts[lane] > 0.0 else 0.0
            states[i, lane] = value if counts[lane] > 0.0 else 0.0


@compiled
def passed(inputs, lengths, one, cell, readout, states, slopes, outputs):
    """Put outputs in their place, and states and slopes where these have one.

    Args:
        inputs: x, (blocks, steps, features, WIDE).
        lengths: steps of every sample, (samples,), beyond which states and slopes are 0.
        one: phi.
        cell: P, (units + features + 1, units).
        readout: Q, (units + 1, outputs).
        states: the place of h, (blocks, steps, units, WIDE), or of no block.
        slopes: that of phi' of the pre-activations, likewise.
        outputs: that of u, (outputs, steps, samples).
    """
    blocks, steps, features, _ = inputs.shape
    units, answers, kept = cell.shape[1], readout.shape[1], len(states) > 0
    matrix, read = padded(cell), padded(readout)
    seen, answer = np.zeros((len(cell), WIDE)), np.zeros((units + 1, WIDE))  # h, x, 1; h, 1
    seen[-1], answer[-1] = 1, 1
    every = np.arange(len(seen))
    u, found = np.zeros((matrix.shape[1], WIDE)), np.zeros((read.shape[1], WIDE))
    rises, counts = np.zeros((units, WIDE)), np.zeros(WIDE)
    for block in range(blocks):
        first = block * WIDE
        seen[:units] = 0
        for step in range(steps):
            copy(inputs[block, step], seen[units : units + features])
            u[:] = 0
            multiply(u, matrix, every, len(seen), seen)
            for lane in range(WIDE):
                counts[lane] = 1.0 if step < lengths[first + lane] else 0.0
            _activate(one, u, units, counts, answer, rises)
            copy(answer[:units], seen[:units])
            if kept:
                copy(answer[:units], states[block, step])
                copy(rises, slopes[block, step])
            found[:] = 0
            multiply(found, read, every, len(answer), answer)
            for i in range(answers):
                for lane in range(WIDE):
                    outputs[i, step, first + lane] = found[i, lane]


@compiled
def ahead(states, inputs, slopes, recurrent, readout, change, read_change, moved):
    """Put how outputs move with the weights in their place.

    Args:
        states: h, (blocks, steps, units, WIDE).
        inputs: x, (blocks, steps, features, WIDE).
        slopes: phi' of the pre-activations, as the states.
        recurrent: W, the first rows of P, (units, units).
        readout: the first rows of Q, (units, outputs).
        change: of P, (units + features + 1, units).
        read_change: of Q, (units + 1, outputs).
        moved: the place, (outputs, steps, samples).
    """
    blocks, steps, units, _ = states.shape
    features, outputs = inputs.shape[2], len(moved)
    cell, read = padded(recurrent, change), padded(readout, read_change)
    # Rows: how h moves, h, then x and 1.
    seen = np.zeros((2 * units + features + 1, WIDE))
    answer = np.zeros((2 * units + 1, WIDE))
    every = np.arange(len(seen))
    u, answers = np.zeros((cell.shape[1], WIDE)), np.zeros((read.shape[1], WIDE))
    for block in range(blocks):
        first = block * WIDE
        seen[:] = 0
        seen[-1], answer[-1] = 1, 1
        for step in range(steps):
            copy(inputs[block, step], seen[2 * units : 2 * units + features])
            u[:] = 0
            multiply(u, cell, every, len(seen), seen)
            slope, now = slopes[block, step], states[block, step]
            for i in range(units):
                for lane in range(WIDE):
                    move, state = u[i, lane] * slope[i, lane], now[i, lane]
                    seen[i, lane], answer[i, lane] = move, move
                    seen[units + i, lane], answer[units + i, lane] = state, state
            answers[:] = 0
            multiply(answers, read, every, len(answer), answer)
            for i in range(outputs):
                for lane in range(WIDE):
                    moved[i, step, first + lane] = answers[i, lane]


@inner
def _add(total, rows, pushes):
    """Add to a matrix what pushes (columns, samples) ask of it, by [rows, 1] (rows, samples)."""
    found = np.dot(rows, pushes.T)
    for j in range(len(pushes)):
        for i in range(len(rows)):
            total[i, j] += found[i, j]
        total[len(rows), j] += pushes[j].sum()


@compiled
def back(states, inputs, slopes, recurrent, readout, pushes, asked, read_asked):
    """Put what pushes on the outputs, (outputs, steps, samples), ask of P and Q in their places.

    What P is asked for is one product of matrices for each block, over its steps and samples. Rows
    are read from the last to the first.
    """
    blocks, steps, units, _ = states.shape
    features, outputs = inputs.shape[2], len(pushes)
    chain = padded(recurrent.T, readout.T)
    later = np.zeros((units + outputs, WIDE))  # what is asked of the next step's u, and pushes
    every = np.arange(len(later))
    u = np.zeros((chain.shape[1], WIDE))
    # A row holds the steps of a block, and one of zeros at least: from WIDE numbers later on the
    # same numbers are h, as the readout sees them, not h of the step before. Rows of an odd number
    # of steps do not share few places of a cache.
    wide = (steps + 1 | 1) * WIDE
    numbers = np.zeros((units + features) * wide + WIDE)
    seen = numbers[: (units + features) * wide].reshape(units + features, wide)
    answer = numbers[WIDE : WIDE + units * wide].reshape(units, wide)
    pulled, pushed = np.zeros((units, wide)), np.zeros((outputs, wide))
    fill(asked, 0)
    fill(read_asked, 0)
    for block in range(blocks):
        first = block * WIDE
        later[:] = 0
        for step in range(steps - 1, -1, -1):
            begin, slope, now = step * WIDE, slopes[block, step], states[block, step]
            _put(pushes[:, step], first, later, units)
            u[:] = 0
            multiply(u, chain, every, len(later), later)
            for i in range(outputs):
                for lane in range(WIDE):
                    pushed[i, begin + lane] = later[units + i, lane]
            for i in range(units):
                for lane in range(WIDE):
                    later[i, lane] = u[i, lane] * slope[i, lane]
                    pulled[i, begin + lane] = later[i, lane]
                    answer[i, begin + lane] = now[i, lane]
            for i in range(features):
                for lane in range(WIDE):
                    seen[units + i, begin + lane] = inputs[block, step, i, lane]
        _add(asked, seen, pulled)
        _add(read_asked, answer, pushed)
