"""Which solver serves a problem: one table, read from the top."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, cast

from torch import Tensor

from liftednet import processes
from liftednet.errors import DeclarationError, SolverError
from liftednet.lazy import cvxpy as cp
from liftednet.problems import (
    BlockFit,
    ConstrainedFit,
    Design,
    Fit,
    Link,
    OutputFit,
    StateFit,
    StatesOverTime,
    TimeLink,
    WeightFit,
    Weights,
)
from liftednet.solution import Solution, Status

from .base import Solver

AnySolver = Solver[Any, Any, Any]

_SMALL = 2_000  # numbers that are unknown or aimed at
_PARTS: Any = (Fit, Link, TimeLink, Design, Weights)  # in which tensors stand


class _Entry(NamedTuple):
    """A solver of the table.

    Attributes:
        kind: the fits that it solves.
        name: what users call it.
        module: of its class, imported when a fit of this kind is solved.
        solver: the name of its class.
    """

    kind: type[Fit[Any]]
    name: str
    module: str
    solver: str


# From the most to the least preferred among those for one kind; below them all "reference".
_TABLE = (
    _Entry(StateFit, "fused-states", "kernels.states", "FusedStates"),
    _Entry(StateFit, "compiled-newton", "compiled.solvers", "CompiledNewton"),
    _Entry(StateFit, "compiled-descent", "compiled.solvers", "CompiledDescent"),
    _Entry(StateFit, "dual", "dual", "Dual"),
    _Entry(StateFit, "newton", "newton_states", "NewtonStates"),
    _Entry(StateFit, "proximal", "proximal", "Proximal"),
    _Entry(WeightFit, "compiled-ridge", "compiled.solvers", "CompiledRidge"),
    _Entry(WeightFit, "ridge", "ridge", "Ridge"),
    _Entry(WeightFit, "generalized-linear", "generalized_linear", "GeneralizedLinear"),
    _Entry(WeightFit, "coordinate-descent", "compiled.solvers", "CoordinateDescent"),
    _Entry(WeightFit, "proximal-weights", "accelerated", "ProximalWeights"),
    _Entry(OutputFit, "closed-form", "output", "ClosedForm"),
    _Entry(OutputFit, "compiled-simplex", "compiled.solvers", "CompiledSimplex"),
    _Entry(OutputFit, "simplex-dual", "output", "SimplexDual"),
    _Entry(StatesOverTime, "newton-over-time", "newton_states", "NewtonOverTime"),
    _Entry(BlockFit, "accelerated", "accelerated", "Accelerated"),
    _Entry(ConstrainedFit, "interior-point", "interior_point", "InteriorPoint"),
)
_REFERENCE = _Entry(StateFit, "reference", "reference", "Reference")  # of any kind, by CVXPY


def class_named(name: str) -> type[AnySolver] | None:
    """Return the class of a solver of the table by its name, or None."""
    for entry in (*_TABLE, _REFERENCE):
        if entry.solver == name:
            return type(_made(entry))
    return None


@cache
def _made(entry: _Entry) -> AnySolver:
    return cast(AnySolver, getattr(import_module(f".{entry.module}", __package__), entry.solver)())


def solver_names() -> tuple[str, ...]:
    """Return the names that `solve` and the models take, besides "auto".

    Example:
        >>> from liftednet.solvers import solver_names
        >>> "ridge" in solver_names(), solver_names()[-1]
        (True, 'reference')
    """
    return (*(entry.name for entry in _TABLE), _REFERENCE.name)


def get_solver(name: str) -> AnySolver:
    """Return a solver by its name, that of a solver of CVXPY included, such as "CLARABEL".

    Raises:
        DeclarationError: there is no solver of that name.

    Example:
        >>> from liftednet.solvers import get_solver
        >>> get_solver("proximal")
        Proximal(tolerance=None, max_iterations=20000, name='proximal')
    """
    for entry in (*_TABLE, _REFERENCE):
        if entry.name == name:
            return _made(entry)
    if isinstance(name, str) and name.upper() in cp.installed_solvers():
        reference = import_module(".reference", __package__)
        return cast(AnySolver, reference.Reference(backend=name.upper()))
    raise DeclarationError(
        f"there is no solver {name!r}; there are {', '.join(solver_names())} and 'auto', and those "
        f"of CVXPY: {', '.join(cp.installed_solvers())}. 'reference' is CVXPY's own choice."
    )


def serving(problem: Fit[Any], names: Sequence[str] | None = None) -> Iterator[AnySolver]:
    """Yield the solvers of the table, or those of some names, that serve a problem."""
    for entry in _TABLE:
        if isinstance(problem, entry.kind) and (names is None or entry.name in names):
            solver = _made(entry)
            if solver.obstacle(problem) is None:
                yield solver


def best(problem: Fit[Any], names: Sequence[str] | None = None, repeats: bool = False) -> AnySolver:
    """Return the first that suits a problem, else the first that serves it, of some names.

    One suits where problems repeat, too, if that is asked for.
    """
    first = None
    for solver in serving(problem, names):
        if solver.repeated(problem) if repeats else solver.suits(problem):
            return solver
        first = first or solver
    return first or _made(_REFERENCE)


def choose(problem: Fit[Any], solver: str | AnySolver = "auto") -> AnySolver:
    """Return the solver that suits a problem best, or the one that is asked for.

    Raises:
        DeclarationError: the solver that is asked for cannot serve the problem.

    Example:
        >>> import torch
        >>> from liftednet.problems import StateFit
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> from liftednet.solvers import choose
        >>> choose(StateFit(joint(ReLU()), torch.ones(1, 2))).name
        'proximal'
    """
    if isinstance(solver, str) and solver == "auto":
        return best(problem)
    chosen = get_solver(solver) if isinstance(solver, str) else solver
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


def solve(problem: Fit[Any], solver: str | AnySolver = "auto", start: Any = None) -> Solution[Any]:
    """Solve one subproblem and return its solution, certified by the problem itself.

    Where "auto" leaves a small problem unsolved, CVXPY's CLARABEL tries it, and the solver again
    from what that found.

    Args:
        problem: a fit of `liftednet.problems`, such as `WeightFit`.
        solver: "auto", a solver's name, or a solver with options of its own.
        start: a value to start from: `Weights` for a weight fit, else states (samples, units).

    Raises:
        DataError: data or start are NaN, infinite, of a wrong shape, or make it unbounded.
        DeclarationError: the solver cannot serve the problem; the message names what is missing.
        SolverError: nothing usable was reached.

    Example:
        >>> import torch
        >>> from liftednet.problems import StateFit
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
            f"solve needs a fit, such as a WeightFit, got {type(problem).__name__}."
        )
    problem, start = _without_gradients(problem), _without_gradients(start)
    auto = isinstance(solver, str) and solver == "auto"
    chosen = None if auto else choose(problem, solver)
    problem.refuse_bad_values()  # before "auto" looks at what they suit
    chosen = chosen or best(problem, repeats=True)
    if start is not None:
        problem.refuse_bad_start(start)
    solution = chosen.solve(problem, start).require_usable()
    if auto:
        solution = retry_in_torch(problem, solution)
        if solution.status is not Status.SOLVED:
            solution = _retried(problem, solution, chosen)
    return replace(solution, duals=solution.duals or problem.duals(solution.value))


def _without_gradients(part: Any) -> Any:
    """Return a problem on the numbers of its tensors; itself where none of them asks for more."""
    if isinstance(part, Tensor):
        return part.detach() if part.requires_grad else part
    if isinstance(part, tuple) and not hasattr(part, "_fields"):
        found = tuple(map(_without_gradients, part))
        return part if all(map(operator.is_, found, part)) else found
    if not isinstance(part, _PARTS):
        return part
    known = {x.name: getattr(part, x.name) for x in fields(part)}
    changed = {x: _without_gradients(y) for x, y in known.items()}
    changed = {x: y for x, y in changed.items() if y is not known[x]}
    return replace(part, **changed) if changed else part


def _retried(problem: Fit[Any], solution: Solution[Any], solver: AnySolver) -> Solution[Any]:
    """Return the best of a solution, an interior point method's, and the solver's from there.

    Only a small problem, whose statement takes hundredths of a second, is stated anew.
    """
    size = problem.like().numel() + sum(link.target.numel() for link in problem.terms_above)
    if size > _SMALL or processes.size() > 1:
        return solution
    from .reference import Reference

    reference = Reference(backend="CLARABEL", tolerance=solution.tolerance)
    try:
        other = reference.solve(problem, solution.value)
        last = solver.solve(problem, other.value)
    except (DeclarationError, SolverError):
        return solution
    seconds = solution.seconds + other.seconds + last.seconds
    found = solution
    for tried in (other, last):
        closer = tried.residual < found.residual and tried.objective <= found.objective
        found = tried if closer or tried.status is Status.SOLVED else found
    return replace(found, seconds=seconds)


def retry_in_torch(problem: Fit[Any], solution: Solution[Any]) -> Solution[Any]:
    """Return a solution, solved further in torch where float32 steps in a kernel did not end it."""
    if solution.status is Status.SOLVED or not solution.solver.startswith("fused-"):
        return solution
    in_torch = [name for name in solver_names() if not name.startswith("fused-")]
    return solved_by(problem, in_torch, solution.value).require_usable()


def solved_by(
    problem: Fit[Any], names: Sequence[str], start: Any, tolerance: float | None = None
) -> Solution[Any]:
    """Return what the best of some solvers finds from where another one ended.

    Args:
        problem: which it could not solve, or not as fast.
        names: of the solvers.
        start: a value to start from, or None.
        tolerance: theirs; None for their own.
    """
    other: Any = best(problem, names)
    if tolerance is not None:
        other = replace(other, tolerance=tolerance)
    return cast(Solution[Any], other.solve(problem, start))
