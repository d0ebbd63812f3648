"""Which solver serves a problem: one table, read from the top."""

from __future__ import annotations

from typing import Any

from liftednet.errors import DeclarationError
from liftednet.problems import Subproblem
from liftednet.solution import Solution, Status

from .base import Solver
from .dual import Dual
from .generalized_linear import GeneralizedLinear
from .kernels import FusedClosedForm, FusedRedBlack, FusedSimplex, FusedStates
from .newton_over_time import NewtonOverTime
from .newton_states import NewtonStates
from .output import ClosedForm, SimplexDual
from .over_time import Cyclic, RedBlack
from .proximal import Proximal
from .proximal_weights import ProximalWeights
from .ridge import Ridge

AnySolver = Solver[Any, Any, Any]

_FAST: tuple[AnySolver, ...] = (
    FusedSimplex(),
    FusedClosedForm(),
    FusedStates(),
    FusedRedBlack(),
    Ridge(),
    GeneralizedLinear(),
    ProximalWeights(),
    Dual(),
    NewtonStates(),
    Proximal(),
    ClosedForm(),
    SimplexDual(),
    NewtonOverTime(),
    RedBlack(),
    Cyclic(),
)


def _reference() -> AnySolver:
    from .reference import Reference  # CVXPY, only where it is asked for

    return Reference()


def solver_names() -> tuple[str, ...]:
    """Return the names that `solve` and the models take, besides "auto"."""
    return (*(solver.name for solver in _FAST), "reference")


def named(name: str) -> AnySolver:
    """Return a solver by its name.

    Raises:
        DeclarationError: there is no solver of that name.
    """
    for solver in _FAST:
        if solver.name == name:
            return solver
    if name == "reference":
        return _reference()
    raise DeclarationError(
        f"there is no solver {name!r}; there are {', '.join(solver_names())} and 'auto'."
    )


def _serving(problem: Subproblem[Any]) -> list[AnySolver]:
    return [fast for fast in _FAST if fast.obstacle(problem) is None]


def _best(problem: Subproblem[Any], serving: list[AnySolver]) -> AnySolver:
    """Return the first that suits the problem, else the first, else the reference."""
    best = [fast for fast in serving if fast.suits(problem)]
    return next(iter(best or serving), None) or _reference()


def choose(problem: Subproblem[Any], solver: str | AnySolver = "auto") -> AnySolver:
    """Return the solver that suits a problem best, or the one that is asked for.

    Raises:
        DeclarationError: the solver that is asked for cannot serve the problem.
    """
    if solver == "auto":
        return _best(problem, _serving(problem))
    chosen = named(solver) if isinstance(solver, str) else solver
    if not isinstance(chosen, Solver):
        raise DeclarationError(
            f"solver must be 'auto', a solver's name or a Solver object, got {solver!r}."
        )
    obstacle = chosen.obstacle(problem)
    if obstacle is not None:
        raise DeclarationError(
            f"solver {chosen.name!r} cannot serve this {type(problem).__name__}: {obstacle}."
        )
    return chosen


def solve(
    problem: Subproblem[Any], solver: str | AnySolver = "auto", start: Any = None
) -> Solution[Any]:
    """Solve one subproblem and return its solution, certified by the problem itself.

    Args:
        problem: a `WeightFit`, `StateFit` or `OutputFit`.
        solver: "auto", a solver's name, or a solver with options of its own.
        start: a value to start from: `Weights` for a weight fit, else states (samples, units).

    Raises:
        DataError: data or start are NaN, infinite, of a wrong shape, or make it unbounded.
        DeclarationError: the solver cannot serve the problem; the message names what is missing.
        SolverError: nothing usable was reached.
    """
    if not isinstance(problem, Subproblem):
        raise DeclarationError(
            f"solve needs a WeightFit, a StateFit or an OutputFit, got {type(problem).__name__}."
        )
    chosen = choose(problem, solver)
    problem.refuse_bad_values()
    if start is not None:
        problem.refuse_bad_start(start)
    solution = chosen.solve(problem, start, chosen.prepare(problem)).require_usable()
    return _finished(problem, solution) if solver == "auto" else solution


def _finished(problem: Subproblem[Any], solution: Solution[Any]) -> Solution[Any]:
    """Return the solution, finished in torch where float32 steps in a kernel did not end it."""
    if solution.solver != FusedStates.name or solution.status is Status.SOLVED:
        return solution
    slower = [other for other in _serving(problem) if not isinstance(other, FusedStates)]
    other = _best(problem, slower)
    return other.solve(problem, solution.value, other.prepare(problem)).require_usable()
