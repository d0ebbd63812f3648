"""Exact bounds on shares and means of new rows, from rows that no training has seen.

Every bound is one-sided: what it bounds lies above it with a probability of at most delta, whatever
the distribution, for independent rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from liftednet.errors import DataError
from liftednet.lazy import optimize, special
from liftednet.validation import require_share

_APART = 0.02  # of delta is spent on where the nuisance share lies (Berger and Boos, 1994)
_ANGLE = 2e-3  # in arcsin(sqrt(P)), by which P may change from a point of the grid, nearly
_EVEN = 3  # times the points are moved until they are so far apart
_DIGITS = 1e-4  # of a bound on a difference
_FEW = 40  # points of the grid while a bound is looked for
_FAR = 9.0  # standard deviations beyond which hits have no probability in float64


def share_bound(hits: int, rows: int, delta: float) -> float:
    """Return the upper bound on a share (Clopper and Pearson, Biometrika 26, 1934).

    Args:
        hits: of the rows, how many count.
        rows: one or more.
        delta: probability that the share lies above.

    Example:
        >>> from liftednet.confidence import share_bound
        >>> round(share_bound(0, 59, 0.05), 3)  # the rule of three
        0.05
    """
    _require(hits, rows, delta)
    return 1.0 if hits == rows else float(special.betaincinv(hits + 1, rows - hits, 1 - delta))


def difference_bound(first: tuple[int, int], second: tuple[int, int], delta: float) -> float:
    """Return the upper bound on p - q, of the shares of two independent samples.

    It is the largest w for which what was seen, or less, has a probability above delta for some q
    in its own confidence interval where p = q + w: an unconditional exact test (Berger and Boos,
    P values maximized over a confidence set for the nuisance parameter, 1994). Samples are less
    where an approximate bound on them is: that of Wilson's two intervals (Newcombe, Interval
    estimation for the difference between independent proportions, 1998, method 10), as in Buehler,
    Confidence intervals for the product of two binomial parameters, 1957. It rises with hits of p
    and falls with those of q, so that the probability falls with w. The maximum over q is taken on
    a grid, and between its points bounded by Cauchy and Schwarz: arcsin(sqrt(P)) changes by at most
    sqrt(n) |d arcsin(sqrt(p))| + sqrt(m) |d arcsin(sqrt(q))|.

    Args:
        first: hits and rows of p.
        second: hits and rows of q.
        delta: probability that p - q lies above.

    Example:
        >>> from liftednet.confidence import difference_bound
        >>> round(difference_bound((250, 500), (250, 500), 0.05), 2)  # 1.645 standard errors
        0.05
    """
    (a, n), (b, m) = first, second
    _require(a, n, delta)
    _require(b, m, delta)
    spent = _APART * delta
    ends = 1 - share_bound(m - b, m, spent / 2), share_bound(b, m, spent / 2)
    test = _Difference(a, n, b, m, ends, max(0.0, float(-special.ndtri(delta))))
    lower, upper = a / n - b / m, 1.0
    while upper - lower > _DIGITS:  # by few points, which the last word does not trust
        middle = (lower + upper) / 2
        passes = test.chance(middle, certain=False) > delta - spent
        lower, upper = (middle, upper) if passes else (lower, middle)
    step = _DIGITS
    while upper < 1 and test.chance(upper) > delta - spent:
        upper, step = min(1.0, upper + step), 2 * step
    return upper


class _Difference:
    """The probability of no more than a of n and b of m hits, for shares p = q + w and q."""

    def __init__(
        self, a: int, n: int, b: int, m: int, ends: tuple[float, float], errors: float
    ) -> None:
        self._n, self._m, self._ends = n, m, ends
        hits = np.arange(n + 1)
        upper = [_wilson(hits, n, errors), _wilson(m - np.arange(m + 1), m, errors)]
        below, above = np.zeros(n + 1, int), np.full(n + 1, m + 1)
        most = _together(upper, a, b) + 1e-12  # but for rounding
        while (below < above).any():  # of q: the bound on the difference falls with them
            middle = (below + above) // 2
            passes = _together(upper, hits, np.minimum(middle, m)) > most
            moves = below < above
            below = np.where(moves & passes, middle + 1, below)
            above = np.where(moves & ~passes, middle, above)
        self._least = below  # hits of q, for each number of those of p

    def chance(self, w: float, certain: bool = True) -> float:
        """Return its maximum over q, or over few points without what lies between."""
        low, high = max(self._ends[0], -w, 0.0), min(self._ends[1], 1 - w, 1.0)
        if low >= high:
            return 0.0
        angles: np.ndarray = np.linspace(
            math.asin(math.sqrt(low)), math.asin(math.sqrt(high)), _FEW
        )
        if not certain:
            return float(self._at(angles, w).max())
        lengths = self._lengths(angles, w)
        count = 2 + math.ceil((lengths[-1] - lengths[0]) / (2 * _ANGLE))
        for _ in range(_EVEN):
            evenly = np.linspace(lengths[0], lengths[-1], count)
            angles = np.interp(evenly, lengths, angles)
            lengths = self._lengths(angles, w)
        most = float(self._at(angles, w).max())
        angle = math.asin(math.sqrt(min(most, 1.0))) + float(np.diff(lengths).max()) / 2
        return math.sin(min(angle, math.pi / 2)) ** 2

    def _lengths(self, angles: np.ndarray, w: float) -> np.ndarray:
        """Return how far arcsin(sqrt(P)) may have gone: Fisher's information is 4 n an angle."""
        p = np.clip(np.sin(angles) ** 2 + w, 0.0, 1.0)
        return math.sqrt(self._m) * angles + math.sqrt(self._n) * np.arcsin(np.sqrt(p))

    def _at(self, angles: np.ndarray, w: float) -> np.ndarray:
        n, m = self._n, self._m
        q = np.sin(angles) ** 2
        hits, weights = _likely(n, np.clip(q + w, 0.0, 1.0))
        others, shares = _likely(m, q)
        tails = np.c_[shares[:, ::-1].cumsum(1)[:, ::-1], np.zeros(len(q))]
        places = np.clip(self._least[hits] - others[0], 0, len(others))
        return (weights * tails[:, places]).sum(1)


def _wilson(hits: np.ndarray, rows: int, errors: float) -> tuple[np.ndarray, np.ndarray]:
    """Return shares, and how far above them Wilson's bound lies (1927).

    The bound rises with the share, at most twice as fast: so does the sum of the one and the root
    of the other's square and a constant.
    """
    share, width = hits / rows, errors**2 / rows
    root = errors * np.sqrt(share * (1 - share) / rows + width / (4 * rows))
    return share, (share + width / 2 + root) / (1 + width) - share


def _together(upper: Sequence[tuple[np.ndarray, np.ndarray]], a: Any, b: Any) -> Any:
    """Return the approximate bound on p - q, less 1, at numbers of hits."""
    (p, far), (q, farther) = upper
    return p[a] + q[b] + np.sqrt(far[a] ** 2 + farther[b] ** 2)


def _likely(rows: int, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers of hits with a probability, and this (shares, numbers), of given shares."""
    reach = _FAR * math.sqrt(rows) / 2 + _FAR**2
    first, last = rows * shares.min() - reach, rows * shares.max() + reach
    hits = np.arange(max(0, int(first)), min(rows, int(last)) + 1)
    logs = special.gammaln(rows + 1) - special.gammaln(hits + 1) - special.gammaln(rows - hits + 1)
    p = shares[:, None]
    found: np.ndarray = np.exp(logs + special.xlogy(hits, p) + special.xlog1py(rows - hits, -p))
    return hits, found


def mean_bound(mean: float, rows: int, delta: float) -> float:
    """Return the upper bound on the mean of numbers from 0 to 1 (Hoeffding, 1963, theorem 1).

    It is the largest mu with rows kl(mean, mu) <= log(1 / delta), kl that of two coins.

    Args:
        mean: of the rows.
        rows: one or more.
        delta: probability that the mean of all lies above.

    Example:
        >>> from liftednet.confidence import mean_bound
        >>> round(mean_bound(0.5, 1_000, 0.05), 3)
        0.539
    """
    _require(mean * rows, rows, delta)
    if mean >= 1:
        return 1.0

    def apart(mu: float) -> float:
        far = special.rel_entr(mean, mu) + special.rel_entr(1 - mean, 1 - mu)
        return float(rows * far + math.log(delta))

    return 1.0 if apart(1 - 1e-12) <= 0 else float(optimize.brentq(apart, mean, 1 - 1e-12))


def _require(hits: float, rows: int, delta: float) -> None:
    if rows < 1 or not 0 <= hits <= rows * (1 + 1e-9):
        raise DataError(f"a bound needs 0 to {rows} hits among at least one row, got {hits:g}.")
    require_share("delta", delta)
