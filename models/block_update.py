"""One update of a block: kept where it lowers the objective, decided where the data are."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from liftednet import deferred
from liftednet.errors import SolverError
from liftednet.problems import Weights
from liftednet.problems.formulation import Measure
from liftednet.solution import Solution

_ROUNDING = 1e-6  # a rise below this, relative to the objective, is rounding


class OnDevice(Protocol):
    """Something that may wait on a GPU until it is read."""

    @property
    def on_device(self) -> bool:
        """Whether reading it would wait for the GPU."""
        ...


Waiting = TypeVar("Waiting", bound=OnDevice)


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
        return where(lower, self.solution.value, old)


def where(condition: Tensor, new: Any, old: Any) -> Any:
    """Return new values where a condition holds, (), decided where they are."""
    if isinstance(new, Tensor):
        return torch.where(condition, new, old)
    if not isinstance(new, Weights):  # numbers that a solver has read already
        return new if condition else old
    bias = None if new.bias is None else torch.where(condition, new.bias, old.bias)
    return Weights(torch.where(condition, new.matrix, old.matrix), bias)


def updated(block: str, before: Measure, solution: Solution[Any]) -> Update:
    """Return the update of a block, with the time of now."""
    return Update(block, before, solution, time.perf_counter())


def readable(updates: Iterable[Waiting]) -> Iterator[list[Waiting]]:
    """Yield each update as it comes; those on a GPU together after the last, or an interrupt."""
    held: list[Waiting] = []
    try:
        for update in updates:
            held.append(update)
            if not update.on_device:
                yield held
                held = []
    except KeyboardInterrupt:
        yield held
        raise
    yield held
