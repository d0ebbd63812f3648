"""The solvers of one convex subproblem; they know no network."""

if __name__ == "solvers":
    raise ImportError(
        "the folder solvers is the package liftednet.solvers: run `make demo` or "
        "`pip install -c constraints.txt -e .`, then import liftednet.solvers"
    )

from importlib import import_module
from typing import TYPE_CHECKING, Any

from liftednet.solution import Solution, Status

from .base import Solver
from .choice import choose, class_named, get_solver, solve, solver_names

if TYPE_CHECKING:
    from .gradient import FrankWolfe, TemporalSimplexDescent
    from .reference import Reference

__all__ = [
    "FrankWolfe",
    "Reference",
    "Solution",
    "Solver",
    "Status",
    "TemporalSimplexDescent",
    "choose",
    "get_solver",
    "solve",
    "solver_names",
]


def __getattr__(name: str) -> Any:
    """Import what few need when it is first asked for: also a solver of the table, by its class."""
    if name in ("FrankWolfe", "TemporalSimplexDescent"):
        return getattr(import_module(".gradient", __name__), name)
    if (found := class_named(name)) is not None:
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
