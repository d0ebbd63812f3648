"""State and output fits under linear constraints across samples, by their prices.

At given prices the Lagrangian is the same fit with another pre-activation, which the fast solvers
solve as ever, each sample by itself; the prices then take a step of the fast dual proximal gradient
method (Beck, First-Order Methods in Optimization, 2017, section 12.4).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from liftednet.problems import ConstrainedFit, Fit, OutputFit, StateFit
from liftednet.sets.polyhedron import Array
from liftednet.solution import Solution, Status

from .base import Solver, default_tolerance
from .choice import best, serving

_EVERY = 10  # steps between two looks at the residual
_POWERS = 30  # of A'A, by which its norm is found


@dataclass(frozen=True)
class DualAscent(Solver[ConstrainedFit, Tensor, None]):
    """Solves a state or output fit under linear constraints, to a price for each.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-8 in float64, 1e-5 in float32.
        max_iterations: steps of the prices.

    Example:
        >>> import torch
        >>> from liftednet import ConstrainedFit, OutputFit
        >>> from liftednet.activations import Identity
        >>> from liftednet.constraints import Order
        >>> from liftednet.divergences import tight
        >>> from liftednet.losses import SquaredError
        >>> from liftednet.solvers import DualAscent, solve
        >>> y = torch.tensor([[2.0], [1.0]], dtype=torch.float64)
        >>> fit = OutputFit(SquaredError(), y, tight(Identity()), y)
        >>> solution = solve(ConstrainedFit(fit, (Order([(0, 1)]),)), DualAscent())
        >>> solution.value.round(decimals=4).T, solution.duals[0].round(decimals=4)
        (tensor([[1.5000, 1.5000]], dtype=torch.float64), tensor([[1.]], dtype=torch.float64))
    """

    tolerance: float | None = None
    max_iterations: int = 5_000
    name: str = field(default="dual-ascent", init=False)

    def obstacle(self, problem: Fit[Any]) -> str | None:
        """Ask for a fit that prices tilt, a strongly convex potential, and a solver for it."""
        if not isinstance(problem, ConstrainedFit):
            return "it solves fits under constraints alone"
        if not isinstance(problem.fit, StateFit | OutputFit):
            return "it solves state and output fits alone"
        if not problem.linear:
            return "it needs linear constraints, and CVXPY alone knows one of these"
        if not problem.tilts or problem.fit.divergence.smoothness is None:
            return f"it needs a Lipschitz constant of {problem.fit.divergence.activation!r}"
        if next(serving(problem.fit), None) is None:
            return "no fast solver serves the fit without constraints"
        return None

    def solve(
        self, problem: ConstrainedFit, start: Tensor | None = None, cache: None = None
    ) -> Solution[Tensor]:
        """Return the states with their prices."""
        started = time.perf_counter()
        fit, limits = problem.fit, problem.limits
        tolerance = self.tolerance or default_tolerance(fit.pre_activation.dtype)
        inner = best(fit)
        norms, limits = limits.norms, limits.normed()
        matrix, lower, upper = limits.matrix, limits.lower, limits.upper
        step = fit.lam / (fit.divergence.smoothness * _squared_norm(matrix))
        y, previous, ahead, value, prepared = *3 * (np.zeros(len(norms)),), start, None
        momentum, steps, residual = 1.0, 0, np.inf
        while True:
            tilted = problem.tilted(_slopes(matrix, ahead, problem.shape))
            prepared = inner.prepare(tilted, prepared)
            value = inner.solve(tilted, value, prepared).value
            at = ahead / step + matrix @ value.detach().double().cpu().numpy().reshape(-1)
            y = step * (at - np.clip(at, lower, upper))
            if steps % _EVERY == 0 or steps == self.max_iterations:
                prices = problem.split(ahead / norms)
                objective, residual = problem.measure_with(value, prices)
            if residual <= tolerance or steps == self.max_iterations:
                break
            restarts = (ahead - y) @ (y - previous) > 0  # O'Donoghue and Candes, 2015
            before = 1.0 if restarts else momentum
            momentum = (1 + np.sqrt(1 + 4 * before**2)) / 2
            ahead = y + (before - 1) / momentum * (y - previous)
            previous, steps = y, steps + 1
        return Solution(
            value, objective, residual, steps, tolerance, Status.ITERATION_LIMIT,
            time.perf_counter() - started, self.name, prices,
        ).require_usable()  # fmt: skip


def _slopes(matrix: Any, y: Array, shape: tuple[int, int]) -> Tensor:
    return torch.from_numpy(matrix.T @ y).reshape(shape)


def _squared_norm(matrix: Any) -> float:
    """Return the largest eigenvalue of A'A, or a little more, by powers."""
    v, bound = np.random.default_rng(0).standard_normal(matrix.shape[0]), 1.0
    for _ in range(_POWERS):
        w = matrix @ (matrix.T @ v)
        bound = float(np.linalg.norm(w) / np.linalg.norm(v))
        v = w / np.linalg.norm(w)
    return 1.1 * bound
