"""An opponent in JAX: accelerated projected gradient, all samples together, compiled by XLA."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

import jax
import jax.numpy as jnp

jax.config.update("jax_enable_x64", True)
_STEPS = 2_000


@jax.jit
def _descend(hessian, linear, z, step, momentum, upper, goal):
    """Nesterov's steps with restarts, sample by sample, to where none moves by more than goal."""

    def advance(at):
        z, ahead, t, _, number = at
        found = jnp.clip(ahead - step * (ahead @ hessian - linear), 0, upper)
        uphill = ((ahead - found) * (found - z)).sum(1, keepdims=True) > 0
        larger = jnp.where(uphill, 1, (1 + jnp.sqrt(1 + 4 * t * t)) / 2)
        beta = jnp.where(uphill, 0, jnp.minimum((t - 1) / larger, momentum))
        worst = jnp.abs(ahead - found).max() / step
        return found, found + beta * (found - z), larger, worst, number + 1

    def goes_on(at):
        return (at[3] > goal) & (at[4] < _STEPS)

    one = jnp.ones((len(z), 1), z.dtype)
    infinite = jnp.asarray(jnp.inf, z.dtype)
    return jax.lax.while_loop(goes_on, advance, (z, z, one, infinite, 0))[0]


def accelerated(
    hessian: Any, linear: Any, z: Any, ends: Any, upper: float, goal: float
) -> np.ndarray[Any, Any]:
    """Return z of z'Hz / 2 - <l, z>, 0 <= z <= upper, for every row l.

    Args:
        hessian: H, (units, units).
        linear: (samples, units).
        z: where to begin, (samples, units).
        ends: the least and the largest eigenvalue of H.
        upper: may be infinite.
        goal: the largest gradient left.
    """
    low, high = np.sqrt(ends)
    numbers = (1 / ends[1], (high - low) / (high + low), upper, goal)
    found = _descend(hessian, linear, z, *(hessian.dtype.type(number) for number in numbers))
    return np.array(found, np.float64)
