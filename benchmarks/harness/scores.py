"""How good densities and probabilities of rows that were held out are."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import norm
from sklearn.metrics import accuracy_score, log_loss, r2_score

Array = np.ndarray[Any, Any]
LEVELS = (0.5, 0.9, 0.99)
_BINS = 10


def of_numbers(
    mean: Array, std: Array | None, y: Array, unit: float, own: Any = None
) -> dict[str, float]:
    """Return R2, and of what has standard deviations the likelihood and what intervals hold.

    The likelihood is the negative log density of an answer over `unit`, so that those of several
    sets can be averaged. Densities are normal, but where a method has its `own`, with
    log_density(y) and interval(level).
    """
    found = {"score": float(r2_score(y, mean))}
    if std is None:
        return found
    densities = norm.logpdf(y, mean, std) if own is None else own.log_density(y)
    found["likelihood"] = float(-np.mean(densities) - np.log(unit))
    for level in LEVELS:
        reach = norm.ppf((1 + level) / 2) * std
        low, high = (mean - reach, mean + reach) if own is None else own.interval(level)
        found[f"holds {level}"] = float(np.mean((low < y) & (y < high)))
    return found


def of_chances(chances: Array, y: Array) -> dict[str, float]:
    """Return accuracy, log loss, and the expected calibration error over ten bins."""
    surest, right = chances.max(1), chances.argmax(1) == y
    bins = np.minimum((_BINS * surest).astype(int), _BINS - 1)
    off = (abs((surest - right)[bins == b].sum()) for b in range(_BINS))
    clipped = np.clip(chances, 1e-15, 1)
    return {
        "score": float(accuracy_score(y, chances.argmax(1))),
        "likelihood": float(log_loss(y, clipped, labels=range(chances.shape[1]))),
        "calibration": float(sum(off)) / len(y),
    }
