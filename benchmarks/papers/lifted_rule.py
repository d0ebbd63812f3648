"""The papers' prediction: the training problem with the weights fixed and y free."""

from __future__ import annotations

from collections import deque
from typing import Any

from torch import Tensor

from liftednet.layers.expression import Parameter
from liftednet.models.block import Blocks
from liftednet.models.lifted import Lifted
from liftednet.models.methods import FullBatch
from liftednet.models.trace import Problem
from liftednet.network import State


class _StatesAlone(Blocks):
    def sweep(self) -> list[State | Parameter]:
        return super().sweep()[: len(self.structure.states)]


def forward_lifted(model: Lifted, X: Tensor) -> Any:
    """Return the output by the lifted rule, (samples, outputs), or (samples, steps, outputs).

    Lifted Neural Networks, eq. (12); Lifted Recurrent Neural Networks, section 4.2. With tight
    divergences it is the feedforward rule.

    Raises:
        SolverError: the states did not reach their tolerance.
    """
    data, weights = model._unlabeled(X, None), model._by_parameter()
    blocks = _StatesAlone(model.structure, {**data.values, **weights}, data.last_only)
    method = FullBatch(200, tolerance=1e-6, extrapolation=False)
    deque(method.take_steps(Problem(blocks, model.solver, model.state_solver)), maxlen=0)
    return model._answers(blocks.values, data)
