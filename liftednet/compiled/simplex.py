"""The judgment of output states on the simplex under the cross-entropy, in one pass."""

from __future__ import annotations

import numpy as np

from .lanes import LANES, compiled, load, logarithms

_TINY = np.finfo(np.float64).tiny
_INSIDE = _TINY**0.5
# where the sums of a block stand
_TOTAL, _LOSS, _SQUARE, _PULL, _LEAST, _LARGEST, _SUM, _OFF = (n * LANES for n in range(8))


@compiled
def judged_rows(y, u, z, lam, slack):
    """Return the objective, the violation and the largest entry of states, in float64.

    -<y, log z> + lam (|z|^2 / 2 - <u, z>), infinite where z is off the simplex by more than slack;
    the violation is the largest |z - z(nu)| with z(nu) of Lifted Neural Networks, appendix A, at
    the multiplier nu that z implies.

    Args:
        y: targets, (samples, outputs).
        u: pre-activations, (samples, outputs).
        z: states, (samples, outputs).
        lam: the weight of the divergence.
        slack: by how much a sum of states may miss 1.
    """
    samples, outputs = z.shape
    a, s = np.empty((outputs, LANES)), np.empty((outputs, LANES))
    v, w, x = np.empty((outputs, LANES)), np.empty(8 * LANES), np.empty(2 * LANES)
    bits = x.view(np.int64)
    objective, violation, largest = 0.0, 0.0, 0.0
    for first in range(0, samples, LANES):
        load(y, first, a)
        load(u, first, s)
        load(z, first, v)
        w[:] = 0.0
        w[_LEAST : _LEAST + LANES] = np.inf
        for i in range(outputs):
            for lane in range(LANES):
                x[lane] = max(v[i, lane], _TINY)
            logarithms(x, bits)
            for lane in range(LANES):
                gone = a[i, lane] > 0.0 and v[i, lane] <= 0.0
                w[_LOSS + lane] -= -np.inf if gone else a[i, lane] * x[lane]
            for lane in range(LANES):
                state, over = v[i, lane], v[i, lane] - s[i, lane]
                w[_TOTAL + lane] += state
                w[_LEAST + lane] = min(w[_LEAST + lane], state)
                w[_LARGEST + lane] = max(w[_LARGEST + lane], state)
                w[_SQUARE + lane] += state * (over - 0.5 * state)
                a[i, lane] /= lam
                w[_PULL + lane] += state * (over - a[i, lane] / max(state, _INSIDE))
        for lane in range(LANES):
            w[_PULL + lane] /= w[_TOTAL + lane]
        for i in range(outputs):
            for lane in range(LANES):
                at, quarter = s[i, lane] + w[_PULL + lane], a[i, lane]
                root = np.sqrt(at * at + 4.0 * quarter) + abs(at)
                s[i, lane] = max(at, 0.0) + 2.0 * quarter / max(root, _TINY)
                w[_SUM + lane] += s[i, lane]
        for lane in range(LANES):
            w[_SUM + lane] = 1.0 / w[_SUM + lane]
        for i in range(outputs):
            for lane in range(LANES):
                off = abs(v[i, lane] - s[i, lane] * w[_SUM + lane])
                w[_OFF + lane] = max(w[_OFF + lane], off)
        for lane in range(min(LANES, samples - first)):
            outside = w[_LEAST + lane] < 0.0 or abs(w[_TOTAL + lane] - 1.0) > slack
            objective += np.inf if outside else w[_LOSS + lane] + lam * w[_SQUARE + lane]
            violation = max(violation, w[_OFF + lane])
            largest = max(largest, w[_LARGEST + lane])
    return objective, violation, largest
