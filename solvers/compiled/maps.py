"""Maps of single units as compiled loops take them: phi, its slope, and the prox of Phi.

The number of its kind says which map it is, so that one compiled loop serves all of them.
"""

from __future__ import annotations

import math

from .lanes import compiled
from .loops import ARCTAN, RAMP, SIGMOID, SINE, SOFTPLUS, TANH

_STEPS = 100  # of Newton or bisection in a bracket; Newton needs about five
_HALF_PI = math.pi / 2


@compiled
def _softplus(u):
    return max(u, 0.0) + math.log1p(math.exp(-abs(u)))


@compiled
def _sigmoid(u):
    e = math.exp(-abs(u))
    return (1.0 if u >= 0 else e) / (1.0 + e)


@compiled
def _free(one, u):
    """Return phi(u) without its ends."""
    if one.kind == RAMP:
        return u if u > 0 else one.alpha * u
    if one.kind == SIGMOID:
        return _sigmoid(u)
    if one.kind == TANH:
        return math.tanh(u)
    if one.kind == ARCTAN:
        return math.atan(u)
    if one.kind == SINE:
        return math.sin(min(max(u, -_HALF_PI), _HALF_PI))
    if one.kind == SOFTPLUS:
        return _softplus(u)
    return u if u > 0 else math.expm1(u)


@compiled
def forward(one, u):
    """Return phi(u)."""
    return min(max(_free(one, u), one.low), one.high)


@compiled
def _free_slope(one, u, v):
    """Return phi'(u) where v = phi(u), without ends."""
    if one.kind == RAMP:
        return 1.0 if u > 0 else one.alpha
    if one.kind == SIGMOID:
        return v - v * v
    if one.kind == TANH:
        return 1 - v * v
    if one.kind == ARCTAN:
        return 1 / (1 + u * u)
    if one.kind == SINE:
        return math.cos(u) if abs(u) < _HALF_PI else 0.0
    if one.kind == SOFTPLUS:
        return _sigmoid(u)
    return 1.0 if u > 0 else 1 + v


@compiled
def slope(one, u):
    """Return phi'(u), 0 where phi is at an end."""
    v = _free(one, u)
    return _free_slope(one, u, v) if one.low < v < one.high else 0.0


@compiled
def passed(one, u):
    """Return phi(u) and the derivative that autograd has there: not 0 where an end begins."""
    v = _free(one, u)
    inside = one.low <= v <= one.high
    return min(max(v, one.low), one.high), _free_slope(one, u, v) if inside else 0.0


@compiled
def prox(one, w, t, near):
    """Return argmin over v of t Phi(v) + (v - w)^2 / 2: v = phi(x) at phi(x) + t x = w.

    Newton's method in a bracket; the last step is made in v, and near is the size of the one
    before, relative, whose square is rounding.
    """
    if one.kind == RAMP:
        v = w / (1 + t) if w > 0 else w * one.alpha / (one.alpha + t)
        return min(max(v, one.low), one.high)
    center = _free(one, 0.0)
    low, high = min((w - center) / t, 0.0), max((w - center) / t, 0.0)
    x = min(max((w - center) / (_free_slope(one, 0.0, center) + t), low), high)
    v = center
    for _ in range(_STEPS):
        v = _free(one, x)
        rise, gap = _free_slope(one, x, v), v + t * x - w
        if gap > 0:
            high = x
        else:
            low = x
        change = gap / (rise + t)
        to = x - change
        if abs(change) <= near * (1 + abs(x)) and abs(gap) <= near * (1 + abs(w)):
            v -= rise * change
            break
        x = to if low < to < high else 0.5 * (low + high)
    return min(max(v, one.low), one.high)


@compiled
def prox_rows(one, w, t, near, v):
    """Put the prox of rows (rows, units) into v, with one t for each of them, or for all."""
    for row in range(len(w)):
        weight = t[min(row, len(t) - 1)]
        for i in range(w.shape[1]):
            v[row, i] = prox(one, w[row, i], weight, near)
