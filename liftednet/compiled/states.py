"""The judgment of states below links of the catalogue, in one pass; samples in lanes, float64."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from liftednet.activations.loops import RAMP, SOFTMAX, LoopMap

from . import maps
from .lanes import compiled, fill, load
from .vectors import WIDE, filled, multiply, subtract_inner


class LinkRows(NamedTuple):
    """A link lam [R(a) - <a, t>] with a = Z W + C.

    Attributes:
        weight: W, (units, next units).
        offset: C, (1 or samples, next units).
        target: t, (samples, next units).
        slope: c of a quadratic R(a) = <c, a> + L |a|^2 / 2, (next units, 1).
        lam: its weight.
        smooth: L of a quadratic R, and 0 for R = Phi*.
        above: the map that Phi* belongs to.
    """

    weight: Any
    offset: Any
    target: Any
    slope: Any
    lam: float
    smooth: float
    above: LoopMap


_NEAR = np.finfo(np.float64).eps ** 0.5


@compiled
def largest(block, found):
    """Return the largest absolute value of a block, and of what was found before."""
    flat = block.ravel()
    high, low = found, -found
    for n in range(len(flat)):
        high = max(high, flat[n])
        low = min(low, flat[n])
    return max(high, -low)


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
def _push_curved(a, t, outputs, above, lam, count, product):
    """Do the same for R = Phi*, in the first lanes, which the others repeat."""
    for lane in range(count):
        top, total = a[0, lane], 0.0
        if above.kind == SOFTMAX:
            for i in range(outputs):
                top = max(top, a[i, lane])
            for i in range(outputs):
                total += np.exp(a[i, lane] - top)
        for i in range(outputs):
            at, pull = a[i, lane], t[i, lane]
            if above.kind == SOFTMAX:
                value = top + np.log(total) if i == 0 else 0.0
                state = np.exp(at - top) / total
            else:
                value, state = maps.conjugate(above, at), maps.forward(above, at)
            product[i, lane] = value - at * pull
            a[i, lane], t[i, lane] = lam * (state - pull), lam * pull
    for i in range(outputs):
        for lane in range(count, WIDE):
            a[i, lane], t[i, lane] = a[i, count - 1], t[i, count - 1]


@compiled
def _reached(u, alpha, low, high):
    """Return the largest of min(|u|, |phi(u)|), flat."""
    found = 0.0
    for n in range(len(u)):
        v = min(max(max(u[n], alpha * u[n]), low), high)
        found = max(found, min(abs(u[n]), abs(v)))
    return found


@compiled
def _reached_curved(u, own, units, count):
    """Return the same of any map, in the first lanes."""
    found = 0.0
    for i in range(units):
        for lane in range(count):
            found = max(found, min(abs(u[i, lane]), abs(maps.forward(own, u[i, lane]))))
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
def _own_curved(z, u, own, units, count, product):
    """Do the same for any map, in the first lanes."""
    for i in range(units):
        for lane in range(count):
            product[i, lane] = maps.potential(own, z[i, lane]) - z[i, lane] * u[i, lane]


@compiled
def _missed(z, gradient, s, lam, alpha, low, high):
    """Replace the gradient by s (z - prox_{lam Phi / s}(z - gradient / s)); flat arrays."""
    above, below = s / (s + lam), s * alpha / (s * alpha + lam)
    for n in range(len(z)):
        w = z[n] - gradient[n] / s
        v = w * above if w > 0.0 else w * below
        gradient[n] = s * (z[n] - min(max(v, low), high))


@compiled
def _missed_curved(z, gradient, s, lam, own, units, count):
    """Do the same for any map, in the first lanes, which the others repeat."""
    for i in range(units):
        for lane in range(count):
            v = maps.prox(own, z[i, lane] - gradient[i, lane] / s, lam / s, _NEAR)
            off = s * (z[i, lane] - v)
            gradient[i, lane] = off if off == off else np.inf
        for lane in range(count, WIDE):
            gradient[i, lane] = gradient[i, count - 1]


@compiled
def judged_states(u, z, links, lam, s, own):
    """Return the objective of states, the largest violation, and the largest term.

    lam (Phi(Z) - <Z, U>) and the links; what `StateFit.measure` asks for.

    Args:
        u: pre-activations, (samples, units).
        z: states, (samples, units).
        links: a tuple of `LinkRows`.
        lam: the weight of Phi.
        s: lam and the smoothness of all links.
        own: the map that Phi belongs to.
    """
    samples, units = z.shape
    ends = own.alpha, own.low, own.high
    tall, widest = filled(units), 0
    for link in links:
        widest = max(widest, filled(link.weight.shape[1]))
    pre, v, gradient = (
        np.zeros((tall, WIDE)),
        np.zeros((tall, WIDE)),
        np.zeros((tall, WIDE)),
    )
    part, pulled, product = (
        np.zeros((tall, WIDE)),
        np.zeros((tall, WIDE)),
        np.zeros((max(tall, widest), WIDE)),
    )
    whole, sums = np.ones((max(tall, widest), WIDE)), np.empty((1, WIDE))
    a, t = np.zeros((widest, WIDE)), np.zeros((widest, WIDE))
    weights = np.zeros((len(links), units, widest))
    adjoints = np.zeros((len(links), widest, tall))
    for number, link in enumerate(links):
        for i in range(units):
            for k in range(link.weight.shape[1]):
                weights[number, i, k] = adjoints[number, k, i] = link.weight[i, k]
    every = np.arange(max(tall, widest))
    objective, violation, scale = 0.0, 0.0, lam
    for first in range(0, samples, WIDE):
        load(u, first, pre)
        load(z, first, v)
        fill(product, 0)
        count = min(WIDE, samples - first)
        if own.kind == RAMP:
            _own(v[:units].ravel(), pre[:units].ravel(), *ends, product[:units].ravel())
        else:
            _own_curved(v, pre, own, units, count, product)
        fill(sums, 0)
        subtract_inner(sums, 0, units, product, 0, whole, 0)
        for lane in range(count):
            objective -= lam * sums[0, lane]
        flat, given = gradient.ravel(), pre.ravel()
        for n in range(len(flat)):
            flat[n] = -lam * given[n]
        if own.kind == RAMP:
            scale = max(scale, lam * _reached(pre[:units].ravel(), *ends))
        else:
            scale = max(scale, lam * _reached_curved(pre, own, units, count))
        for number, link in enumerate(links):
            above, weight, adjoint = link.weight.shape[1], weights[number], adjoints[number]
            load(link.offset, first, a)
            load(link.target, first, t)
            multiply(a, weight, every, units, v)
            if link.smooth > 0:
                _push(a, t, link.slope, link.lam, link.smooth, product)
            else:
                _push_curved(a, t, above, link.above, link.lam, count, product)
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
        if own.kind == RAMP:
            _missed(v[:units].ravel(), gradient[:units].ravel(), s, lam, *ends)
        else:
            _missed_curved(v, gradient, s, lam, own, units, count)
        violation = largest(gradient[:units], violation)
    return objective, violation, scale
