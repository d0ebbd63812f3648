"""Newton's method in what the links of a state fit see, one sample after another."""

from __future__ import annotations

import numpy as np

from . import maps
from .lanes import compiled
from .loops import SOFTMAX, LoopMap

_STEPS = 50  # five suffice
_HALVINGS = 20
_COLUMNS, _RATIO, _SMOOTH, _KIND, _ALPHA, _LOW, _HIGH = range(7)  # of a row of the table


@compiled
def _map(row):
    return LoopMap(int(row[_KIND]), row[_ALPHA], row[_LOW], row[_HIGH])


@compiled
def _answers(a, table, slope, gradient):
    """Put the gradients of R at a into gradient."""
    begin = 0
    for row in table:
        end = begin + int(row[_COLUMNS])
        one = _map(row)
        if row[_SMOOTH] > 0:
            for k in range(begin, end):
                gradient[k] = slope[k] + row[_SMOOTH] * a[k]
        elif one.kind == SOFTMAX:
            top, total = np.max(a[begin:end]), 0.0
            for k in range(begin, end):
                gradient[k] = np.exp(a[k] - top)
                total += gradient[k]
            for k in range(begin, end):
                gradient[k] /= total
        else:
            for k in range(begin, end):
                gradient[k] = maps.forward(one, a[k])
        begin = end


@compiled
def _weigh(gradient, target, table, push):
    """Put the gradients less the targets, times lam_k / lam, into push."""
    begin = 0
    for row in table:
        end = begin + int(row[_COLUMNS])
        for k in range(begin, end):
            push[k] = row[_RATIO] * (gradient[k] - target[k])
        begin = end


@compiled
def _curve(a, gradient, table, system):
    """Replace B, (columns, columns), by I + B J with J the curvature of the links at a."""
    begin = 0
    for row in table:
        end, ratio = begin + int(row[_COLUMNS]), row[_RATIO]
        one = _map(row)
        if row[_SMOOTH] == 0 and one.kind == SOFTMAX:
            for i in range(len(a)):
                mean = 0.0
                for k in range(begin, end):
                    mean += system[i, k] * gradient[k]
                for k in range(begin, end):
                    system[i, k] = ratio * (system[i, k] - mean) * gradient[k]
        else:
            for k in range(begin, end):
                bend = row[_SMOOTH] if row[_SMOOTH] > 0 else maps.slope(one, a[k])
                for i in range(len(a)):
                    system[i, k] *= ratio * bend
        begin = end
    for i in range(len(a)):
        system[i, i] += 1.0


@compiled
def _states(own, u, weight, push, offset, a, pre, z, gap):
    """Put phi(u - W push) into z and z W + c - a into gap; return the square of its length."""
    for k in range(len(a)):
        gap[k] = offset[k] - a[k]
    for i in range(len(u)):
        row, at = weight[i], u[i]
        for k in range(len(a)):
            at -= row[k] * push[k]
        pre[i], z[i] = at, maps.forward(own, at)
        for k in range(len(a)):
            gap[k] += z[i] * row[k]
    square = 0.0
    for k in range(len(a)):
        square += gap[k] * gap[k]
    return square


@compiled
def _largest(weight, push):
    """Return the largest entry of W push."""
    found = 0.0
    for i in range(len(weight)):
        total = 0.0
        for k in range(len(push)):
            total += weight[i, k] * push[k]
        found = max(found, abs(total))
    return found


@compiled
def _pulled(own, pre, weight, system):
    """Put B = W' diag(phi'(pre)) W into system."""
    system[:] = 0.0
    for i in range(len(pre)):
        bend = maps.slope(own, pre[i])
        if bend != 0:
            for j in range(weight.shape[1]):
                part = bend * weight[i, j]
                for k in range(weight.shape[1]):
                    system[j, k] += part * weight[i, k]


@compiled
def newton_each(u, weight, offset, target, table, slope, own, tolerance, z):
    """Put the states of all samples into z.

    Args:
        u: pre-activations, (samples, units).
        weight: W of all links side by side, (units, columns).
        offset: C, (1 or samples, columns).
        target: (samples, columns).
        table: of every link, its columns, lam_k / lam, L or 0 for R = Phi*, and the four numbers
            of the map that Phi* belongs to; (links, 7).
        slope: c of links with L, (columns,).
        own: phi.
        tolerance: the violation at which a sample is solved, relative to 1, the entries of u as
            far as phi follows them, and what the targets pull at.
        z: where to begin, (samples, units), replaced by the states.

    Returns:
        The most steps that a sample took, and whether all are solved.
    """
    columns, solved, most = weight.shape[1], True, 0
    a, ahead, gradient, push, gap = np.zeros((5, columns))
    answer, change, step = np.zeros((3, columns))
    pre, system = np.zeros(z.shape[1]), np.zeros((columns, columns))
    for n in range(len(z)):
        c = offset[min(n, len(offset) - 1)]
        a[:] = c
        for i in range(z.shape[1]):
            for k in range(columns):
                a[k] += z[n, i] * weight[i, k]
        gradient[:] = 0.0
        _weigh(gradient, target[n], table, push)
        scale = max(1.0, _largest(weight, push))
        for i in range(z.shape[1]):
            scale = max(scale, min(abs(u[n, i]), abs(maps.forward(own, u[n, i]))))
        goal = tolerance * scale
        _answers(a, table, slope, gradient)
        _weigh(gradient, target[n], table, push)
        square = _states(own, u[n], weight, push, c, a, pre, z[n], gap)
        for steps in range(_STEPS + 1):
            for k in range(columns):
                ahead[k] = a[k] + gap[k]
            _answers(ahead, table, slope, answer)
            _weigh(answer, target[n], table, change)
            for k in range(columns):
                change[k] -= push[k]
            if _largest(weight, change) <= goal:
                break
            _pulled(own, pre, weight, system)
            _curve(a, gradient, table, system)
            step[:] = np.linalg.solve(system, gap)
            length, before = 1.0, square
            for _ in range(_HALVINGS):
                for k in range(columns):
                    ahead[k] = a[k] + length * step[k]
                _answers(ahead, table, slope, gradient)
                _weigh(gradient, target[n], table, push)
                square = _states(own, u[n], weight, push, c, ahead, pre, z[n], gap)
                if np.sqrt(square) <= (1 - 1e-4 * length) * np.sqrt(before):
                    break
                length /= 2
            a[:] = ahead
            if not square < before or steps == _STEPS:
                solved = False
                break
        most = max(most, steps)
    return most, solved
