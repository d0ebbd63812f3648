"""A solver is two verbs: prepare what problems share, and solve one."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import torch

from liftednet.problems import Fit
from liftednet.samples import row_chunks
from liftednet.solution import Solution, Status

_TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-5}
_ENTRIES_ON_GPU = 1 << 26  # whose temporaries fit in its memory, in few launches


Problem = TypeVar("Problem", bound=Fit[Any])
Value = TypeVar("Value")
Cache = TypeVar("Cache")


def default_tolerance(dtype: torch.dtype) -> float:
    """Return the KKT residual that is asked for by default: 1e-8 in float64, 1e-5 in float32."""
    return _TOLERANCES[dtype]


class Solver(ABC, Generic[Problem, Value, Cache]):
    """Solves one kind of subproblem.

    Attributes:
        name: what users call it.

    Example:
        >>> import torch
        >>> from liftednet import StateFit
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> from liftednet.solvers import Ridge, Solver
        >>> isinstance(Ridge(), Solver), Ridge().obstacle(StateFit(joint(ReLU()), torch.ones(1, 2)))
        (True, 'it solves weight fits alone')
    """

    name: str

    @abstractmethod
    def obstacle(self, problem: Fit[Any]) -> str | None:
        """Return what keeps this solver from serving the problem, or None."""

    def suits(self, problem: Problem) -> bool:
        """Say whether it is the fastest for a problem that it serves, as benchmarks have it."""
        return True

    def prepare(self, problem: Problem, previous: Cache | None = None) -> Cache | None:
        """Return what problems of this structure share: a compiled problem, a factor, or nothing.

        `previous` is returned as it is where it still serves, so that a factor outlives changes
        that it does not depend on.
        """
        return None

    @abstractmethod
    def solve(
        self, problem: Problem, start: Value | None = None, cache: Cache | None = None
    ) -> Solution[Value]:
        """Return the solution, from a start and a cache where they are given.

        Raises:
            SolverError: nothing usable was reached; it carries the last good state.
        """

    def value(self, problem: Problem, cache: Cache | None = None) -> Value:
        """Return what `solve` does, where it is one step of many and nobody asks how good it is.

        Raises:
            SolverError: as `solve`.
        """
        return self.solve(problem, None, cache).value


def judged(
    problem: Fit[Any],
    value: Value,
    iterations: int,
    started: float,
    tolerance: float,
    solver: str,
    unfinished: Status = Status.ITERATION_LIMIT,
) -> Solution[Value]:
    """Return the solution as the problem judges it.

    Raises:
        SolverError: the objective at the value is not finite.
    """
    seconds = time.perf_counter() - started
    objective, residual = problem.measure(value)
    solution = Solution(
        value, objective, residual, iterations, tolerance, unfinished, seconds, solver
    )
    return solution.require_usable()


def device_chunks(samples: int, columns: int, device: torch.device) -> Iterator[slice]:
    """Yield slices of rows with about 130,000 entries each, or 67 million on a GPU."""
    if device.type == "cuda":
        return row_chunks(samples, columns, _ENTRIES_ON_GPU)
    return row_chunks(samples, columns)
