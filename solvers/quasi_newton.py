"""L-BFGS in one thread: several wait for each other longer than its small systems take."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from liftednet.products import threads

Array = np.ndarray[Any, Any]


def lbfgs(
    valued: Callable[[Array], tuple[float, Array]],
    start: Array,
    steps: int,
    history: int,
    tolerance: float,
    slope: float = 0.0,
    ends: tuple[Array, Array] | None = None,
) -> tuple[Array, int]:
    """Return where L-BFGS leads to (SciPy's, between ends), and how many evaluations it took.

    Args:
        valued: value and gradient at a point.
        start: the first one.
        steps: the most of them.
        history: pairs of steps and changes of gradients that are kept.
        tolerance: relative decrease of a step at which it ends.
        slope: largest entry of the gradient at which it ends.
        ends: lowest and highest points; None where it is free.
    """
    from scipy.optimize import Bounds, minimize  # whose import takes .2 s

    options = {"maxiter": steps, "maxfun": 10 * steps, "maxcor": history, "ftol": tolerance}
    with threads(math.inf, 1):
        found = minimize(
            valued, start, jac=True, method="L-BFGS-B", options={**options, "gtol": slope},
            bounds=None if ends is None else Bounds(*ends),
        )  # fmt: skip
    return found.x, int(found.nfev)
