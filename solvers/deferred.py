"""Numbers by which a solver's loop decides, read late from a GPU.

Reading a number from a GPU waits until it has done all that was handed to it, and then it has
nothing to do. A loop reads that of some rounds before; what it compares with stays on the device,
where a 0-d tensor acts as a number in arithmetic.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

import torch
from torch import Tensor

Beside = TypeVar("Beside")

_LAG = 2  # rounds of a loop that a device has at hand while the host reads a number


def stays_on_device(value: object) -> bool:
    """Say whether reading a number would wait for a GPU."""
    return isinstance(value, Tensor) and value.is_cuda


def largest(terms: Iterable[Tensor], floor: float) -> float:
    """Return the largest absolute value of an entry, at least a floor; on a GPU it stays there."""
    found = largest_on(terms, floor)
    return cast(float, found) if stays_on_device(found) else float(found)


def largest_on(terms: Iterable[Tensor], floor: float) -> Tensor:
    """Return the same as a float64 scalar where the terms are, of which one is held at a time."""
    sizes = map(torch.Tensor.max, map(torch.abs, terms))
    return torch.stack([size.double() for size in sizes]).max().clamp(min=floor)


@dataclass(frozen=True)
class _Copied:
    """A scalar on its way to the host.

    Attributes:
        value: in pinned memory, where a copy that nobody waits for can go.
        arrived: what a GPU records behind the copy.
    """

    value: Tensor
    arrived: torch.cuda.Event | None

    def read(self) -> float:
        """Return the number as soon as it is there."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return float(self.value.numpy())


def _copied(value: Tensor) -> _Copied:
    there = value.detach().to("cpu", non_blocking=True)
    if not value.is_cuda:
        return _Copied(there, None)
    arrived = torch.cuda.Event()
    arrived.record(torch.cuda.current_stream(value.device))
    return _Copied(there, arrived)


class Late(Generic[Beside]):
    """The numbers by which a loop decides, one in every round.

    On a CPU each is read at once. From a GPU it is copied behind the work that makes it, and the
    host reads the one of `lag` rounds before, while the device works on those between: it never
    waits for the host. How late a number is read does not depend on how fast they are, so that
    a loop takes the same course every time. It has gone `lag` rounds too far when it ends.
    """

    def __init__(self, lag: int = _LAG) -> None:
        """Begin without numbers.

        Args:
            lag: rounds.
        """
        self._lag, self._rounds = lag, deque[tuple[_Copied, Beside]]()

    def seen(self, value: Tensor, beside: Beside) -> tuple[float, Beside | None]:
        """Return this scalar, or that of `lag` rounds before, and what stood beside it then.

        Where there was no such round they are infinity and None.
        """
        if not stays_on_device(value):
            return float(value), beside
        self._rounds.append((_copied(value), beside))
        if len(self._rounds) <= self._lag:
            return math.inf, None
        copied, then = self._rounds.popleft()
        return copied.read(), then

    def some(self, going: Tensor) -> bool:
        """Return whether any of these booleans is, or was `lag` rounds before, true."""
        return self.seen(going.any(), cast(Beside, None))[0] > 0
