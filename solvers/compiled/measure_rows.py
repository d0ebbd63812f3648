"""How good states below quadratic links are, and outputs on the simplex; one pass in float64.

Samples stand in lanes. No solver's own loop is called: a value is judged by the prox of a ramp, or
by the multiplier that it implies.
"""

from __future__ import annotations

import numpy as np

from .lanes import (
    LANES,
    WIDE,
    compiled,
    fill,
    filled,
    largest,
    load,
    logarithms,
    multiply,
    subtract_inner,
)

_TINY = np.finfo(np.float64).tiny
_INSIDE = _TINY**0.5
# where the sums of a block of output states stand
_TOTAL, _LOSS, _SQUARE, _PULL, _LEAST, _LARGEST, _SUM, _OFF = (n * LANES for n in range(8))


@compiled
def _push(a, t, c, lam, smooth, product):
    """Replace a by lam (c + L a - t), and t by lam t; put <c + L a / 2 - t, a> into product."""
    for i in range(len(c)):
        slope = c[i, 0]
        for lane in range(WIDE):
            at, pull = a[i, lane], slope - t[i, lane]
            product[i, lane] = at * (pull + 0.5 * smooth * at)
            a[i, lane] = lam * (pull + smooth * at)
    flat = t.ravel()
    for n in range(len(flat)):
        flat[n] *= lam


@compiled
def _reached(u, alpha, low, high):
    """Return the largest of min(|u|, |phi(u)|), flat."""
    found = 0.0
    for n in range(len(u)):
        v = min(max(max(u[n], alpha * u[n]), low), high)
        found = max(found, min(abs(u[n]), abs(v)))
    return found


@compiled
def _own(z, u, alpha, low, high, product):
    """Put Phi(z) - z u into product; flat arrays."""
    for n in range(len(z)):
        v = z[n]
        square = 0.5 * v * v
        square = square if v >= 0.0 else square / alpha
        outside = v < low or v > high
        product[n] = np.inf if outside else square - v * u[n]


@compiled
def _missed(z, gradient, s, lam, alpha, low, high):
    """Replace the gradient by s (z - prox_{lam Phi / s}(z - gradient / s)); flat arrays."""
    above, below = s / (s + lam), s * alpha / (s * alpha + lam)
    for n in range(len(z)):
        w = z[n] - gradient[n] / s
        v = w * above if w > 0.0 else w * below
        gradient[n] = s * (z[n] - min(max(v, low), high))


@compiled
def judged_states(u, z, links, lam, s, line):
    """Return the objective of states, the largest violation, and the largest term.

    lam (Phi(Z) - <Z, U>) and quadratic links; what `StateFit.measure` asks for.

    Args:
        u: pre-activations, (samples, units).
        z: states, (samples, units).
        links: a tuple of `LinkRows`.
        lam: the weight of Phi.
        s: lam and the smoothness of all links.
        line: phi, a `Ramp`.
    """
    samples, units = z.shape
    tall, widest = filled(units), 0
    for link in links:
        widest = max(widest, filled(link.weight.shape[1]))
    most, ends = max(tall, widest), (line.alpha, line.low, line.high)
    pre, v = np.zeros((tall, WIDE)), np.zeros((tall, WIDE))
    gradient, part, pulled = np.zeros((tall, WIDE)), np.zeros((tall, WIDE)), np.zeros((tall, WIDE))
    product, whole, sums = np.zeros((most, WIDE)), np.ones((most, WIDE)), np.empty((1, WIDE))
    a, t = np.zeros((widest, WIDE)), np.zeros((widest, WIDE))
    weights = np.zeros((len(links), units, widest))
    adjoints = np.zeros((len(links), widest, tall))
    for number, link in enumerate(links):
        for i in range(units):
            for k in range(link.weight.shape[1]):
                weights[number, i, k] = adjoints[number, k, i] = link.weight[i, k]
    every = np.arange(most)
    objective, violation, scale = 0.0, 0.0, lam
    for first in range(0, samples, WIDE):
        load(u, first, pre)
        load(z, first, v)
        fill(product, 0)
        count = min(WIDE, samples - first)
        _own(v[:units].ravel(), pre[:units].ravel(), *ends, product[:units].ravel())
        fill(sums, 0)
        subtract_inner(sums, 0, units, product, 0, whole, 0)
        for lane in range(count):
            objective -= lam * sums[0, lane]
        flat, given = gradient.ravel(), pre.ravel()
        for n in range(len(flat)):
            flat[n] = -lam * given[n]
        scale = max(scale, lam * _reached(pre[:units].ravel(), *ends))
        for number, link in enumerate(links):
            above, weight, adjoint = link.weight.shape[1], weights[number], adjoints[number]
            load(link.offset, first, a)
            load(link.target, first, t)
            multiply(a, weight, every, units, v)
            _push(a, t, link.slope, link.lam, link.smooth, product)
            fill(sums, 0)
            subtract_inner(sums, 0, above, product, 0, whole, 0)
            for lane in range(count):
                objective -= link.lam * sums[0, lane]
            fill(pulled, 0)
            multiply(pulled, adjoint, every, above, t)
            scale = largest(pulled, scale)
            fill(part, 0)
            multiply(part, adjoint, every, above, a)
            pushed, pull = part.ravel(), pulled.ravel()
            for n in range(len(flat)):
                flat[n] += pushed[n]
            for n in range(len(flat)):
                pull[n] += pushed[n]
            scale = largest(pulled, scale)
        _missed(v[:units].ravel(), gradient[:units].ravel(), s, lam, *ends)
        violation = largest(gradient[:units], violation)
    return objective, violation, scale


@compiled
def judged_on_simplex(y, u, z, lam, slack):
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
