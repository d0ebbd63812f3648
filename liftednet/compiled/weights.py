"""The sums of a weight fit over few samples, in one pass, float64."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from liftednet.activations.loops import SOFTMAX, LoopMap

from . import maps
from .lanes import compiled


class FitRows(NamedTuple):
    """A divergence R(u) - <u, v> at u = D [W; b] + C of samples that count as often as they weigh.

    Attributes:
        design: D = [X - shift, 1], (samples, inputs + 1).
        weights: (samples,).
        offset: C, (samples or 0, units).
        target: V, (samples, units).
        pulled: V, of a quadratic R less L C, (samples, units).
        above: the map that R = Phi* belongs to.
        smooth: L of a quadratic R(u) = <c, u> + L |u|^2 / 2, 0 for R = Phi*.
        slope: c, (units,).
    """

    design: Any
    weights: Any
    offset: Any
    target: Any
    pulled: Any
    above: LoopMap
    smooth: float
    slope: Any


@compiled
def answered(rows, n, u, v):
    """Put grad R(u) of a sample into v, and return R(u) - <u, target>."""
    value, above = 0.0, rows.above
    if rows.smooth > 0:
        for j in range(len(u)):
            v[j] = rows.slope[j] + rows.smooth * u[j]
            value += u[j] * (rows.slope[j] + 0.5 * rows.smooth * u[j] - rows.target[n, j])
    elif above.kind == SOFTMAX:
        top, total = np.max(u), 0.0
        for j in range(len(u)):
            v[j] = np.exp(u[j] - top)
            total += v[j]
            value -= u[j] * rows.target[n, j]
        for j in range(len(u)):
            v[j] /= total
        value += top + np.log(total)
    else:
        for j in range(len(u)):
            v[j] = maps.forward(above, u[j])
            value += maps.conjugate(above, u[j]) - u[j] * rows.target[n, j]
    return value


@compiled
def seen(rows, n, stacked, u):
    """Put D [W; b] + C of a sample into u."""
    for j in range(len(u)):
        u[j] = rows.offset[n, j] if len(rows.offset) > 0 else 0.0
    for i in range(len(stacked)):
        x = rows.design[n, i]
        for j in range(len(u)):
            u[j] += x * stacked[i, j]


@compiled
def summed(rows, stacked, slope):
    """Return the divergence, and put D'grad R(u), of a quadratic R less L C, into slope."""
    slope[:] = 0.0
    u, v, value = np.empty(stacked.shape[1]), np.empty(stacked.shape[1]), 0.0
    for n in range(len(rows.design)):
        weight = rows.weights[n]
        seen(rows, n, stacked, u)
        value += weight * answered(rows, n, u, v)
        for j in range(len(u)):
            v[j] += rows.pulled[n, j] - rows.target[n, j]
        for i in range(len(stacked)):
            x = weight * rows.design[n, i]
            for j in range(len(u)):
                slope[i, j] += x * v[j]
    return value


@compiled
def judged(rows, cross, shift, matrix, bias, lam, gradient):
    """Put the gradient of lam times the divergence at W and b into gradient, (inputs + 1, units).

    Args:
        rows: a `FitRows`.
        cross: D'V, of a quadratic R less L C.
        shift: what D is without, (inputs,), or nothing where that is 0.
        matrix: W, (inputs, units).
        bias: b, (units,), or nothing.
        lam: its weight.
        gradient: written.

    Returns:
        The divergence, <|[W; b]|, |D'V|>, and the largest entries of D'grad R(u) and D'V; NaN where
        there is one.
    """
    stacked = np.zeros(gradient.shape)
    stacked[: len(matrix)] = matrix
    if len(bias) > 0:
        stacked[-1] = bias
        for i in range(len(shift)):
            for j in range(len(bias)):
                stacked[-1, j] += shift[i] * matrix[i, j]
    link = summed(rows, stacked, gradient)
    hidden, pushed, pulled, total = 0.0, 0.0, 0.0, 0.0
    for i in range(len(stacked)):
        for j in range(stacked.shape[1]):
            slope = gradient[i, j]
            hidden += abs(stacked[i, j] * cross[i, j])
            pushed, pulled = max(pushed, abs(slope)), max(pulled, abs(cross[i, j]))
            gradient[i, j] = lam * (slope - cross[i, j])
            total += gradient[i, j]
    return link, hidden if total == total else np.nan, pushed, pulled


@compiled
def off(rows, violation, bias, steepest, rounding, everywhere):
    """Return what is lost in b, and the largest violation without what the rounding of b brings.

    Args:
        rows: a `FitRows`.
        violation: how far [W; b] is from stationary, (inputs + 1, units).
        bias: b, (units,), or nothing.
        steepest: a Lipschitz constant of the gradient in b.
        rounding: the relative rounding of b.
        everywhere: whether sums over samples bring that to W, too.
    """
    lost, largest, total, mass = 0.0, 0.0, 0.0, np.sum(rows.weights)
    for i in range(len(violation)):
        share, last = 0.0, i == len(violation) - 1
        if len(bias) > 0 and (everywhere or last):
            for n in range(len(rows.design)):
                share += rows.weights[n] * rows.design[n, i] / mass
        for j in range(violation.shape[1]):
            found = violation[i, j]
            total += found
            if len(bias) > 0:
                lost += found * found / (2 * steepest) if last else 0.0
                found = abs(found) - abs(share * bias[j]) * rounding * steepest
            largest = max(largest, abs(found) if len(bias) == 0 else found)
    return lost if total == total else np.nan, largest


@compiled
def columns_far(rows, ratio, mean):
    """Put the mean of every column that lies far from 0 into mean, else 0; say whether one does.

    Args:
        rows: (samples, columns).
        ratio: the squared mean is so often larger than the mean square where it is far.
        mean: (columns,), written.
    """
    found = False
    for i in range(len(mean)):
        total, square = 0.0, 0.0
        for n in range(len(rows)):
            total += rows[n, i] / len(rows)
            square += rows[n, i] * rows[n, i] / len(rows)
        far = ratio * total * total > square
        mean[i] = total if far else 0.0
        found = found or far
    return found
