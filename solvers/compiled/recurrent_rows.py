"""Products with the Jacobian of a recurrent network, samples in vector registers.

h_t = phi([h_(t-1), x_t, 1] P), u_t = [h_t, 1] Q. Rows of samples are (steps, entries, samples),
samples a multiple of WIDE; what stands beyond the last one has slopes 0.
"""

from __future__ import annotations

import numpy as np

from liftednet.compiled.lanes import compiled
from liftednet.compiled.vectors import WIDE, filled, multiply, subtract_multiple


@compiled
def _put(rows, first, block, at):
    """Put samples of rows (entries, samples) from `first` on into a block from row `at` on."""
    for i in range(len(rows)):
        for lane in range(WIDE):
            block[at + i, lane] = rows[i, first + lane]


@compiled
def _wide(*parts):
    """Return matrices one below another, with columns up to what products take."""
    rows, columns = 0, parts[0].shape[1]
    for part in parts:
        rows += len(part)
    found = np.zeros((rows, filled(columns)))
    first = 0
    for part in parts:
        found[first : first + len(part), :columns] = part
        first += len(part)
    return found


@compiled
def ahead(states, inputs, slopes, recurrent, readout, change, read_change, moved):
    """Put how outputs move with the weights in their place.

    Args:
        states: h, (steps, units, samples).
        inputs: x, (steps, features, samples).
        slopes: phi' of the pre-activations, as the states.
        recurrent: W, the first rows of P, (units, units).
        readout: the first rows of Q, (units, outputs).
        change: of P, (units + features + 1, units).
        read_change: of Q, (units + 1, outputs).
        moved: the place, (steps, outputs, samples).
    """
    steps, units, samples = states.shape
    features, outputs = inputs.shape[1], moved.shape[1]
    cell, read = _wide(recurrent, change), _wide(readout, read_change)
    # Rows: how h moves, h, then x and 1.
    seen = np.zeros((2 * units + features + 1, WIDE))
    answer = np.zeros((2 * units + 1, WIDE))
    every = np.arange(len(seen))
    u, answers = np.zeros((cell.shape[1], WIDE)), np.zeros((read.shape[1], WIDE))
    for first in range(0, samples, WIDE):
        seen[:] = 0
        seen[-1], answer[-1] = 1, 1
        for step in range(steps):
            _put(inputs[step], first, seen, 2 * units)
            u[:] = 0
            multiply(u, cell, every, len(seen), seen)
            slope = slopes[step]
            for i in range(units):
                for lane in range(WIDE):
                    move = u[i, lane] * slope[i, first + lane]
                    state = states[step, i, first + lane]
                    seen[i, lane], answer[i, lane] = move, move
                    seen[units + i, lane], answer[units + i, lane] = state, state
            answers[:] = 0
            multiply(answers, read, every, len(answer), answer)
            for i in range(outputs):
                for lane in range(WIDE):
                    moved[step, i, first + lane] = answers[i, lane]


@compiled
def back(states, inputs, slopes, recurrent, readout, pushes, asked, read_asked):
    """Put what pushes on the outputs, (steps, outputs, samples), ask of P and Q in their places."""
    steps, units, samples = states.shape
    features, outputs = inputs.shape[1], pushes.shape[1]
    chain = _wide(recurrent.T, readout.T)
    later = np.zeros((units + outputs, WIDE))  # what is asked of the next step's u, and pushes
    seen = np.zeros((units + features, WIDE))
    every = np.arange(len(later))
    u = np.zeros((chain.shape[1], WIDE))
    total = np.zeros(((units + features) * units, WIDE))
    read_total = np.zeros((units * outputs, WIDE))
    bias, read_bias = np.zeros((units, WIDE)), np.zeros((outputs, WIDE))
    for first in range(0, samples, WIDE):
        later[:] = 0
        for step in range(steps - 1, -1, -1):
            _put(pushes[step], first, later, units)
            _put(states[step], first, seen, 0)
            for i in range(units):
                subtract_multiple(read_total, i * outputs, outputs, later, units, seen, i)
            u[:] = 0
            multiply(u, chain, every, len(later), later)
            slope = slopes[step]
            for i in range(units):
                for lane in range(WIDE):
                    later[i, lane] = u[i, lane] * slope[i, first + lane]
                    bias[i, lane] += later[i, lane]
            for i in range(outputs):
                for lane in range(WIDE):
                    read_bias[i, lane] += later[units + i, lane]
            _put(inputs[step], first, seen, units)
            if step:
                _put(states[step - 1], first, seen, 0)
            for i in range(0 if step else units, units + features):  # the first has h = 0 before
                subtract_multiple(total, i * units, units, later, 0, seen, i)
    for i in range(units + features):
        for j in range(units):
            asked[i, j] = -total[i * units + j].sum()
    for i in range(units):
        asked[units + features, i] = bias[i].sum()
        for j in range(outputs):
            read_asked[i, j] = -read_total[i * outputs + j].sum()
    for j in range(outputs):
        read_asked[units, j] = read_bias[j].sum()
