"""CVXPY as a solver: any subproblem as it is stated, at small sizes, to certify the fast ones."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from liftednet import processes
from liftednet.errors import DeclarationError, SolverError
from liftednet.evaluation import stating
from liftednet.lazy import cvxpy as cp
from liftednet.problems import Fit, Formulation
from liftednet.solution import Solution, Status

from .base import Solver, default_tolerance

_PRECISE: dict[str, dict[str, Any]] = {
    "OSQP": {
        **dict.fromkeys(("eps_abs", "eps_rel", "eps_prim_inf", "eps_dual_inf"), 1e-10),
        "max_iter": 20_000,
        "polishing": False,  # which prints whatever it is told, and adds digits past the tenth
    },
    "CLARABEL": {"tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11},
    "SCS": {"eps_abs": 1e-9, "eps_rel": 1e-9, "max_iters": 20_000},
}
# Where steps to the edge of exponential cones fail, shorter ones mostly do not.
_CAREFUL = {"max_step_fraction": 0.9, "tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}
_GOAL = 1e-6  # of a residual; with 1e-4 a loss of 0.8 of its size was left at condition 3e5
_AT_REST = 1e-10  # a residual that no backend betters


@dataclass(frozen=True)
class Reference(Solver[Fit[Any], Any, None]):
    """States the problem in CVXPY, and has it solved there.

    A start that is solved to 1e-10 is returned as it is, without CVXPY, and a start that is better
    than CVXPY's value in objective and residual is kept. CVXPY itself takes no start.

    Attributes:
        backend: OSQP, CLARABEL, SCS or another installed CVXPY solver; None takes OSQP for
            quadratic programs and CLARABEL for the rest, and where these fail CLARABEL and SCS.
        options: passed to that solver; None asks for high precision.
        tolerance: the KKT residual that counts as solved; None for 1e-6 in float64, which not every
            backend reaches, and 1e-5 in float32. What it may cost in the objective grows with its
            square times the condition number.

    Example:
        >>> import torch
        >>> from liftednet.problems import StateFit
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> from liftednet.solvers import Reference, solve
        >>> fit = StateFit(joint(ReLU()), torch.tensor([[2.0, -2.0]], dtype=torch.float64))
        >>> solve(fit, Reference(backend="CLARABEL")).value.round(decimals=6).abs()
        tensor([[2., 0.]], dtype=torch.float64)
    """

    backend: str | None = None
    options: Mapping[str, Any] | None = None
    tolerance: float | None = None
    name: str = field(default="reference", init=False)

    def obstacle(self, problem: Fit[Any]) -> str | None:
        """Return None: whatever can be stated can be solved."""
        return None

    def _stated(self, problem: Fit[Any]) -> Formulation:
        """Return the problem's formulation.

        Raises:
            DeclarationError: the activation lacks what the formulation needs, or what was declared
                is no convex problem to CVXPY, or other processes have some of its samples.
        """
        if processes.size() > 1:
            raise DeclarationError(
                f"this {type(problem).__name__} needs CVXPY, which needs all samples in one process"
                f", and {processes.size()} share them: take penalties and activations that a "
                "solver of this library serves."
            )
        with stating(f"this {type(problem).__name__}"):
            return problem.formulate()

    def solve(self, problem: Fit[Any], start: Any = None, cache: None = None) -> Solution[Any]:
        """Return CVXPY's solution, or the start where that is at least as good.

        Raises:
            DeclarationError: there is no such backend, it does not take the options, or what was
                declared is no convex problem to CVXPY.
            SolverError: CVXPY's status is not optimal; it carries what was reached.
        """
        began = None if start is None else self._of_start(problem, start)
        if began is not None and began.residual <= _AT_REST:
            return began
        formulation, started = self._stated(problem), time.perf_counter()
        failure = self._run(problem, formulation.problem)
        seconds = time.perf_counter() - started
        found = self._judge(problem, formulation, seconds, failure)
        better = began is not None and began.residual < found.residual  # NaN where it has none
        if began is None or not better or began.objective > found.objective:
            return found
        return replace(began, iterations=found.iterations, seconds=seconds)

    def value(self, problem: Fit[Any], cache: None = None) -> Any:
        """Return CVXPY's solution, and leave out the certificate, which is a problem of its own."""
        formulation = self._stated(problem)
        failure = self._run(problem, formulation.problem)
        if failure is not None:
            return self._judge(problem, formulation, 0.0, failure).value
        return problem.read(formulation)

    def _of_start(self, problem: Fit[Any], start: Any) -> Solution[Any]:
        """Return a start as a solution, as the problem judges it."""
        objective, residual = problem.measure(start)
        if not np.isfinite(objective):
            residual = np.inf
        goal = self._goal(problem)
        return Solution(start, objective, residual, 0, goal, Status.STALLED, 0.0, self.name)

    def _goal(self, problem: Fit[Any]) -> float:
        """Return the tolerance for a problem."""
        if self.tolerance is not None:
            return self.tolerance
        return max(_GOAL, default_tolerance(problem.like().dtype))

    def _run(self, problem: Fit[Any], statement: cp.Problem) -> str | None:
        """Solve by the first backend that can, and return what went wrong, if anything."""
        if self.backend and self.backend not in cp.installed_solvers():
            raise DeclarationError(
                f"there is no CVXPY solver {self.backend!r} here; there are "
                f"{', '.join(cp.installed_solvers())}."
            )
        automatic = ("OSQP", "CLARABEL") if statement.is_qp() else ("CLARABEL", "SCS")
        attempts, failure = list[tuple[str, Mapping[str, Any]]](), None
        for backend in (self.backend,) if self.backend else automatic:
            precise = _PRECISE.get(backend, {}) if self.options is None else self.options
            careful = self.options is None and backend == "CLARABEL"
            attempts += [(backend, precise), *([(backend, _CAREFUL)] if careful else [])]
        for backend, options in attempts:
            with stating(f"this {type(problem).__name__}"):
                failure = _attempt(statement, backend, options)
            if failure is None:
                break
        return failure

    def _judge(
        self, problem: Fit[Any], formulation: Formulation, seconds: float, failure: str | None
    ) -> Solution[Any]:
        statement = formulation.problem
        if any(variable.value is None for variable in formulation.variables.values()):
            said = str(failure)
            if statement.status in (cp.INFEASIBLE, cp.INFEASIBLE_INACCURATE):
                said += ", that is, nothing meets all constraints"
            raise SolverError(f"the reference solver has no solution: {said.rstrip('.')}.")
        steps = int(getattr(statement.solver_stats, "num_iters", 0) or 0)
        value = problem.read(formulation)
        duals = () if failure else problem.read_duals(formulation)
        judged = problem.measure(value) if failure else problem.measure_with(value, duals)
        objective, residual = judged
        if np.isnan(residual):
            known = failure is None and np.isfinite(objective)
            residual = moreau_residual(formulation, objective) if known else np.inf
        tolerance, unfinished = self._goal(problem), Status.STALLED
        if failure is not None:
            tolerance, unfinished = -np.inf, Status.FAILED
        solution = Solution(
            value, objective, residual, steps, tolerance, unfinished, seconds, self.name, duals
        )
        if failure is not None:
            raise SolverError(f"the reference solver failed: {failure}.", solution)
        return solution


def _attempt(statement: cp.Problem, backend: str, options: Mapping[str, Any]) -> str | None:
    """Solve by a backend, and return what went wrong, if anything."""
    try:
        with warnings.catch_warnings():
            # the problem measures how accurate a value is, whatever the backend believes
            warnings.filterwarnings("ignore", message="Solution may be inaccurate")
            # What a backend keeps of an earlier solution would be lost with an interrupt.
            statement.solve(solver=backend, **{"warm_start": False, **options})
    except cp.error.SolverError as error:
        return str(error)
    except (TypeError, ValueError) as error:  # the second of SCS before 3.3
        raise DeclarationError(
            f"{backend} does not take the options {options}: {error}."
        ) from error
    good = (cp.OPTIMAL, cp.OPTIMAL_INACCURATE)
    return None if statement.status in good else f"{backend} reports {statement.status}"


def moreau_residual(formulation: Formulation, objective: float) -> float:
    """Return how far v is from stationary, relative to its largest entry, or to 1.

    It is where a proximal step leads, argmin over w of F(w) + s |w - v|^2 / 2, less v: zero exactly
    where v minimizes F (Moreau, 1965), whether or not F has gradients or its parts have proxes.
    With s = (1 + |F(v)|) / (1 + |v|^2) a residual r means that F could fall by about r^2 / 2 of
    itself. What is left of violated constraints counts, too.

    Args:
        formulation: solved.
        objective: F at the values in their domain, off which CVXPY's own may be by rounding.
    """
    statement, variables = formulation.problem, formulation.variables.values()
    at = [np.array(variable.value) for variable in variables]
    violations = [np.max(each.violation(), initial=0.0) for each in statement.constraints]
    told = float(statement.value)
    size = abs(told if np.isfinite(told) else objective)
    s = (1 + size) / (1 + sum(float(np.sum(v**2)) for v in at))
    pull = sum(cp.sum_squares(x - v) for x, v in zip(variables, at, strict=True))
    step = cp.Problem(cp.Minimize(statement.objective.expr + s / 2 * pull), statement.constraints)
    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # a residual tells
            step.solve(solver=cp.CLARABEL, **_PRECISE["CLARABEL"])
    except cp.error.SolverError:
        return np.inf
    if any(variable.value is None for variable in variables):
        return np.inf
    moved = [np.max(np.abs(x.value - v)) for x, v in zip(variables, at, strict=True)]
    size = max(1.0, max(np.max(np.abs(v)) for v in at))
    return float(max(moved + violations) / size)
