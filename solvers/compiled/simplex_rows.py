"""Newton's method for the multiplier of each sample on the simplex, samples in lanes."""

from __future__ import annotations

import numpy as np

from .lanes import LANES, TILE, compiled, inner, load

_STEPS = 50  # ten suffice
# where the numbers of a block stand
_NU, _LOWER, _TOTAL, _SLOPE, _TOP, _MASS = (n * LANES for n in range(6))


@inner
def _evaluate(u, fourfold, w, states, least, half):
    """Put the states z, sum z and its derivative in nu down, with z - a / z = s at s = u + nu.

    z = (s + |s|) / 2 + 2 a / (|s| + root), and dz / ds = z / root, by one division.
    """
    w[_TOTAL : _TOTAL + LANES] = 0
    w[_SLOPE : _SLOPE + LANES] = 0
    for i in range(len(u)):
        for lane in range(LANES):
            s = u[i, lane] + w[_NU + lane]
            size = abs(s)
            root = max(np.sqrt(s * s + fourfold[i, lane]), least)
            both = size + root
            share = half / (both * root)
            z = half * (s + size) + fourfold[i, lane] * root * share
            states[i, lane] = z
            w[_TOTAL + lane] += z
            w[_SLOPE + lane] += z * (share * both)


@inner
def _add_ramps(u, w, states, half):
    """Do what `_evaluate` does where a is 0, z = max(s, 0), for units beside its own."""
    none = half - half
    for i in range(len(u)):
        for lane in range(LANES):
            s = u[i, lane] + w[_NU + lane]
            z = max(s, none)
            states[i, lane] = z
            w[_TOTAL + lane] += z
            w[_SLOPE + lane] += half if s > 0 else none


@inner
def _newton(u, fourfold, ramps, w, states, flat, settled, least, half):
    """Take Newton steps to where every sum is settled, and one from there; return how many.

    The states of u and, flat, of ramps are those before the last step.
    """
    for step in range(1, _STEPS + 1):
        _evaluate(u, fourfold, w, states, least, half)
        _add_ramps(ramps, w, flat, half)
        worst = w[_TOTAL] - w[_TOTAL]
        for lane in range(LANES):
            worst = max(worst, abs(w[_TOTAL + lane] - 1))
        for lane in range(LANES):
            slope = max(w[_SLOPE + lane] + w[_SLOPE + lane], least)  # it was halved
            to = w[_NU + lane] - (w[_TOTAL + lane] - 1) / slope
            w[_NU + lane] = max(to, w[_LOWER + lane])
        if worst <= settled:
            return step
    return _STEPS


@inner
def _with_labels(u, a, label, w, states, settled, least, half):
    """Put the states of samples of one label each down; `label` is room for three rows.

    The upper end of the bracket is where the first state is 1.
    """
    w[_TOP : _TOP + LANES] = -np.inf
    w[_LOWER : _LOWER + LANES] = -np.inf
    label[1] = 0
    for i in range(len(u)):
        for lane in range(LANES):
            w[_TOP + lane] = max(w[_TOP + lane], u[i, lane] + a[i, lane])
    for lane in range(LANES):
        w[_NU + lane] = 1 - w[_TOP + lane]
    for i in range(len(u)):
        for lane in range(LANES):
            pre, share, above = u[i, lane], a[i, lane], label[0, 0, lane]
            label[0, 0, lane] = pre if share > 0 else above
            label[1, 0, lane] += 4 * share
            u[i, lane] = -np.inf if share > 0 else pre
    steps = _newton(label[0], label[1], u, w, label[2], states, settled, least, half)
    for i in range(len(u)):
        for lane in range(LANES):
            of_label, state = label[2, 0, lane], states[i, lane]
            states[i, lane] = of_label if a[i, lane] > 0 else state
    return steps


@inner
def _bracket(u, a, w, ends):
    """Put an upper and a lower bound of nu into w; a = y / lam."""
    outputs = len(u)
    low, high, even_low, even_high, printed = 0, LANES, 2 * LANES, 3 * LANES, 4 * LANES
    for lane in range(LANES):
        ends[low + lane] = ends[even_low + lane] = np.inf
        ends[high + lane] = ends[even_high + lane] = ends[printed + lane] = -np.inf
    center = 1 / outputs
    for i in range(outputs):
        for lane in range(LANES):
            mass = w[_MASS + lane]
            label = a[i, lane] / mass if mass > 0 else center
            bound = label - (mass if a[i, lane] > 0 else 0.0) - u[i, lane]
            ends[low + lane] = min(ends[low + lane], bound)
            ends[high + lane] = max(ends[high + lane], bound)
            bound = center - a[i, lane] * outputs - u[i, lane]
            ends[even_low + lane] = min(ends[even_low + lane], bound)
            ends[even_high + lane] = max(ends[even_high + lane], bound)
            ends[printed + lane] = max(ends[printed + lane], u[i, lane] + a[i, lane])
    for lane in range(LANES):
        upper = min(ends[high + lane], ends[even_high + lane])
        w[_NU + lane] = min(upper, 1 - ends[printed + lane])
        w[_LOWER + lane] = max(ends[low + lane], ends[even_low + lane])


@compiled
def simplex_rows(y, u, lam, settled, z):
    """Put the states that minimize -<y, log z> + lam |z - u|^2 / 2 on the simplex into z.

    Lifted Neural Networks, appendix A, with a = y / lam; the bracket and the descent from its
    upper end are those of `SimplexDual`. Where every sample has one label, all other states are
    ramps, and one root is taken for each.

    Args:
        y: targets, (samples, outputs).
        u: pre-activations, (samples, outputs).
        lam: the weight of the divergence, of their type.
        settled: how far a sum may be from 1 in the end, of their type.
        z: the states, (samples, outputs), written.

    Returns:
        The most steps that a block took.
    """
    samples, outputs = u.shape
    type_ = u.dtype.type
    pre, a = np.empty((outputs, LANES), u.dtype), np.empty((outputs, LANES), u.dtype)
    states, w = np.empty(pre.shape, u.dtype), np.empty(6 * LANES, u.dtype)
    label, ends = np.empty((3, 1, LANES), u.dtype), np.empty(5 * LANES)
    half, least, most = type_(0.5), type_(1e-18), 0
    smallest = np.finfo(u.dtype).tiny  # a state that is 0 has no finite loss
    for first in range(0, samples, LANES):
        load(u, first, pre)
        load(y, first, a)
        w[_TOP : _TOP + LANES] = -np.inf
        w[_MASS : _MASS + LANES] = 0
        w[_TOTAL : _TOTAL + LANES] = 0
        for i in range(outputs):
            for lane in range(LANES):
                a[i, lane] /= lam
                w[_TOTAL + lane] += half if a[i, lane] > 0 else half - half
                w[_MASS + lane] += a[i, lane]
                w[_TOP + lane] = max(w[_TOP + lane], pre[i, lane])
        for i in range(outputs):
            for lane in range(LANES):
                pre[i, lane] -= w[_TOP + lane]
        one_each = True  # half of the number of labels stands in the totals
        for lane in range(LANES):
            one_each &= w[_TOTAL + lane] == half
        if one_each:
            steps = _with_labels(pre, a, label, w, states, settled, least, half)
        else:
            _bracket(pre, a, w, ends)
            for i in range(outputs):
                for lane in range(LANES):
                    a[i, lane] *= 4
            steps = _newton(pre, a, pre[:0], w, states, states[:0], settled, least, half)
        most = max(most, steps)
        for lane in range(LANES):
            w[_TOTAL + lane] = 1 / w[_TOTAL + lane]
        for i in range(outputs):
            for lane in range(LANES):
                state = states[i, lane] * w[_TOTAL + lane]
                states[i, lane] = max(state, smallest) if a[i, lane] > 0 else state
        for begin in range(0, outputs, TILE):
            part = states[begin : begin + TILE]
            for lane in range(min(LANES, samples - first)):
                row = z[first + lane][begin : begin + TILE]
                for i in range(len(row)):
                    row[i] = part[i, lane]
    return most
