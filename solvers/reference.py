"""CVXPY as a solver: any subproblem as it is stated, at small sizes, to certify the fast ones."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from liftednet.errors import SolverError
from liftednet.lazy import cvxpy as cp
from liftednet.problems import Fit, Formulation
from liftednet.solution import Solution, Status

from .base import Solver

_PRECISE: dict[str, dict[str, Any]] = {
    "OSQP": {
        **dict.fromkeys(("eps_abs", "eps_rel", "eps_prim_inf", "eps_dual_inf"), 1e-10),
        "max_iter": 20_000,
        "polishing": False,  # which prints whatever it is told, and adds digits past the tenth
    },
    "CLARABEL": {"tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11},
    "SCS": {"eps_abs": 1e-9, "eps_rel": 1e-9, "max_iters": 200_000},
}


@dataclass(frozen=True)
class Compiled:
    """A formulation and the signature of the problems that it serves."""

    formulation: Formulation
    signature: Any


@dataclass(frozen=True)
class Reference(Solver[Fit[Any], Any, Compiled]):
    """States the problem in CVXPY, compiles it once, and solves it for each new data.

    Attributes:
        backend: OSQP, CLARABEL, SCS or another installed CVXPY solver; None takes OSQP for
            quadratic programs and CLARABEL for the rest, and where these fail CLARABEL and SCS.
        options: passed to that solver; None asks for high precision.
        tolerance: the KKT residual that counts as solved.
    """

    backend: str | None = None
    options: Mapping[str, Any] | None = None
    tolerance: float = 1e-4
    name: str = field(default="reference", init=False)

    def obstacle(self, problem: Fit[Any]) -> str | None:
        """Return None: whatever can be stated can be solved."""
        return None

    def prepare(self, problem: Fit[Any], previous: Compiled | None = None) -> Compiled:
        """Return the problem's formulation, the previous one where only the data changed.

        Raises:
            DeclarationError: the activation lacks what the formulation needs.
        """
        if previous is not None and previous.signature == problem.signature():
            return previous
        return Compiled(problem.formulate(), problem.signature())

    def solve(
        self, problem: Fit[Any], start: Any = None, cache: Compiled | None = None
    ) -> Solution[Any]:
        """Return CVXPY's solution; a start is not used.

        Raises:
            SolverError: CVXPY's status is not optimal; it carries what was reached.
        """
        cache = self.prepare(problem, cache)
        problem.fill(cache.formulation)
        started = time.perf_counter()
        failure = self._run(cache.formulation.problem)
        seconds = time.perf_counter() - started
        return self._judge(problem, cache.formulation, seconds, failure)

    def _run(self, statement: cp.Problem) -> str | None:
        """Solve by the first backend that can, and return what went wrong, if anything."""
        automatic = ("OSQP", "CLARABEL") if statement.is_qp() else ("CLARABEL", "SCS")
        failure = None
        for backend in (self.backend,) if self.backend else automatic:
            failure = self._attempt(statement, backend)
            if failure is None:
                break
        return failure

    def _attempt(self, statement: cp.Problem, backend: str) -> str | None:
        options = _PRECISE.get(backend, {}) if self.options is None else dict(self.options)
        try:
            with warnings.catch_warnings():
                # the problem measures how accurate a value is, whatever the backend believes
                warnings.filterwarnings("ignore", message="Solution may be inaccurate")
                # What a backend keeps of an earlier solution would be lost with an interrupt.
                statement.solve(solver=backend, **{"warm_start": False, **options})
        except cp.error.SolverError as error:
            return str(error)
        good = (cp.OPTIMAL, cp.OPTIMAL_INACCURATE)
        return None if statement.status in good else f"{backend} reports {statement.status}"

    def _judge(
        self,
        problem: Fit[Any],
        formulation: Formulation,
        seconds: float,
        failure: str | None,
    ) -> Solution[Any]:
        statement = formulation.problem
        if any(variable.value is None for variable in formulation.variables.values()):
            raise SolverError(f"the reference solver has no solution: {failure}.")
        value = problem.read(formulation)
        objective, residual = problem.measure(value)
        if np.isnan(residual):
            residual = dual_residual(statement)
        steps = int(getattr(statement.solver_stats, "num_iters", 0) or 0)
        tolerance, unfinished = self.tolerance, Status.STALLED
        if failure is not None:
            tolerance, unfinished = -np.inf, Status.FAILED
        solution = Solution(
            value, objective, residual, steps, tolerance, unfinished, seconds, self.name
        )
        if failure is not None:
            raise SolverError(f"the reference solver failed: {failure}.", solution)
        return solution


def dual_residual(statement: cp.Problem) -> float:
    """Return CVXPY's own certificate: violation and complementarity, relative to the objective.

    For problems that are not smooth in the pre-activations, where stationarity cannot be read
    off a gradient.
    """
    worst = 0.0
    for constraint in statement.constraints:
        worst = max(worst, float(np.max(constraint.violation(), initial=0.0)))
        if isinstance(constraint, cp.constraints.Inequality):
            slack, dual = constraint.expr.value, constraint.dual_value
            worst = max(worst, float(np.max(np.abs(slack * dual), initial=0.0)))
    return worst / (1 + abs(float(statement.value)))
