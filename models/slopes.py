"""The slope of a leaky ReLU as a variable of the training problem.

Lifted Neural Networks, section 9, names this; with states and weights fixed it is one convex
problem in one number for every layer.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from liftednet.errors import DataError
from liftednet.lazy import cvxpy as cp
from liftednet.problems import Formulation, Measure, Subproblem
from liftednet.solution import Solution, Status
from liftednet.solvers import Solver

LEAST_SLOPE = 1e-4
_TOLERANCE = 1e-8


@dataclass(frozen=True, eq=False)
class SlopeFit:
    """min over alpha in [1e-4, 1] of lam (s / alpha + alpha t) / 2.

    What a tight divergence of a leaky ReLU (Lifted Neural Networks, eq. (8)) asks of its slope,
    with s the sum of squares of the negative states and t that of the negative pre-activations.

    Attributes:
        states: V, (samples, units).
        pre_activation: U, (samples, units).
        lam: the weight of the divergence, positive.
    """

    states: Tensor
    pre_activation: Tensor
    lam: float

    @cached_property
    def sums(self) -> tuple[float, float]:
        """(s, t) in float64."""
        pair = (self.states.double(), self.pre_activation.double())
        s, t = torch.stack([part.clamp(max=0).square().sum() for part in pair]).tolist()
        return s, t

    def refuse_bad_values(self) -> None:
        """Raise `DataError` where the sums of squares are not finite."""
        if not all(value < float("inf") for value in self.sums):
            raise DataError(f"the negative states and pre-activations sum to {self.sums}.")

    def refuse_bad_start(self, start: float) -> None:
        """Raise `DataError` where a slope is outside of (0, 1]."""
        if not 0 < start <= 1:
            raise DataError(f"a slope must be in (0, 1], got {start}.")

    def formulate(self) -> Formulation:
        """Return the problem in CVXPY."""
        slope = cp.Variable(pos=True)
        s, t = cp.Parameter(nonneg=True), cp.Parameter(nonneg=True)
        objective = cp.Minimize(self.lam / 2 * (s * cp.inv_pos(slope) + t * slope))
        problem = cp.Problem(objective, [slope >= LEAST_SLOPE, slope <= 1])
        formulation = Formulation(problem, {"s": s, "t": t}, {"slope": slope})
        self.fill(formulation)
        return formulation

    def fill(self, formulation: Formulation) -> None:
        """Put s and t into a formulation's parameters."""
        for name, value in zip(("s", "t"), self.sums, strict=True):
            formulation.parameters[name].value = value

    def read(self, formulation: Formulation) -> float:
        """Return alpha of a solved formulation."""
        value = formulation.variables["slope"].value
        assert value is not None  # read from a solved formulation alone
        return float(value)

    def signature(self) -> Hashable:
        """Return lam."""
        return SlopeFit, self.lam

    def measure(self, value: float) -> Measure:
        """Return the objective, and the projected gradient over its larger term."""
        s, t = self.sums
        objective = self.lam / 2 * (s / value + value * t)
        scale = max(s / value**2, t)
        if scale == 0:
            return Measure(objective, 0.0)
        moved = min(max(value - (t - s / value**2) / scale, LEAST_SLOPE), 1.0)
        return Measure(objective, abs(moved - value))


@dataclass(frozen=True)
class SlopeSolver(Solver[SlopeFit, float, None]):
    """Solves a slope fit in closed form: alpha = sqrt(s / t), inside its limits."""

    name: str = field(default="slope", init=False)

    def obstacle(self, problem: Subproblem[object]) -> str | None:
        """Ask for a slope fit."""
        return None if isinstance(problem, SlopeFit) else "it solves slope fits alone"

    def solve(
        self, problem: SlopeFit, start: float | None = None, cache: None = None
    ) -> Solution[float]:
        """Return the exact minimizer; a start stays where every slope is as good."""
        started = time.perf_counter()
        s, t = problem.sums
        slope = (s / t) ** 0.5 if t > 0 else (1.0 if s > 0 else start or 1.0)
        slope = min(max(slope, LEAST_SLOPE), 1.0)
        objective, residual = problem.measure(slope)
        seconds = time.perf_counter() - started
        return Solution(
            slope, objective, residual, 0, _TOLERANCE, Status.STALLED, seconds, self.name
        )
