"""A solver is two verbs: prepare what problems share, and minimize one; problems judge."""

from __future__ import annotations

import math
import time
from typing import Any, ClassVar, Generic, TypeVar, cast

import torch

from liftednet.problems import (
    BlockFit,
    ConstrainedFit,
    Fit,
    OutputFit,
    StateFit,
    StatesOverTime,
    WeightFit,
)
from liftednet.problems.fit import Measure
from liftednet.solution import Solution, Status
from liftednet.validation import require_count, require_positive

_TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-5}
_PLURAL: dict[type[Fit[Any]], str] = {
    WeightFit: "weight fits",
    StateFit: "state fits",
    OutputFit: "output fits",
    StatesOverTime: "states over time",
    BlockFit: "block fits",
    ConstrainedFit: "weight fits under constraints",
}


Problem = TypeVar("Problem", bound=Fit[Any])
Value = TypeVar("Value")
Cache = TypeVar("Cache")


def default_tolerance(dtype: torch.dtype) -> float:
    """Return the KKT residual that is asked for by default: 1e-8 in float64, 1e-5 in float32."""
    return _TOLERANCES[dtype]


class Solver(Generic[Problem, Value, Cache]):
    """Solves one kind of subproblem.

    Attributes:
        name: what users call it.
        kind: the fits that it solves.
        tolerance: relative KKT residual to reach; None for `default_tolerance`.
        max_iterations: steps, where there are steps.

    Example:
        >>> import torch
        >>> from liftednet.problems import StateFit
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> from liftednet.solvers import Ridge, Solver
        >>> isinstance(Ridge(), Solver), Ridge().obstacle(StateFit(joint(ReLU()), torch.ones(1, 2)))
        (True, 'it solves weight fits alone')
    """

    name: str
    kind: ClassVar[Any] = Fit
    tolerance: float | None = None
    max_iterations: float = math.inf

    def __post_init__(self) -> None:
        """Refuse a tolerance or a number of steps that cannot be one."""
        if self.tolerance is not None:
            require_positive("tolerance", self.tolerance)
        if self.max_iterations != math.inf:
            require_count("max_iterations", cast(int, self.max_iterations), 1)

    def obstacle(self, problem: Fit[Any]) -> str | None:
        """Return what keeps this solver from serving the problem, or None."""
        if isinstance(problem, self.kind):
            return self.refusal(problem)
        return f"it solves {_PLURAL[self.kind]} alone"

    def refusal(self, problem: Problem) -> str | None:
        """Return what keeps this solver from serving a problem of its kind, or None."""
        return None

    def suits(self, problem: Problem) -> bool:
        """Say whether it is the fastest for a problem that it serves, as benchmarks have it."""
        return True

    def repeated(self, problem: Problem) -> bool:
        """Say whether it is to `solve`, which may have met problems alike.

        Trainings do not ask: they would change solvers on their way, at no certain step.
        """
        return self.suits(problem)

    def prepare(self, problem: Problem, previous: Cache | None = None) -> Cache | None:
        """Return what problems of this structure share: a compiled problem, a factor, or nothing.

        `previous` is returned as it is where it still serves, so that a factor outlives changes
        that it does not depend on.
        """
        return None

    def minimize(
        self, problem: Problem, start: Value | None, cache: Cache | None, tolerance: float
    ) -> tuple[Value, int]:
        """Return the minimizer to a tolerance, and the steps taken (0 for a closed form).

        Raises:
            SolverError: nothing usable was reached; it carries the last good state.
        """
        raise NotImplementedError

    def solve(
        self, problem: Problem, start: Value | None = None, cache: Cache | None = None
    ) -> Solution[Value]:
        """Return the solution as the problem judges it, from a start and a cache if given.

        Raises:
            SolverError: nothing usable was reached; it carries the last good state.
        """
        started = time.perf_counter()
        tolerance = self.tolerance or default_tolerance(problem.dtype)
        value, steps = self.minimize(problem, start, self.prepare(problem, cache), tolerance)
        return self.judged(problem, value, steps, started, tolerance)

    def measured(self, problem: Problem, value: Value) -> Measure:
        """Return what `measure` of the problem does, maybe in less time."""
        return problem.measure(value)

    def judged(
        self, problem: Problem, value: Value, steps: int, started: float, tolerance: float
    ) -> Solution[Value]:
        """Return the solution as the problem judges it.

        Raises:
            SolverError: the objective at the value is not finite.
        """
        seconds = time.perf_counter() - started
        objective, residual = self.measured(problem, value)
        unfinished = Status.ITERATION_LIMIT if steps >= self.max_iterations else Status.STALLED
        return Solution(
            value, objective, residual, steps, tolerance, unfinished, seconds, self.name
        ).require_usable()

    def value(self, problem: Problem, cache: Cache | None = None) -> Value:
        """Return what `solve` does, where it is one step of many and nobody asks how good it is.

        Raises:
            SolverError: as `solve`.
        """
        return self.solve(problem, None, cache).value
