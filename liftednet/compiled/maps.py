"""Maps of single units as compiled loops take them: phi, its slope, Phi, Phi*, and the prox.

The number of its kind says which map it is, so that one compiled loop serves all of them. Equations
and the forms that lose no digits near 0 are those of the activations.
"""

from __future__ import annotations

import math

import numpy as np

from liftednet.activations.loops import ARCTAN, RAMP, SIGMOID, SINE, SOFTPLUS, TANH
from liftednet.activations.smooth import ARTANH, EXPONENTIAL, SERIES

from .lanes import compiled

_STEPS = 100  # of Newton or bisection in a bracket; Newton needs about five
_NEAR = 0.5
_HALF_PI = math.pi / 2
_SERIES, _EXPONENTIAL, _ARTANH = (np.array(x[::-1]) for x in (SERIES, EXPONENTIAL, ARTANH))
_TINY = np.finfo(np.float64).tiny


@compiled
def _horner(coefficients, x):
    """Return c_0 + c_1 x + c_2 x^2 + ..., the last coefficient first."""
    value = 0.0
    for n in range(len(coefficients)):
        value = value * x + coefficients[n]
    return value


@compiled
def _xlogx(x):
    return x * math.log(x) if x > 0 else 0.0


@compiled
def _softplus(u):
    return max(u, 0.0) + math.log1p(math.exp(-abs(u)))


@compiled
def _sigmoid(u):
    e = math.exp(-abs(u))
    return (1.0 if u >= 0 else e) / (1.0 + e)


@compiled
def _negated_dilogarithm(u):
    t = math.log1p(math.exp(-abs(u)))
    square = t * t
    low = t * (1 + t / 4 + square * _horner(_SERIES, square))
    return u * u / 2 + math.pi**2 / 6 - low if u > 0 else low


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
def _free_potential(one, v):
    """Return Phi(v), infinite outside its domain, without ends."""
    if one.kind == RAMP:
        return 0.5 * v * v if v >= 0 else 0.5 * v * v / one.alpha
    if one.kind == SIGMOID:
        if v < 0 or v > 1:
            return np.inf
        return _xlogx(v) + ((1 - v) * math.log1p(-v) if v < 1 else 0.0)
    if one.kind == TANH:
        if v < -1 or v > 1:
            return np.inf
        if abs(v) < _NEAR:
            return v * math.atanh(v) + 0.5 * math.log1p(-v * v)
        return 0.5 * (_xlogx(1 - v) + _xlogx(1 + v))
    if one.kind == ARCTAN:
        if v < -_HALF_PI or v > _HALF_PI:
            return np.inf
        if abs(v) < _NEAR:
            return -math.log1p(-2 * math.sin(v / 2) ** 2)
        return -math.log(max(math.cos(v), _TINY))
    if one.kind == SINE:
        if v < -1 or v > 1:
            return np.inf
        root = math.sqrt((1 - v) * (1 + v))
        return v * math.atan2(v, root) - v * v / (1 + root)
    if one.kind == SOFTPLUS:
        if v <= 0:
            return 0.0 if v == 0 else np.inf
        rest = -math.expm1(-v)
        logarithm = math.log(rest)
        return v * v + v * logarithm - _negated_dilogarithm(v + logarithm)
    if v > 0:
        return 0.5 * v * v
    if v <= -1:
        return 1.0 if v == -1 else np.inf
    if v > -0.25:
        w = v / (2 + v)
        square = w * w
        return 2 * square * (1 + (1 + w) * w * _horner(_ARTANH, square)) / (1 - w)
    return (1 + v) * math.log(1 + v) - v


@compiled
def potential(one, v):
    """Return Phi(v), infinite outside its domain."""
    return _free_potential(one, v) if one.low <= v <= one.high else np.inf


@compiled
def conjugate(one, u):
    """Return Phi*(u) = u v - Phi(v) at v = phi(u)."""
    v = _free(one, u)
    if v < one.low or v > one.high:
        v = min(max(v, one.low), one.high)
        return u * v - _free_potential(one, v)
    if one.kind == RAMP:
        return 0.5 * u * v
    if one.kind == SIGMOID:
        return _softplus(u)
    size = abs(u)
    if one.kind == TANH:
        if size < 1:
            return math.log1p(2 * math.sinh(size / 2) ** 2)
        return size + math.log1p(math.exp(-2 * size)) - math.log(2.0)
    if one.kind == ARCTAN:
        large = max(size, 1.0)
        return size * abs(v) - math.log(large) - 0.5 * math.log1p(min(size, 1 / large) ** 2)
    if one.kind == SINE:
        inside = min(size, _HALF_PI)
        return 2 * math.sin(inside / 2) ** 2 + (size - inside)
    if one.kind == SOFTPLUS:
        return _negated_dilogarithm(u)
    if u > 0:
        return 0.5 * u * u
    return u * u * _horner(_EXPONENTIAL, u) if u > -0.25 else math.expm1(u) - u


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
