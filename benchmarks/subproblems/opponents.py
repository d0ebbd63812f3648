"""What a few dozen lines of Numba do, sample by sample: the strongest opponents of our solvers."""

from __future__ import annotations

import math

import numpy as np
from numba import njit


@njit(cache=True)
def simplex_newton(y, u, lam, settled, z):
    """Newton's method for the multiplier of each sample on the simplex, from above."""
    samples, outputs = u.shape
    a, s = np.empty(outputs, u.dtype), np.empty(outputs, u.dtype)
    for n in range(samples):
        top, mass = u[n].max(), y[n].sum()
        at_label = at_center = above = -np.inf
        for i in range(outputs):
            a[i], s[i] = y[n, i] / lam, u[n, i] - top
            label = y[n, i] / mass if mass > 0 else 1 / outputs
            ratio = a[i] / label if label > 0 else 0.0
            at_label = max(at_label, label - ratio - s[i])
            at_center = max(at_center, 1 / outputs - a[i] * outputs - s[i])
            above = max(above, s[i] + a[i])
        nu = min(at_label, at_center, 1 - above)
        for _ in range(50):
            total, slope = 0.0, 0.0
            for i in range(outputs):
                at = s[i] + nu
                root = math.sqrt(at * at + 4 * a[i])
                below = abs(at) + root
                state = max(at, 0.0) + (2 * a[i] / below if below > 0 else 0.0)
                z[n, i] = state
                total += state
                slope += state / root if root > 0 else 0.0
            if abs(total - 1) <= settled:
                break
            nu -= (total - 1) / max(slope, 1e-300)
        for i in range(outputs):
            z[n, i] /= total
