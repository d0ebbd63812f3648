"""State fits below quadratic links sample by sample: coordinate descent, ended by exact solves.

min over z of Phi(z) - <z, b> + z'Hz / 2 with H = A A' for every sample, phi piecewise linear.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from liftednet.compiled.lanes import compiled

_ROUNDS = 20  # of descent and exact solves in turn
_SOLVES = 5  # in turn, as long as ever fewer units change their piece
_SWEEPS = 500  # of a round
_LOW, _BELOW, _ABOVE, _HIGH = range(4)  # the pieces of phi, where a unit may be


class Line(NamedTuple):
    """phi(u) = max(u, alpha u), cut off at low and high, in one precision."""

    alpha: Any
    low: Any
    high: Any


def lines(ramp: Any) -> tuple[Line, Line]:
    """Return phi in float64 and in float32."""
    return Line(*map(np.float64, ramp)), Line(*map(np.float32, ramp))


class Place(NamedTuple):
    """Room for one sample.

    Attributes:
        z: states, float64.
        single: the same in float32.
        gradient: H z - b, float64.
        slope: the same in float32.
        pieces: where each unit is.
        free: the units that are at no end, `count` of them.
    """

    z: Any
    single: Any
    gradient: Any
    slope: Any
    pieces: Any
    free: Any


@compiled
def _place(units):
    whole, half = np.float64, np.float32
    return Place(
        np.zeros(units, whole), np.zeros(units, half), np.zeros(units, whole),
        np.zeros(units, half), np.zeros(units, np.int64), np.zeros(units, np.int64),
    )  # fmt: skip


@compiled
def _piece(v, line):
    """Return the piece of phi that a state is on."""
    if v <= line.low:
        return _LOW
    if v >= line.high:
        return _HIGH
    return _BELOW if v < 0 and line.alpha < 1 else _ABOVE


@compiled
def _gradient(hessian, right, z, gradient):
    """Put H z - b into the gradient."""
    units = len(z)
    for k in range(units):
        gradient[k] = -right[k]
    for i in range(units):
        if z[i] != 0:
            v, row = z[i], hessian[i]
            for k in range(units):
                gradient[k] += v * row[k]


@compiled
def _sweep(hessian, line, at, slope, pieces):
    """Minimize over one unit after another; return how many changed their state and their piece."""
    moved, turned, one = 0, 0, line.alpha / line.alpha
    for i in range(len(at)):
        row = hessian[i]
        pull = row[i] * at[i] - slope[i]
        v = pull / (one + row[i]) if pull > 0 else pull * line.alpha / (one + line.alpha * row[i])
        v = min(max(v, line.low), line.high)
        change = v - at[i]
        if change != 0:
            at[i] = v
            moved += 1
            for k in range(len(at)):
                slope[k] += change * row[k]
            piece = _piece(v, line)
            turned += piece != pieces[i]
            pieces[i] = piece
    return moved, turned


@compiled
def _solved(hessian, right, line, place):
    """Put the minimizer on the pieces into z."""
    units, count = len(right), 0
    z, pieces, free = place.z, place.pieces, place.free
    for i in range(units):
        z[i] = 0.0
        if pieces[i] == _LOW:
            z[i] = line.low
        elif pieces[i] == _HIGH:
            z[i] = line.high
        else:
            free[count] = i
            count += 1
    if count == 0:
        return
    _gradient(hessian, right, z, place.gradient)
    system = np.empty((count, count))
    for n in range(count):
        i = free[n]
        row = hessian[i]
        for m in range(n + 1):
            system[n, m] = row[free[m]]
        system[n, n] += 1.0 / line.alpha if pieces[i] == _BELOW else 1.0
    factor = np.linalg.cholesky(system)
    x = np.empty(count)
    for n in range(count):
        total, row = -place.gradient[free[n]], factor[n]
        for m in range(n):
            total -= row[m] * x[m]
        x[n] = total / row[n]
    for n in range(count - 1, -1, -1):
        row = factor[n]
        x[n] /= row[n]
        for m in range(n):
            x[m] -= row[m] * x[n]
    for n in range(count):
        z[free[n]] = x[n]


@compiled
def _cost(pieces):
    """Return the operations of a solve."""
    count = 0
    for i in range(len(pieces)):
        count += _LOW < pieces[i] < _HIGH
    return count * (count * count / 6.0 + 4.0 * len(pieces))


@compiled
def _turned(hessian, right, line, place, goal):
    """Move units to the piece where their state or slope is; return how many were elsewhere."""
    z, gradient, pieces, turned = place.z, place.gradient, place.pieces, 0
    _gradient(hessian, right, z, gradient)
    for i in range(len(z)):
        piece = pieces[i]
        if piece in (_LOW, _HIGH):
            slope = gradient[i] + (z[i] if z[i] > 0 else z[i] / line.alpha)
            if (slope if piece == _LOW else -slope) < -goal and line.low < line.high:
                above = line.alpha == 1 or z[i] > 0 or (z[i] == 0 and piece == _LOW)
                pieces[i] = _ABOVE if above else _BELOW
                turned += 1
            continue
        z[i] = min(max(z[i], line.low), line.high)
        pieces[i] = _piece(z[i], line)
        turned += piece != pieces[i]
    return turned


@compiled
def descend(hessian, single, right, line, quick, goal, budget, z):
    """Put the states of all samples into z.

    Args:
        hessian: A A', (units, units), float64.
        single: the same in float32.
        right: b, (samples, units).
        line: phi in float64.
        quick: the same in float32.
        goal: what a slope may have of the wrong sign.
        budget: operations of all samples, beyond which they are left.
        z: where to begin, (samples, units), replaced by the states.

    Returns:
        The operations of all samples, infinite where one was not solved.
    """
    units = len(hessian)
    place, used = _place(units), 0.0
    for n in range(len(z)):
        place.z[:] = z[n]
        ended = False
        for number in range(_ROUNDS):
            for i in range(units):
                place.single[i] = place.z[i]
                place.pieces[i] = _piece(place.single[i], quick)
                place.slope[i] = 0
            _gradient(hessian, right[n], place.z, place.gradient)
            for i in range(units):
                place.slope[i] = place.gradient[i]
            for sweep in range(_SWEEPS):
                moved, turned = _sweep(single, quick, place.single, place.slope, place.pieces)
                used += 2.0 * moved * units
                if (turned == 0 and sweep >= number * number) or used > budget:
                    break
            before = units + 1
            for _ in range(_SOLVES):
                _solved(hessian, right[n], line, place)
                used += _cost(place.pieces)
                if used > budget:
                    return np.inf
                turned = _turned(hessian, right[n], line, place, goal)
                ended = turned == 0
                if ended or turned >= before:
                    break
                before = turned
            if ended:
                break
        if not ended:
            return np.inf
        z[n] = place.z
    return used
