"""One update of a block: kept where it lowers the objective, decided where the data are."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from liftednet import deferred
from liftednet.errors import SolverError
from liftednet.problems import Weights
from liftednet.problems.formulation import Measure
from liftednet.solution import Solution

_ROUNDING = 1e-6  # a rise below this, relative to the objective, is rounding


@dataclass(frozen=True)
class Update:
    """What a solver made of a block; on a GPU its numbers wait there until they are read.

    Attributes:
        block: name of the block.
        before: the measure of the block before.
        solution: the solver's.
        clock: when it was handed on, by `time.perf_counter`.
    """

    block: str
    before: Measure
    solution: Solution[Any]
    clock: float

    @property
    def rise(self) -> float:
        """By how much the objective of the block changed."""
        return self.solution.objective - self.before.objective

    @property
    def on_device(self) -> bool:
        """Whether reading the numbers would wait for a GPU."""
        return deferred.stays_on_device(self.solution.objective)

    def decrease(self) -> float:
        """Return by how much the kept value lowers the objective.

        Raises:
            SolverError: the solution is not finite, or a rise is more than rounding.
        """
        self.solution.require_usable()
        rise, before = float(self.rise), float(self.before.objective)
        if rise > _ROUNDING * (1 + abs(before)):
            raise SolverError(
                f"the block {self.block!r} raised the joint objective by {rise:.3e} (from "
                f"{before:.6e}); {self.solution.solver} stopped after "
                f"{int(self.solution.iterations)} iterations with residual "
                f"{float(self.solution.residual):.1e}. The model keeps the state before this "
                "block.",
                self.solution,
            )
        return max(-rise, 0.0)

    def kept(self, old: Any) -> Any:
        """Return the solver's value where it lowers the objective, else the old one."""
        lower: bool | Tensor = self.rise < 0
        if not isinstance(lower, Tensor):
            return self.solution.value if lower else old
        return _where(lower, self.solution.value, old)


def _where(lower: Tensor, new: Any, old: Any) -> Any:
    if isinstance(new, Tensor):
        return torch.where(lower, new, old)
    if not isinstance(new, Weights):  # numbers that a solver has read already
        return new if lower else old
    bias = None if new.bias is None else torch.where(lower, new.bias, old.bias)
    return Weights(torch.where(lower, new.matrix, old.matrix), bias)


def updated(block: str, before: Measure, solution: Solution[Any]) -> Update:
    """Return the update of a block, with the time of now."""
    return Update(block, before, solution, time.perf_counter())


def readable(updates: Iterable[Update]) -> Iterator[Update]:
    """Yield each update as it comes; those on a GPU together after the last, or an interrupt."""
    held: list[Update] = []
    try:
        for update in updates:
            held.append(update)
            if not update.on_device:
                yield from held
                held.clear()
    except KeyboardInterrupt:
        yield from held
        raise
    yield from held
