"""How good densities and probabilities of rows that were held out are."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import norm
from sklearn.metrics import accuracy_score, log_loss, r2_score

Array = np.ndarray[Any, Any]
LEVELS = (0.5, 0.9, 0.99)
_BINS = 10


def of_numbers(mean: Array, std: Array | None, y: Array, unit: float) -> dict[str, float]:
    """Return R2, and of what has standard deviations the likelihood and what intervals hold.

    The likelihood is the negative log density of an answer over `unit`, so that those of several
    sets can be averaged.
    """
    found = {"score": float(r2_score(y, mean))}
    if std is None:
        return found
    found["likelihood"] = float(-norm.logpdf(y / unit, mean / unit, std / unit).mean())
    for level in LEVELS:
        within = norm.ppf((1 + level) / 2) * std
        found[f"holds {level}"] = float(np.mean(abs(y - mean) < within))
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
