"""Maps of single units as compiled loops take them: phi and its slope.

The number of its kind says which map it is, so that one compiled loop serves all of them.
"""

from __future__ import annotations

import math

from .lanes import compiled
from .loops import ARCTAN, RAMP, SIGMOID, SINE, SOFTPLUS, TANH

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
def passed(one, u):
    """Return phi(u) and the derivative that autograd has there: not 0 where an end begins."""
    v = _free(one, u)
    inside = one.low <= v <= one.high
    return min(max(v, one.low), one.high), _free_slope(one, u, v) if inside else 0.0
