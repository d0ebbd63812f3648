"""Weight fits with a tight divergence: generalized linear models by majorization."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from liftednet.penalties import SquaredFrobenius
from liftednet.problems import Subproblem, WeightFit, Weights
from liftednet.solution import Solution
from .base import Solver, default_tolerance, judged
from .ridge import Factor, factor


@dataclass(frozen=True)
class GeneralizedLinear(Solver[WeightFit, Weights, Factor]):
    """Solves a weight fit with a smooth divergence by accelerated majorization.

    Each step is a ridge regression on the working target u - phi(u) / L + v / L, with one
    Cholesky factor for all steps; extrapolated, and restarted when the objective rises.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-8 in float64, 1e-5 in float32.
        max_iterations: passes over the samples.
    """

    tolerance: float | None = None
    max_iterations: int = 2_000
    name: str = field(default="generalized-linear", init=False)

    def obstacle(self, problem: Subproblem) -> str | None:
        """Ask for a weight fit, a Lipschitz constant and a squared Frobenius penalty."""
        if not isinstance(problem, WeightFit):
            return "it solves weight fits alone"
        if problem.divergence.smoothness is None:
            return f"it needs a Lipschitz constant of {problem.divergence.activation!r}"
        if not isinstance(problem.penalty, SquaredFrobenius):
            return "it needs the penalty SquaredFrobenius"
        return None

    def prepare(self, problem: WeightFit, previous: Factor | None = None) -> Factor:
        """Return the factor of the majorizing ridge system, the previous one while it holds."""
        smoothness, penalty = problem.divergence.smoothness, problem.penalty
        assert smoothness is not None and isinstance(penalty, SquaredFrobenius)
        return factor(problem.design, problem.lam * smoothness, penalty.rho, previous)

    def solve(
        self, problem: WeightFit, start: Weights | None = None, cache: Factor | None = None
    ) -> Solution[Weights]:
        """Return the minimizer to the tolerance."""
        started = time.perf_counter()
        cache = self.prepare(problem, cache)
        tolerance = self.tolerance or default_tolerance(problem.targets.dtype)
        value = (start or problem.zeros()).stacked().double()
        ahead, previous, momentum = value, value, 1.0
        steps = 0
        scale = problem.lam * float(problem.cross.abs().max()) or 1.0
        for steps in range(1, self.max_iterations + 1):
            gradient = _gradient(problem, ahead)
            if float(gradient.abs().max()) <= 0.5 * tolerance * scale:
                value = ahead
                break
            value = ahead - cache.solve(gradient)
            if float((gradient * (value - previous)).sum()) > 0:
                momentum = 1.0
            following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
            ahead = value + (momentum - 1) / following * (value - previous)
            previous, momentum = value, following
        weights = problem.design.split(value)
        return judged(problem, weights, steps, started, tolerance, self.name)


def _gradient(problem: WeightFit, stacked: Tensor) -> Tensor:
    """Return the gradient of the whole objective at [W; b], float64."""
    features = problem.design.features
    slope = torch.zeros_like(stacked)
    for _, chunk in problem.design.rows():
        slope += chunk.T @ problem.divergence.link_gradient(chunk @ stacked)
    gradient = problem.lam * (slope - problem.cross)
    weight = stacked[:features]
    gradient[:features] = problem.penalty.stationarity(weight, gradient[:features], 1.0)
    return gradient
