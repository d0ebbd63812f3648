"""Which solver serves the states of a recurrent layer over time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from liftednet.divergences import Divergence
from liftednet.errors import DeclarationError
from liftednet.solvers import Solver
from liftednet.solvers.newton_over_time import NewtonOverTime
from liftednet.solvers.over_time import Cyclic, RedBlack

AnySolver = Solver[Any, Any, Any]
_STATE_SOLVERS: dict[str, Callable[[], AnySolver]] = {
    "newton-over-time": NewtonOverTime,
    "red-black": RedBlack,
    "cyclic": Cyclic,
}


def state_solver_for(solver: str | AnySolver, divergence: Divergence) -> AnySolver:
    """Return the solver that is asked for; "auto" is the exact one where it serves.

    Raises:
        DeclarationError: there is no such solver, or it cannot serve the divergence.
    """
    if not isinstance(solver, str):
        return solver
    exact = divergence.activation.per_unit and divergence.smoothness is not None
    name = ("newton-over-time" if exact else "red-black") if solver == "auto" else solver
    if name not in _STATE_SOLVERS:
        raise DeclarationError(
            f"there is no state solver {solver!r}; there are {', '.join(_STATE_SOLVERS)} and "
            "'auto'."
        )
    return _STATE_SOLVERS[name]()
