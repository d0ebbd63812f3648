"""Which solver serves a problem: one table, read from the top."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from liftednet import processes
from liftednet.errors import DeclarationError, SolverError, telling_of_memory
from liftednet.problems import Fit
from liftednet.solution import Solution, Status

from .accelerated import Accelerated, ProximalWeights
from .compiled import CompiledSimplex, CompiledSmallWeights
from .dual_ascent import DualAscent
from .generalized_linear import GeneralizedLinear
from .interior_point import InteriorPoint
from .kernels import FusedClosedForm, FusedRedBlack, FusedSimplex, FusedStates
from .output import ClosedForm, SimplexDual, Slope
from .over_time import Cyclic, NewtonOverTime, RedBlack
from .reference import Reference
from .ridge import Ridge
from .solver_table import AnySolver, SolverTable
from .state_solvers import STATE_SOLVERS

_SMALL = 2_000  # numbers that are unknown or aimed at

_TABLE = SolverTable(
    (
        FusedSimplex(),
        FusedClosedForm(),
        FusedRedBlack(),
        *STATE_SOLVERS.solvers,
        CompiledSmallWeights(),
        Ridge(),
        GeneralizedLinear(),
        ProximalWeights(),
        ClosedForm(),
        CompiledSimplex(),
        SimplexDual(),
        NewtonOverTime(),
        RedBlack(),
        Cyclic(),
        Accelerated(),
        Slope(),
        InteriorPoint(),
        DualAscent(),
    )
)


def solver_names() -> tuple[str, ...]:
    """Return the names that `solve` and the models take, besides "auto".

    Example:
        >>> from liftednet.solvers import solver_names
        >>> "ridge" in solver_names(), solver_names()[-1]
        (True, 'reference')
    """
    return _TABLE.names()


def named(name: str) -> AnySolver:
    """Return a solver by its name.

    Raises:
        DeclarationError: there is no solver of that name.

    Example:
        >>> from liftednet.solvers import named
        >>> named("proximal")
        Proximal(tolerance=None, max_iterations=20000, name='proximal')
    """
    return _TABLE.named(name)


def choose(problem: Fit[Any], solver: str | AnySolver = "auto") -> AnySolver:
    """Return the solver that suits a problem best, or the one that is asked for.

    Raises:
        DeclarationError: the solver that is asked for cannot serve the problem.

    Example:
        >>> import torch
        >>> from liftednet import StateFit
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> from liftednet.solvers import choose
        >>> choose(StateFit(joint(ReLU()), torch.ones(1, 2))).name
        'proximal'
    """
    return _TABLE.choose(problem, solver)


@telling_of_memory
def solve(problem: Fit[Any], solver: str | AnySolver = "auto", start: Any = None) -> Solution[Any]:
    """Solve one subproblem and return its solution, certified by the problem itself.

    Where "auto" leaves a small problem unsolved, CVXPY's CLARABEL tries it, and the solver again
    from what that found.

    Args:
        problem: a `WeightFit`, `StateFit` or `OutputFit`.
        solver: "auto", a solver's name, or a solver with options of its own.
        start: a value to start from: `Weights` for a weight fit, else states (samples, units).

    Raises:
        DataError: data or start are NaN, infinite, of a wrong shape, or make it unbounded.
        DeclarationError: the solver cannot serve the problem; the message names what is missing.
        SolverError: nothing usable was reached.

    Example:
        >>> import torch
        >>> from liftednet import StateFit
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> from liftednet.solvers import solve
        >>> fit = StateFit(joint(ReLU()), torch.tensor([[2.0, -2.0]]))
        >>> solution = solve(fit, solver="proximal")
        >>> solution.value, solution.status.name
        (tensor([[2., 0.]]), 'SOLVED')
    """
    if not isinstance(problem, Fit):
        raise DeclarationError(
            f"solve needs a WeightFit, a StateFit or an OutputFit, got {type(problem).__name__}."
        )
    chosen = choose(problem, solver)
    problem.refuse_bad_values()
    if start is not None:
        problem.refuse_bad_start(start)
    solution = chosen.solve(problem, start, chosen.prepare(problem)).require_usable()
    if solver != "auto":
        return solution
    solution = finished(problem, solution)
    return solution if solution.status is Status.SOLVED else _retried(problem, solution, chosen)


def _retried(problem: Fit[Any], solution: Solution[Any], solver: AnySolver) -> Solution[Any]:
    """Return the best of a solution, an interior point method's, and the solver's from there.

    Only a small problem, whose statement takes hundredths of a second, is stated anew.
    """
    size = problem.like().numel() + sum(link.target.numel() for link in problem.terms_above)
    if size > _SMALL or processes.size() > 1:
        return solution
    reference = Reference(backend="CLARABEL", tolerance=solution.tolerance)
    try:
        other = reference.solve(problem, solution.value)
        last = solver.solve(problem, other.value, solver.prepare(problem))
    except (DeclarationError, SolverError):
        return solution
    seconds = solution.seconds + other.seconds + last.seconds
    best = solution
    for tried in (other, last):
        closer = tried.residual < best.residual and tried.objective <= best.objective
        best = tried if closer or tried.status is Status.SOLVED else best
    return replace(best, seconds=seconds)


def finished(problem: Fit[Any], solution: Solution[Any]) -> Solution[Any]:
    """Return a solution, finished in torch where float32 steps in a kernel did not end it.

    Example:
        >>> import torch
        >>> from liftednet import StateFit
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> from liftednet.solvers import Proximal, finished
        >>> fit = StateFit(joint(ReLU()), torch.tensor([[2.0, -2.0]]))
        >>> finished(fit, Proximal().solve(fit)).solver  # one of torch is handed back as it is
        'proximal'
    """
    if solution.solver != FusedStates.name or solution.status is Status.SOLVED:
        return solution
    other = _TABLE.without(FusedStates).best(problem)
    return other.solve(problem, solution.value, other.prepare(problem)).require_usable()
