"""The solvers of one convex subproblem; they know no network."""

if __name__ == "solvers":
    raise ImportError(
        "the folder solvers is the package liftednet.solvers: run `make demo` or "
        "`pip install -c constraints.txt -e .`, then import liftednet.solvers"
    )

from importlib import import_module
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
from .dual import Dual
from .dual_ascent import DualAscent
from .generalized_linear import GeneralizedLinear
from .interior_point import InteriorPoint
from .newton_states import NewtonStates
from .output import ClosedForm, SimplexDual
from .over_time import Cyclic, NewtonOverTime, RedBlack
from .proximal import Proximal
from .ridge import Ridge
from .ridge_sums import RidgeSums

if TYPE_CHECKING:
    from .differentiable import solve_differentiable
    from .gradient import FrankWolfe, TemporalSimplexDescent
    from .reference import Reference

_LATER = {
    "FrankWolfe": "gradient",
    "Reference": "reference",
    "TemporalSimplexDescent": "gradient",
    "solve_differentiable": "differentiable",
}

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
    """Import what few need when it is first asked for."""
    if name in _LATER:
        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
