"""Solvers in the order in which they are preferred, and the choice among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from liftednet.errors import DeclarationError
from liftednet.problems import Fit

from .base import Solver

AnySolver = Solver[Any, Any, Any]


def _reference() -> AnySolver:
    from .reference import Reference  # CVXPY, only where it is asked for

    return Reference()


@dataclass(frozen=True)
class SolverTable:
    """A table of solvers, read from the top; below it the reference solver, which serves all.

    Attributes:
        solvers: from the most to the least preferred, of any kinds of subproblems.
    """

    solvers: tuple[AnySolver, ...]

    def names(self) -> tuple[str, ...]:
        """Return the names that `choose` takes, besides "auto"."""
        return (*(solver.name for solver in self.solvers), "reference")

    def named(self, name: str) -> AnySolver:
        """Return a solver by its name.

        Raises:
            DeclarationError: there is no solver of that name.
        """
        for solver in self.solvers:
            if solver.name == name:
                return solver
        if name == "reference":
            return _reference()
        raise DeclarationError(
            f"there is no solver {name!r}; there are {', '.join(self.names())} and 'auto'."
        )

    def best(self, problem: Fit[Any]) -> AnySolver:
        """Return the first that suits a problem, else the first that serves it."""
        serving = None
        for solver in self.solvers:
            if solver.obstacle(problem) is None:
                if solver.suits(problem):
                    return solver
                serving = serving or solver
        return serving or _reference()

    def choose(self, problem: Fit[Any], solver: str | AnySolver = "auto") -> AnySolver:
        """Return the solver that suits a problem best, or the one that is asked for.

        Raises:
            DeclarationError: the solver that is asked for cannot serve the problem.
        """
        if solver == "auto":
            return self.best(problem)
        chosen = self.named(solver) if isinstance(solver, str) else solver
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

    def without(self, kind: type[AnySolver]) -> SolverTable:
        """Return the table without the solvers of one kind."""
        return SolverTable(tuple(one for one in self.solvers if not isinstance(one, kind)))
