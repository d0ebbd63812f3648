"""Newton's method for the weights of each unit of a small fit."""

from __future__ import annotations

import numpy as np

from liftednet.activations.loops import SOFTMAX
from liftednet.compiled import maps
from liftednet.compiled.lanes import compiled
from liftednet.compiled.weights import answered, seen, summed

_STEPS = 100  # ten suffice
_REFINED = 2  # steps of a quadratic: one solves it, and one takes off what it has rounded
_HALVINGS = 40
_LEAST = 1e-9  # of the curvature in b, where a map is flat or all b of a softmax rise together
_ROUNDING = 1e-13  # of the objective, by which it may seem to rise


@compiled
def _gradient(rows, lam, rho, pull, stacked, slope, cross):
    """Put the gradient at [W; b] into slope; return the objective, but for a constant."""
    value = lam * summed(rows, stacked, slope)
    for i in range(len(stacked)):
        for j in range(stacked.shape[1]):
            slope[i, j] = lam * (slope[i, j] - cross[i, j])
            if i < len(pull):
                slope[i, j] += 2 * rho * stacked[i, j] - pull[i, j]
                value += stacked[i, j] * (rho * stacked[i, j] - pull[i, j])
    return value


@compiled
def _hessians(rows, lam, rho, features, stacked, systems):
    """Put the Hessian at [W; b] into systems: one of each unit, or one of all that are coupled."""
    inputs, units = stacked.shape
    u, v, coupled = np.empty(units), np.empty(units), len(systems) < units
    least = 0.0 if rows.smooth > 0 else _LEAST * lam * np.sum(rows.weights)
    systems[:] = 0.0
    for n in range(len(rows.design)):
        seen(rows, n, stacked, u)
        answered(rows, n, u, v)
        for j in range(units):
            if coupled:
                for k in range(units):
                    curve = (v[j] if j == k else 0.0) - v[j] * v[k]
                    _add(rows, n, lam * curve, systems[0], j * inputs, k * inputs)
            else:
                curve = rows.smooth if rows.smooth > 0 else maps.slope(rows.above, u[j])
                _add(rows, n, lam * curve, systems[j], 0, 0)
    for system in systems:
        for i in range(len(system)):
            system[i, i] += 2 * rho if i % inputs < features else least


@compiled
def _add(rows, n, scale, system, i, k):
    """Add scale x x' of a sample to a block of a system."""
    x = rows.design[n]
    for a in range(len(x)):
        part = scale * rows.weights[n] * x[a]
        for b in range(len(x)):
            system[i + a, k + b] += part * x[b]


@compiled
def newton_weights(rows, cross, lam, rho, pull, tolerance, stacked):
    """Put the minimizer of lam times the divergence + rho |W|^2 - <pull, W> into stacked.

    Args:
        rows: a `FitRows`.
        cross: D'V, of a quadratic R less L C.
        lam: the weight of the divergence.
        rho: of the penalty.
        pull: (inputs, units).
        tolerance: the largest entry of the gradient at the end, relative to those of its terms;
            what rounding leaves where R is quadratic.
        stacked: [W; b] to begin with, (inputs + 1, units), or without b; replaced.

    Returns:
        The steps, and whether they have led there.
    """
    inputs, units = stacked.shape
    coupled = rows.smooth == 0 and rows.above.kind == SOFTMAX
    size = inputs * units if coupled else inputs
    systems = np.empty((1 if coupled else units, size, size))
    slope, step = np.empty((2, inputs, units))
    value = _gradient(rows, lam, rho, pull, stacked, slope, cross)
    largest = np.max(np.abs(cross))
    goal = tolerance * lam * (largest if largest > 0 else 1.0)
    goal = 0.0 if rows.smooth > 0 else goal
    for steps in range(_STEPS):
        if np.max(np.abs(slope)) <= goal or (rows.smooth > 0 and steps == _REFINED):
            return steps, True
        _hessians(rows, lam, rho, len(pull), stacked, systems)
        if coupled:
            step[:] = np.linalg.solve(systems[0], slope.T.copy().ravel()).reshape(units, inputs).T
        else:
            for j in range(units):
                step[:, j] = np.linalg.solve(systems[j], slope[:, j].copy())
        descent, before, length = np.sum(step * slope), value, 1.0
        for _ in range(_HALVINGS):
            ahead = stacked - length * step
            value = _gradient(rows, lam, rho, pull, ahead, slope, cross)
            if value <= before - 1e-4 * length * descent + _ROUNDING * (1 + abs(before)):
                break
            length /= 2
        stacked[:] = ahead
        if not value <= before + _ROUNDING * (1 + abs(before)):
            break
    return _STEPS, False
