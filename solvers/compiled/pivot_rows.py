"""Nonnegative states of few units below quadratic links, by the inverse for every set that is free.

min over z >= 0 of z'Mz / 2 - <z, b> for every sample: where F tells which units are free, z_F is
M_FF^-1 b_F and the others' slope b_A - M_AF z_F. Few units have few sets, and principal pivots lead
from the matrix of one to that of the next in as many operations as it has entries, so that samples
have no system to solve: the signs of one product tell the next set (Judice and Pires, 1994).
"""

from __future__ import annotations

import numpy as np

from .lanes import compiled, copy

_TOGETHER = 16  # changes of all units that contradict a set, then of one at a time (Murty, 1974)
_MOST = 200


@compiled
def inverses(matrix):
    """Return for each set of free units, as bits, columns of [M_FF^-1; -M_AF M_FF^-1].

    (2^units, units, units), the second for the columns, which serve where these are free. A pivot
    on unit k is a sweep (Goodnight, 1979).
    """
    units = len(matrix)
    found = np.empty((1 << units, units, units))
    copy(matrix, found[0])
    for k in range(units):
        for before in range(1 << k):
            one, other = found[before], found[before | 1 << k]
            scale = 1.0 / one[k, k]
            for j in range(units):
                share = one[j, k] * scale
                for i in range(units):
                    other[j, i] = one[j, i] - one[k, i] * share
                other[j, k] = share
            for i in range(units):
                other[k, i] = -one[k, i] * scale
            other[k, k] = scale
    return found


@compiled
def pivot(table, right, z):
    """Put the states of all samples into z.

    Args:
        table: as `inverses` has it.
        right: b, (samples, units).
        z: where to begin, (samples, units), replaced by the states.

    Returns:
        The most sets that a sample took, infinite where one did not end.
    """
    samples, units = z.shape
    y, most = np.empty(units), 0
    for n in range(samples):
        free, steps = 0, 0
        for i in range(units):
            free |= int(z[n, i] > 0.0) << i
        while steps < _MOST:
            steps += 1
            inverse = table[free]
            for i in range(units):
                y[i] = 0.0 if free >> i & 1 else right[n, i]
            for j in range(units):
                if free >> j & 1:
                    b = right[n, j]
                    for i in range(units):
                        y[i] += inverse[j, i] * b
            wrong = free
            for i in range(units):
                wrong ^= int(y[i] > 0.0) << i
            if wrong == 0:
                break
            free ^= wrong if steps < _TOGETHER else wrong & -wrong
        if wrong != 0:
            return np.inf
        most = max(most, steps)
        for i in range(units):
            z[n, i] = y[i] if free >> i & 1 else 0.0
    return float(most)
