"""Which solvers serve the states over time and the weights of a recurrent network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from liftednet.divergences import Divergence
from liftednet.errors import DeclarationError
from liftednet.solvers import GeneralizedLinear, Solver
from liftednet.solvers.newton_over_time import NewtonOverTime
from liftednet.solvers.over_time import Cyclic, RedBlack

from .prediction import known_solver

AnySolver = Solver[Any, Any, Any]
_STEPS_A_SWEEP = 2  # Newton steps between weight fits; more of them bring no better weights
_STATE_SOLVERS: dict[str, Callable[[float], AnySolver]] = {
    "newton-over-time": NewtonOverTime,
    "red-black": RedBlack,
    "cyclic": Cyclic,
}


@dataclass(frozen=True)
class Solvers:
    """Who solves what.

    Attributes:
        states: of a layer over time.
        recurrent: the weights of a cell.
        readout: the output weights.
    """

    states: AnySolver
    recurrent: str | AnySolver
    readout: str | AnySolver


def solvers_for(
    states: str | AnySolver,
    weights: str | AnySolver,
    layer: Divergence,
    output: Divergence,
    tolerance: float,
) -> Solvers:
    """Return the solvers that are asked for.

    Raises:
        DeclarationError: there is no such solver, or it cannot serve the divergence.
    """
    return Solvers(
        _state_solver(states, layer, tolerance),
        _weight_solver(weights, layer, tolerance),
        _weight_solver(weights, output, tolerance),
    )


def _state_solver(solver: str | AnySolver, divergence: Divergence, tolerance: float) -> AnySolver:
    if not isinstance(solver, str):
        known_solver(solver)
        return solver
    if solver == "auto":
        if divergence.smoothness is not None:
            return NewtonOverTime(tolerance / 10, _STEPS_A_SWEEP)
        return RedBlack(tolerance / 10)
    if solver not in _STATE_SOLVERS:
        raise DeclarationError(
            f"there is no state solver {solver!r}; there are {', '.join(_STATE_SOLVERS)} and "
            "'auto'."
        )
    return _STATE_SOLVERS[solver](tolerance / 10)


def _weight_solver(
    solver: str | AnySolver, divergence: Divergence, tolerance: float
) -> str | AnySolver:
    """Return the solver for a weight fit; "auto" goes to a tenth of the descent's tolerance.

    Quadratic fits are exact whatever the tolerance.
    """
    solver = known_solver(solver)
    if solver != "auto" or divergence.quadratic or divergence.smoothness is None:
        return solver
    return GeneralizedLinear(tolerance / 10)
