"""Numbers that stay on a GPU until they are read, or are read late.

Reading a number from a GPU waits until it has done all that was handed to it, and then it has
nothing to do. A 0-d tensor acts as a number in arithmetic, so that objectives, residuals and step
lengths can be worked with there, and read when somebody asks for them. Where a loop must know a
number to go on, `Late` reads that of some rounds before.
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


def reported(value: Tensor) -> float:
    """Return a scalar as a number; from a GPU the 0-d tensor itself."""
    return cast(float, value) if stays_on_device(value) else float(value)


def counted(value: Tensor) -> int:
    """Return a whole scalar as a number; from a GPU the 0-d tensor itself."""
    return cast(int, value) if stays_on_device(value) else int(value)


def at_least(value: float, floor: float) -> float:
    """Return the larger of two numbers, of which the first may stay on a device."""
    return cast(float, value.clamp(min=floor)) if isinstance(value, Tensor) else max(value, floor)


def at_most(value: float, ceiling: float) -> float:
    """Return the smaller of two numbers, of which the first may stay on a device."""
    if isinstance(value, Tensor):
        return cast(float, value.clamp(max=ceiling))
    return min(value, ceiling)


def largest(terms: Iterable[Tensor], floor: float) -> float:
    """Return the largest absolute value of an entry, at least a floor; on a GPU it stays there."""
    return reported(largest_on(terms, floor))


def largest_on(terms: Iterable[Tensor], floor: float) -> Tensor:
    """Return the same as a float64 scalar where the terms are, of which one is held at a time."""
    sizes = map(torch.Tensor.max, map(torch.abs, terms))
    return torch.stack([size.double() for size in sizes]).max().clamp(min=floor)


def positive(value: float) -> float:
    """Return a number that is not negative, with 1 in place of 0; it may stay on a device."""
    if isinstance(value, Tensor):
        return cast(float, torch.where(value > 0, value, 1.0))
    return value or 1.0


def chosen(condition: Tensor, one: float, other: float) -> float:
    """Return one number where a condition holds, else the other; on a GPU it stays there."""
    if stays_on_device(condition):
        numbers = (
            x if isinstance(x, Tensor) else condition.new_full((), x, dtype=torch.float64)
            for x in (one, other)
        )
        return cast(float, torch.where(condition, *numbers))
    return one if condition else other


def sent(value: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; from the host to a GPU without waiting for it."""
    if device.type == "cuda" and not value.is_cuda:
        return value.pin_memory().to(device, non_blocking=True)
    return value.to(device)


def subtract_(target: Tensor, move: Tensor, length: float, allowed: bool | Tensor) -> None:
    """Subtract length times a move in place, where it is allowed.

    Args:
        target: what is moved.
        move: of its shape.
        length: a number, which may stay on a device.
        allowed: a boolean, which may stay on a device; elsewhere it is true.
    """
    if isinstance(allowed, Tensor):
        target.copy_(torch.where(allowed, target - length * move, target))
    else:
        target.sub_(move, alpha=length)


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
