"""The solvers of one convex subproblem; they know no network."""

if __name__ == "solvers":
    raise ImportError(
        "the folder solvers is the package liftednet.solvers: run `make demo` or "
        "`pip install -c constraints.txt -e .`, then import liftednet.solvers"
    )

from typing import TYPE_CHECKING, Any

from .accelerated import Accelerated, ProximalWeights
from .base import Solver
from .choice import choose, finished, named, solve, solver_names
from .compiled import (
    CompiledDescent,
    CompiledNewton,
    CompiledSimplex,
    CompiledSmall,
    CompiledSmallWeights,
)
from .differentiable import solve_differentiable
from .dual import Dual
from .dual_ascent import DualAscent
from .generalized_linear import GeneralizedLinear
from .gradient import FrankWolfe, TemporalSimplexDescent
from .interior_point import InteriorPoint
from .newton_states import NewtonStates
from .output import ClosedForm, SimplexDual
from .over_time import Cyclic, NewtonOverTime, RedBlack
from .proximal import Proximal
from .ridge import Ridge
from .ridge_sums import RidgeSums

if TYPE_CHECKING:
    from .reference import Reference

__all__ = [
    "Accelerated",
    "ClosedForm",
    "CompiledDescent",
    "CompiledNewton",
    "CompiledSimplex",
    "CompiledSmall",
    "CompiledSmallWeights",
    "Cyclic",
    "Dual",
    "DualAscent",
    "FrankWolfe",
    "GeneralizedLinear",
    "InteriorPoint",
    "NewtonOverTime",
    "NewtonStates",
    "Proximal",
    "ProximalWeights",
    "RedBlack",
    "Reference",
    "Ridge",
    "RidgeSums",
    "SimplexDual",
    "Solver",
    "TemporalSimplexDescent",
    "choose",
    "finished",
    "named",
    "solve",
    "solve_differentiable",
    "solver_names",
]


def __getattr__(name: str) -> Any:
    """Import the reference solver, and CVXPY with it, when it is first asked for."""
    if name == "Reference":
        from .reference import Reference

        return Reference
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
