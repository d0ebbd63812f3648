"""What the compiled solvers of state fits below quadratic links share: phi is a ramp."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from liftednet.problems import Fit, StateFit
from liftednet.problems.ramps import unserved

from ..base import Solver, device_chunks
from ..dual import Dual

Cache = TypeVar("Cache")


@dataclass(frozen=True)
class OnRamps(Solver[StateFit, Tensor, Cache], Generic[Cache]):
    """A solver of what `Dual` serves, where the activation is a ramp, on a CPU with Numba."""

    tolerance: float | None = None

    def obstacle(self, problem: Fit[Any]) -> str | None:
        """Ask for a state fit with quadratic links, a ramp, a CPU, and Numba."""
        refused = Dual().obstacle(problem)
        if refused is None and isinstance(problem, StateFit):
            refused = unserved(problem)
        return refused


def chunks(whole: slice, columns: int) -> Iterator[slice]:
    """Yield parts of some samples, each of as many as a device takes at a time."""
    for part in device_chunks(whole.stop - whole.start, columns, torch.device("cpu")):
        yield slice(whole.start + part.start, min(whole.start + part.stop, whole.stop))
