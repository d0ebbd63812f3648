"""Weight fits with a tight divergence: generalized linear models by conjugate gradients."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch

from liftednet.penalties import SquaredFrobenius
from liftednet.problems import Subproblem, WeightFit, Weights
from liftednet.solution import Solution, Status

from .base import Solver, default_tolerance, judged
from .conjugate import Point, advance
from .dense_newton import dense_newton, is_small
from .weight_descent import WeightDescent, weight_descent

_EARLY = 5  # steps after which the curvature is measured anew: by then it is nearly the last one
_RENEWAL = 100  # and again; to restart the directions more often costs more than it brings
_PATIENCE = 100  # steps in which the violation must fall
_DRIFT = 1e-3  # fall of the violation at which the anchor follows
_HALT = 8  # steps without a fall after which it follows, too


@dataclass(frozen=True)
class GeneralizedLinear(Solver[WeightFit, Weights, None]):
    """Solves a weight fit with a smooth divergence by preconditioned conjugate gradients.

    The preconditioner is a ridge system with the samples weighted by their curvature, renewed a
    few times; the line search moves along the pre-activations, so that a step costs two products
    with X. Units that the activation does not couple are searched each by itself. Small fits that
    resist are finished by Newton steps.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-8 in float64, 1e-5 in float32.
        max_iterations: steps.
    """

    tolerance: float | None = None
    max_iterations: int = 2_000
    name: str = field(default="generalized-linear", init=False)

    def obstacle(self, problem: Subproblem[Any]) -> str | None:
        """Ask for a weight fit, a Lipschitz constant and a squared Frobenius penalty."""
        if not isinstance(problem, WeightFit):
            return "it solves weight fits alone"
        if problem.divergence.smoothness is None:
            return f"it needs a Lipschitz constant of {problem.divergence.activation!r}"
        if not isinstance(problem.penalty, SquaredFrobenius):
            return "it needs the penalty SquaredFrobenius"
        return None

    def solve(
        self, problem: WeightFit, start: Weights | None = None, cache: None = None
    ) -> Solution[Weights]:
        """Return the minimizer to the tolerance."""
        started = time.perf_counter()
        tolerance = self.tolerance or default_tolerance(problem.targets.dtype)
        descent = weight_descent(problem, start or problem.zeros())
        goal = tolerance * (float(problem.cross.abs().max()) or 1.0)
        at, steps = self._descend(descent, goal)
        unfinished = Status.ITERATION_LIMIT if steps == self.max_iterations else Status.STALLED
        if steps < self.max_iterations and is_small(problem):
            at, more = dense_newton(*descent.anchored(at), goal)
            steps += more
        value = problem.design.split(at.y)
        return judged(problem, value, steps, started, tolerance, self.name, unfinished)

    def _descend(self, descent: WeightDescent, goal: float) -> tuple[Point, int]:
        at, steps, best, since = descent.starting_point(), 0, torch.inf, 0
        last = float(descent.violation(at.gradient))
        while steps < self.max_iterations:
            violation = float(descent.violation(at.gradient))
            halted = (steps - since) % _HALT == _HALT - 1
            if halted or violation <= max(goal, _DRIFT * last):
                descent, at = descent.anchored(at)
                last = violation = float(descent.violation(at.gradient))
            if violation < 0.9 * best:
                best, since = violation, steps
            if violation <= goal or steps - since > _PATIENCE:
                break
            steps += 1
            at = advance(descent, at, steps)
            if steps == _EARLY or steps % _RENEWAL == 0:
                descent, at = descent.renewed(at)
        return at, steps
