"""Small CVXPY problems: the value of an expression, the nearest point of a domain."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from liftednet.errors import DataError, DeclarationError, LiftedError, SolverError
from liftednet.lazy import cvxpy as cp

_QUADRATIC = {"eps_abs": 1e-10, "eps_rel": 1e-10, "max_iter": 20_000, "polishing": False}
_ENDS = ("optimal", "infeasible", "unbounded")
_CONIC = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-11}


@contextmanager
def stating(what: str) -> Iterator[None]:
    """Tell what was being stated where CVXPY, or a function that a user declared, raises.

    Args:
        what: how the message begins, such as "the potential of ReLU()".

    Raises:
        DataError: a number cannot stand where the statement has it.
        DeclarationError: the statement is no convex problem to CVXPY, or it cannot be made.
    """
    try:
        yield
    except (LiftedError, ImportError, MemoryError):
        raise
    except Exception as error:  # whatever a user's function and CVXPY's rules may raise
        said = " ".join(str(error).split())
        if said.startswith("Parameter value must be"):
            raise DataError(f"{what}: a number does not fit the statement. {said}") from error
        raise DeclarationError(
            f"{what} cannot be stated in CVXPY; {type(error).__name__}: {said}"
        ) from error


def convex_constraints(
    what: str, declared: Callable[[Any], Sequence[cp.Constraint] | cp.Constraint], at: cp.Expression
) -> list[cp.Constraint]:
    """Return the constraints that a user's function declares of an expression.

    Args:
        what: how a message begins.
        declared: returns constraints, or one.
        at: what it is given.

    Raises:
        DeclarationError: one is no constraint, or not convex to CVXPY.
    """
    with stating(what):
        found = declared(at)
    constraints = list(found) if isinstance(found, Sequence) else [found]
    for one in constraints:
        if not isinstance(one, cp.Constraint):
            raise DeclarationError(f"{what} must return constraints, got {one!r}.")
        if not one.is_dcp():
            raise DeclarationError(f"the constraint {one} is not convex to CVXPY.")
    return constraints


def solve_precisely(problem: cp.Problem) -> None:
    """Solve a quadratic program by OSQP, any other problem, and what OSQP leaves, by CLARABEL."""
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # the caller judges
        if problem.is_qp() and not problem.is_lp():
            with suppress(cp.error.SolverError):
                problem.solve(solver=cp.OSQP, warm_start=False, **_QUADRATIC)
                if problem.status in _ENDS:
                    return
        problem.solve(solver=cp.CLARABEL, **_CONIC)


def nearest(
    points: np.ndarray[Any, np.dtype[np.float64]],
    domain: Callable[[cp.Expression], list[cp.Constraint]],
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the nearest point of a domain to each row; both are (samples, units).

    Raises:
        DeclarationError: the domain is not convex to CVXPY.
        SolverError: CVXPY finds no point of it.
    """
    variable = cp.Variable(points.shape)
    distance = cp.sum_squares(variable - points)
    with stating("the nearest point of a domain"):
        problem = cp.Problem(cp.Minimize(distance), domain(variable))
        solve_precisely(problem)
    if variable.value is None:
        raise SolverError(f"CVXPY finds no point of a domain: it is {problem.status}.")
    return np.asarray(variable.value, dtype=np.float64)


def evaluate(expression: cp.Expression) -> float:
    """Return the value of a scalar expression, minimized over the variables inside it."""
    return evaluate_all([expression])[0]


def evaluate_all(expressions: list[cp.Expression]) -> list[float]:
    """Return the values of scalar expressions, minimized over the variables inside them."""
    cast = [cp.Expression.cast_to_const(expression) for expression in expressions]
    total = cp.sum(cp.hstack(cast))
    if total.variables():
        solve_precisely(cp.Problem(cp.Minimize(total)))
    values: list[Any] = [expression.value for expression in cast]
    return [math.nan if x is None else float(np.asarray(x).reshape(())) for x in values]
