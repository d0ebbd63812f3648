"""What compiled loops share: their options, blocks of samples in lanes, and a logarithm.

A loop over lanes becomes vector instructions where the compiler can tell its arrays apart, which
it tries for a few pairs of them: sums of a block therefore stand in one array, one behind another,
at offsets that are multiples of LANES.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

LANES = 32  # samples of a block: several registers, so that one waits for another

# Divisions by zero are infinite, as they are to torch; sums may be taken in any order.
compiled: Any = njit(
    cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz", "reassoc"}
)

_EXPONENT, _MANTISSA = np.int64(0x7FF), np.int64(0xFFFFFFFFFFFFF)
_ONE = np.int64(0x3FF0000000000000)  # the bits of 1.0
_LOG_2, _ROOT_2 = np.log(2.0), np.sqrt(2.0)


@compiled
def load(rows, first, block):
    """Turn samples of rows (samples, entries) from `first` on into block (entries, lanes).

    Lanes beyond the last sample repeat it; rows of the block beyond the last entry stay.
    """
    last = len(rows) - 1
    for lane in range(block.shape[1]):
        row = rows[min(first + lane, last)]
        for i in range(len(row)):
            block[i, lane] = row[i]


@compiled
def fill(block, value):
    """Put one value into all of a block."""
    flat = block.ravel()
    for n in range(len(flat)):
        flat[n] = value


@compiled
def copy(values, block):
    """Put the values of one block into another, in its precision."""
    one, other = values.ravel(), block.ravel()
    for n in range(len(other)):
        other[n] = one[n]


@compiled
def logarithms(x, bits):
    """Replace x (lanes,), positive normal float64 numbers, by log x.

    With x = 2^e m, m in [1 / sqrt 2, sqrt 2], and r = (m - 1) / (m + 1): e log 2 + 2 artanh(r).

    Args:
        x: (2 lanes,), of which the second half is scratch.
        bits: the same as int64.
    """
    for lane in range(LANES):
        number = bits[lane]
        x[LANES + lane] = float(((number >> 52) & _EXPONENT) - 1023)
        bits[lane] = (number & _MANTISSA) | _ONE
    for lane in range(LANES):
        m, e = x[lane], x[LANES + lane]
        large = m > _ROOT_2
        m = 0.5 * m if large else m
        e = e + 1.0 if large else e
        r = (m - 1.0) / (m + 1.0)
        s = r * r
        tail = 1 / 13 + s * (1 / 15 + s * (1 / 17 + s * (1 / 19 + s / 21)))
        series = s * (1 / 3 + s * (1 / 5 + s * (1 / 7 + s * (1 / 9 + s * (1 / 11 + s * tail)))))
        x[lane] = e * _LOG_2 + 2.0 * (r + r * series)
