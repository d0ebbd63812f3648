"""The solvers of state fits: of a network's layer, and of the steps of a recurrent one."""

from __future__ import annotations

from .compiled import CompiledDescent, CompiledNewton, CompiledSmall
from .dual import Dual
from .kernels import FusedStates
from .newton_states import NewtonStates
from .proximal import Proximal
from .solver_table import SolverTable

STATE_SOLVERS = SolverTable(
    (
        FusedStates(),
        CompiledSmall(),
        CompiledNewton(),
        CompiledDescent(),
        Dual(),
        NewtonStates(),
        Proximal(),
    )
)
