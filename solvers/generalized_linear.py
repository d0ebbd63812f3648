"""Weight fits with a tight divergence: generalized linear models by conjugate gradients."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from liftednet.penalties import SquaredFrobenius
from liftednet.problems import Design, Subproblem, WeightFit, Weights
from liftednet.solution import Solution, Status

from .base import Solver, default_tolerance, judged
from .conjugate import Point, advance, starting_point
from .preconditioner import Preconditioner, preconditioner, rows_used

_EARLY = (4, 12)  # steps after which the curvature is measured anew, and then regularly
_PATIENCE = 100  # steps in which the violation must fall
_LARGE = 1_000_000  # entries of X in float64 from which float32 leads the way


@dataclass(frozen=True)
class WeightDescent:
    """min over Y = [W; b] of (pi(W) - <lam X'V, Y>) / lam + Phi*(X W + b), lam divided out.

    Attributes:
        problem: the weight fit.
        cross: [X, 1]'V + 2 rho W_0 / lam, (inputs + 1, units).
        pull_back: 2 rho / lam on the rows of W and 0 on that of b, (inputs + 1, 1).
        system: the preconditioner.
    """

    problem: WeightFit
    cross: Tensor
    pull_back: Tensor
    system: Preconditioner

    def inner(self, a: Tensor, b: Tensor) -> Tensor:
        """Return <a, b> per unit, (1, units), or in all where the activation couples units."""
        columns = (a * b).sum(0, keepdim=True)
        coupled = not self.problem.divergence.activation.per_unit
        return columns.sum(1, keepdim=True) if coupled else columns

    def forward(self, u: Tensor) -> Tensor:
        """Return phi(u)."""
        return self.problem.divergence.link_gradient(u)

    def lift(self, y: Tensor) -> Tensor:
        """Return X W + b."""
        weights = self.problem.design.split(y)
        u = (weights.matrix.T @ self.problem.design.inputs.T).T.contiguous()  # faster than X W
        return u if weights.bias is None else u.add_(weights.bias)

    pre_activation = lift

    def quadratic_gradient(self, y: Tensor) -> Tensor:
        """Return 2 rho (W - W_0) / lam - [X, 1]'V."""
        return self.curved(y) - self.cross

    def curved(self, d: Tensor) -> Tensor:
        """Return 2 rho / lam times the rows of W."""
        return self.pull_back * d

    def pull(self, v: Tensor) -> Tensor:
        """Return [X, 1]'v."""
        moment = (v.T @ self.problem.design.inputs).T  # several times as fast as X'v
        return torch.cat([moment, v.sum(0, keepdim=True)]) if self.problem.design.bias else moment

    def precondition(self, gradient: Tensor) -> Tensor:
        """Return the solution of the ridge system with the gradient on its right."""
        return self.system.solve(gradient)

    def violation(self, gradient: Tensor) -> Tensor:
        """Return the largest entry of the gradient."""
        return gradient.abs().max()

    def renewed(self, at: Point) -> tuple[WeightDescent, Point]:
        """Return the descent with the curvature at a point, and the point to go on from."""
        system = preconditioner(self.problem, at.u, self.pull_back)
        renewed = replace(self, system=system)
        return renewed, starting_point(renewed, at.y)


@dataclass(frozen=True)
class GeneralizedLinear(Solver[WeightFit, Weights, None]):
    """Solves a weight fit with a smooth divergence by preconditioned conjugate gradients.

    The preconditioner is a ridge system with the samples weighted by their curvature, renewed a
    few times; the line search moves along the pre-activations, so that a step costs two products
    with X. Units that the activation does not couple are searched each by itself.

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

    def prepare(self, problem: WeightFit, previous: None = None) -> None:
        """Return nothing: the curvature depends on the weights."""

    def solve(
        self, problem: WeightFit, start: Weights | None = None, cache: None = None
    ) -> Solution[Weights]:
        """Return the minimizer to the tolerance."""
        started = time.perf_counter()
        tolerance = self.tolerance or default_tolerance(problem.targets.dtype)
        begin = _rough(problem, start) if _is_large(problem) else start or problem.zeros()
        descent = weight_descent(problem, begin)
        goal = tolerance * (float(problem.cross.abs().max()) or 1.0)
        at, steps = self._descend(descent, begin.stacked(), goal)
        unfinished = Status.ITERATION_LIMIT if steps == self.max_iterations else Status.STALLED
        value = problem.design.split(at.y)
        return judged(problem, value, steps, started, tolerance, self.name, unfinished)

    def _descend(self, descent: WeightDescent, start: Tensor, goal: float) -> tuple[Point, int]:
        at, steps, best, since = starting_point(descent, start), 0, torch.inf, 0
        interval = _interval(descent.problem)
        while steps < self.max_iterations:
            violation = float(descent.violation(at.gradient))
            if violation < 0.9 * best:
                best, since = violation, steps
            if violation <= goal or steps - since > _PATIENCE:
                break
            steps += 1
            at = advance(descent, at, steps)
            if steps in _EARLY or steps % interval == 0:
                descent, at = descent.renewed(at)
        return at, steps


def _interval(problem: WeightFit) -> int:
    """Return after how many steps a new preconditioner has paid for itself."""
    features, samples = problem.design.features + 1, problem.design.samples
    products = 4 * samples * features * problem.units
    return 8 + 8 * rows_used(samples, features) * features**2 // products


def _is_large(problem: WeightFit) -> bool:
    inputs = problem.design.inputs
    return inputs.dtype is torch.float64 and inputs.numel() > _LARGE


def _rough(problem: WeightFit, start: Weights | None) -> Weights:
    """Return the solution that float32 reaches, at less than half of the time."""
    design = Design(problem.design.inputs.float(), problem.design.bias)
    twin = replace(problem, design=design, targets=problem.targets.float())
    begin = None if start is None else start.to(design.inputs)
    return GeneralizedLinear().solve(twin, begin).value.to(problem.design.inputs)


def weight_descent(problem: WeightFit, start: Weights) -> WeightDescent:
    """Return the descent in the precision of X, preconditioned at the start."""
    assert isinstance(problem.penalty, SquaredFrobenius)  # asked for by obstacle
    like, features = problem.design.inputs, problem.design.features
    pull_back = like.new_zeros(features + problem.design.bias, 1)
    pull_back[:features] = 2 * problem.penalty.rho / problem.lam
    cross = problem.cross.clone()
    cross[:features] += problem.penalty.linear_term(cross[:features]) / problem.lam
    system = preconditioner(problem, start.apply(like), pull_back)
    return WeightDescent(problem, cross.to(like), pull_back, system)
