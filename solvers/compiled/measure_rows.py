"""How good states are: what problems measure in torch, by loops that read every number once.

All is in float64, and nothing of the loops that have found the states is used.
"""

from __future__ import annotations

import numpy as np

from .lanes import LANES, WIDE, compiled, fill, load, multiply, padded

_TINY = float(np.finfo(np.float64).tiny)
_INSIDE = _TINY**0.5  # states below it are taken as it


@compiled
def of_simplex(y, u, lam, slack, z):
    """Return the objective of states in a simplex, and their largest relative violation.

    They are those of `OutputFit.measure`, in float64: states are held against z(nu) at the
    multiplier nu that they imply, Lifted Neural Networks, appendix A.

    Args:
        y: targets, (samples, outputs).
        u: pre-activations, (samples, outputs).
        lam: the weight of the divergence, float64.
        slack: how far a sum of states may be from 1, beyond which the objective is infinite.
        z: the states, (samples, outputs).
    """
    samples, outputs = u.shape
    block = outputs, LANES
    pre, a, state = np.empty(block), np.empty(block), np.empty(block)
    nu, mass, total = np.empty(LANES), np.empty(LANES), np.empty(LANES)
    energy, lowest, off, most = np.empty(LANES), np.empty(LANES), np.empty(LANES), np.empty(LANES)
    objective, residual, share = 0.0, 0.0, 1 / lam
    for first in range(0, samples, LANES):
        load(u, first, pre)
        load(y, first, a)
        load(z, first, state)
        nu[:] = 0
        mass[:] = 0
        total[:] = 0
        energy[:] = 0
        lowest[:] = 0
        off[:] = 0
        most[:] = 1
        for i in range(outputs):
            for lane in range(LANES):
                v = state[i, lane]
                a[i, lane] *= share
                mass[lane] += v
                nu[lane] += v * (v - pre[i, lane] - a[i, lane] / max(v, _INSIDE))
                energy[lane] += v * (0.5 * v - pre[i, lane])
                lowest[lane] = min(lowest[lane], v)
                most[lane] = max(most[lane], abs(v))
        for lane in range(LANES):
            nu[lane] /= mass[lane]
        for i in range(outputs):
            for lane in range(LANES):
                s = pre[i, lane] + nu[lane]
                size = abs(s)
                root = size + np.sqrt(s * s + 4 * a[i, lane])
                pre[i, lane] = 0.5 * (s + size) + 2 * a[i, lane] / max(root, _TINY)
                total[lane] += pre[i, lane]
        for lane in range(LANES):
            total[lane] = 1 / total[lane]
        for i in range(outputs):
            for lane in range(LANES):
                off[lane] = max(off[lane], abs(state[i, lane] - pre[i, lane] * total[lane]))
        count = min(LANES, samples - first)
        for lane in range(count):
            objective += lam * energy[lane]
            residual = max(residual, off[lane] / most[lane])
            if not abs(mass[lane] - 1) <= slack or lowest[lane] < 0:
                objective = np.inf
        for i in range(outputs):
            for lane in range(count):
                if a[i, lane] > 0:
                    objective -= lam * a[i, lane] * np.log(max(state[i, lane], 0.0))
    return objective, residual


@compiled
def of_states(u, links, lam, s, line, z):
    """Return the objective of states below links, and their largest relative violation.

    They are those of `StateFit.measure`, with phi(u) = max(u, alpha u) between low and high.

    Args:
        u: pre-activations, (samples, units).
        links: a `LinkRows`.
        lam: the weight of the divergence.
        s: what steps of the residual are divided by.
        line: phi, a `LoopMap`.
        z: the states, (samples, units).
    """
    matrix, offset, target, slope, curvature, weight, ends = links
    alpha, low, high = line.alpha, line.low, line.high
    samples, units = u.shape
    columns = len(weight)
    ahead, back = padded(matrix), padded(matrix.T)
    rows = np.arange(max(units, columns))
    tall, wide = (back.shape[1], WIDE), (ahead.shape[1], WIDE)
    pre, state, gradient = np.zeros(tall), np.zeros(tall), np.zeros(tall)
    pushed, pulled, above, asked = np.zeros(tall), np.zeros(tall), np.zeros(wide), np.zeros(wide)
    energy, off, most = np.zeros(WIDE), np.zeros(WIDE), np.zeros(WIDE)
    objective, residual, steep = 0.0, 0.0, 1 / (1 + lam / (s * alpha))
    flat, length = 1 / (1 + lam / s), 1 / s
    for first in range(0, samples, WIDE):
        load(u, first, pre)
        load(z, first, state)
        load(offset, first, above)
        load(target, first, asked)
        multiply(above, ahead, rows, units, state)
        energy[:] = 0
        off[:] = 0
        most[:] = lam
        for i in range(units):
            for lane in range(WIDE):
                v, w = state[i, lane], pre[i, lane]
                half = 0.5 * v if v > 0 else 0.5 / alpha * v
                half = half if low <= v <= high else np.inf
                energy[lane] += lam * (v * (half - w) if half < np.inf else half)
                phi = min(max(max(w, alpha * w), low), high)
                most[lane] = max(most[lane], lam * min(abs(w), abs(phi)))
                gradient[i, lane] = -lam * w
        for k in range(columns):
            for lane in range(WIDE):
                a, t = above[k, lane], asked[k, lane]
                push = slope[k] + curvature[k] * a
                energy[lane] += weight[k] * a * (0.5 * (slope[k] + push) - t)
                above[k, lane] = weight[k] * (push - t)
                asked[k, lane] = weight[k] * t
        begin = 0
        for end in ends:
            fill(pushed, 0)
            fill(pulled, 0)
            multiply(pushed, back, rows[begin:], end - begin, above)
            multiply(pulled, back, rows[begin:], end - begin, asked)
            begin = end
            for i in range(units):
                for lane in range(WIDE):
                    push, pull = pushed[i, lane], pulled[i, lane]
                    gradient[i, lane] += push
                    top = max(abs(pull), abs(push + pull))
                    most[lane] = max(most[lane], top)
        for i in range(units):
            for lane in range(WIDE):
                to = state[i, lane] - gradient[i, lane] * length
                to = min(max(to * (flat if to > 0 else steep), low), high)
                off[lane] = max(off[lane], abs(state[i, lane] - to))
        for lane in range(min(WIDE, samples - first)):
            objective += energy[lane]
            residual = max(residual, s * off[lane] / most[lane])
    return objective, residual
