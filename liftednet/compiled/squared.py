"""The judgment of output states under the squared loss, in one pass, float64."""

from __future__ import annotations

import numpy as np

from . import maps
from .lanes import compiled

_NEAR = np.finfo(np.float64).eps ** 0.5


@compiled
def judged_squares(y, u, z, lam, own):
    """Return the objective, the violation and the largest entry of states.

    |y - z|^2 / 2 + lam (Phi(z) - <z, u>), and |z - prox_{lam Phi}(y + lam u)|.

    Args:
        y: targets, (samples, outputs).
        u: pre-activations, (samples, outputs).
        z: states, (samples, outputs).
        lam: the weight of the divergence.
        own: the map that Phi belongs to.
    """
    objective, violation, largest, total = 0.0, 0.0, 0.0, 0.0
    for n in range(len(z)):
        for i in range(z.shape[1]):
            state, target, pre = np.float64(z[n, i]), np.float64(y[n, i]), np.float64(u[n, i])
            away = target - state
            objective += 0.5 * away * away + lam * (maps.potential(own, state) - state * pre)
            off = state - maps.prox(own, target + lam * pre, lam, _NEAR)
            violation, largest = max(violation, abs(off)), max(largest, abs(state))
            total += off
    return objective, violation if total == total else np.nan, largest
