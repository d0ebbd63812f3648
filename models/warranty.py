"""What constraints on rates are worth on new rows: rows set aside, and exact bounds on them.

After Thomas et al., Preventing undesirable behavior of intelligent machines, Science 366 (2019):
training meets the constraints with a margin, and rows that it has not seen say whether they hold.
A constraint is broken if one of its comparisons is, so that each of these is tested at the level
of the constraint (an intersection-union test); constraints share one minus the confidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from liftednet.confidence import difference_bound, mean_bound, share_bound
from liftednet.errors import DataError
from liftednet.sets.polyhedron import Array
from liftednet.sets.rates import Comparison, RateConstraint, Share, rate_limits

from .constraint_report import Verdict
from .rates import chances, decided

_MANY = 10_000_000  # rows beyond which no number would do


def set_aside(
    constraints: Sequence[RateConstraint],
    labels: Array,
    classes: int,
    share: float,
    generator: torch.Generator,
) -> tuple[Array, Array]:
    """Return the numbers of rows to train on, and of those set aside: as many of every kind.

    Rows are of one kind where all constraints count them alike.

    Raises:
        DataError: the share is none, or a kind has a single row.
    """
    if not 0 < share < 1:
        raise DataError(f"held_out must lie between 0 and 1, got {share}.")
    found = [x for one in constraints for x in one.comparisons(labels, classes)]
    limits = rate_limits(found, len(labels), classes)
    coded = limits.matrix.T @ np.random.default_rng(0).standard_normal(len(found))
    coded = coded.reshape(len(labels), classes).round(12)
    _, kinds = np.unique(coded, axis=0, return_inverse=True)
    order = torch.randperm(len(labels), generator=generator).numpy()
    aside = []
    for kind in range(int(kinds.max()) + 1):
        rows = order[kinds.ravel()[order] == kind]
        aside.append(rows[: round(share * len(rows))])
    held = np.sort(np.concatenate(aside))
    return np.setdiff1d(np.arange(len(labels)), held), held


def taken(given: Any, rows: Array) -> Any:
    """Return some rows of arrays as they were given, or of several of them."""
    if isinstance(given, tuple):
        return tuple(taken(one, rows) for one in given)
    if isinstance(given, Tensor):
        return given[torch.from_numpy(rows).to(given.device)]
    return given.iloc[rows] if hasattr(given, "iloc") else np.asarray(given)[rows]


def errors_aside(confidence: float, constraints: int, share: float) -> float:
    """Return by how many standard errors of the training rows the aim is tighter than the limits.

    That by which training rows differ from all, and the distance of the bound to come.
    """
    z = float(-ndtri((1 - confidence) / constraints))
    return 1.0 + z * math.sqrt((1 - share) / share)


def refuse_too_few(
    constraints: Sequence[RateConstraint], labels: Array, classes: int, confidence: float
) -> None:
    """Raise `DataError` where so few rows show nothing, however good the network is.

    Args:
        constraints: on the rows that are set aside.
        labels: their numbers.
        classes: two or more.
        confidence: for all constraints together.
    """
    delta = (1 - confidence) / len(constraints)
    for one in constraints:
        for x in one.comparisons(labels, classes):
            least = _least(x, delta, one.soft)
            if least is not None and least[0] > least[1]:
                raise DataError(
                    f"{one!r} cannot be shown with confidence {confidence:g} on "
                    f"{_counts(x)} rows set aside: the best that they could show is "
                    f"{least[0]:.3f}. Give more rows, a larger held_out, or a looser limit."
                )


def verdicts(
    constraints: Sequence[RateConstraint],
    labels: Array,
    scores: Tensor,
    confidence: float,
) -> tuple[Verdict, ...]:
    """Return what rows that no training has seen show of each constraint.

    Args:
        constraints: on these rows.
        labels: (rows,) numbers.
        scores: (rows, outputs).
        confidence: for all constraints together.
    """
    delta, found = (1 - confidence) / len(constraints), []
    for one in constraints:
        values = chances(scores).cpu().numpy() if one.soft else decided(scores)
        each = [
            verdict
            for x in one.comparisons(labels, values.shape[1])
            for verdict in _judged(x, values, delta, confidence, one.soft)
        ]
        worst = max(each, key=lambda v: abs(v.bound - v.limit) * (-1 if v.holds else 1))
        found.append(worst)
    return tuple(found)


def _judged(
    one: Comparison, values: Array, delta: float, confidence: float, soft: bool
) -> list[Verdict]:
    """Return the verdicts on both ends, those that say something."""
    found = []
    seen = one.of(values)
    for sign, limit in ((1, one.upper), (-1, -one.lower)):
        if one.second is None and limit >= (1 if sign > 0 else 0):
            continue  # no end: shares lie from 0 to 1
        bound = _bound(one, values, delta, sign, soft)
        needed = None if bound <= limit else _needed(one, values, delta, sign * seen, limit)
        shift = 1 if one.second is not None else sign  # a difference is told as its size
        found.append(
            Verdict(
                shift * sign * seen if one.second is None else abs(seen),
                shift * bound,
                shift * limit,
                bound <= limit,
                confidence,
                needed,
            )
        )
    return found


def _bound(one: Comparison, values: Array, delta: float, sign: int, soft: bool) -> float:
    """Return the upper bound on sign times a share, or a difference of two."""
    parts = [share for _, share in one.parts]
    if len(parts) == 2:
        first, second = parts[::sign]
        if soft:
            half = delta / 2
            up = mean_bound(first.of(values), len(first.rows), half)
            return up - 1 + mean_bound(1 - second.of(values), len(second.rows), half)
        return difference_bound(_hits(first, values), _hits(second, values), delta)
    hits, rows = _hits(parts[0], values)
    if soft:
        mean = parts[0].of(values)
        return mean_bound(mean, rows, delta) if sign > 0 else mean_bound(1 - mean, rows, delta) - 1
    return share_bound(hits, rows, delta) if sign > 0 else share_bound(rows - hits, rows, delta) - 1


def _hits(share: Share, values: Array) -> tuple[int, int]:
    return round(share.of(values) * len(share.rows)), len(share.rows)


def _needed(one: Comparison, values: Array, delta: float, seen: float, limit: float) -> int | None:
    """Return how many rows like these would show it, by the normal law; None for none."""
    room = limit - seen
    variance = sum(_variance(share.of(values)) / len(share.rows) for _, share in one.parts)
    if room <= 0:
        return None
    factor = max(variance * (float(ndtri(delta)) / room) ** 2, 1.0)
    rows = math.ceil(1.1 * factor * sum(len(share.rows) for _, share in one.parts))
    return rows if rows < _MANY else None


def _variance(share: float) -> float:
    return max(share * (1 - share), 1e-3)


def _least(one: Comparison, delta: float, soft: bool) -> tuple[float, float] | None:
    """Return the least bound that rows could show, and the limit: all of them counted alike."""
    rows = [len(share.rows) for _, share in one.parts]
    shown: Callable[[float, int, float], float] = mean_bound if soft else _shown
    if one.second is None:
        if one.upper < 1:
            return shown(0, rows[0], delta), one.upper
        return shown(0, rows[0], delta), 1 - one.lower
    if soft:
        return max(shown(0, n, delta / 2) for n in rows), one.upper
    return max(shown(0, n, delta) for n in rows), one.upper


def _shown(mean: float, rows: int, delta: float) -> float:
    return share_bound(round(mean * rows), rows, delta)


def _counts(one: Comparison) -> str:
    return " and ".join(f"{len(share.rows):,}" for _, share in one.parts)
