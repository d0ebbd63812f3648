"""Loops over the samples of a batch, on a CPU and on a GPU.

On a CPU the samples that have ended leave the batch. Reading a number from a GPU waits until it has
done all that was handed to it, and then it has nothing to do: there samples that have ended rest, a
loop reads the number by which it decides some rounds late, and what it compares with stays on the
device, where a 0-d tensor acts as a number in arithmetic.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar, cast

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


def _copied(value: Tensor) -> Callable[[], float]:
    """Send a scalar to the host, and return what reads it there as soon as it has arrived."""
    there, arrived = value.detach().to("cpu", non_blocking=True), None
    if value.is_cuda:
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(value.device))

    def read() -> float:
        if arrived is not None:
            arrived.synchronize()
        return float(there.numpy())

    return read


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
        self._lag, self._rounds = lag, deque[tuple[Callable[[], float], Beside]]()

    def seen(self, value: Tensor, beside: Beside) -> tuple[float, Beside | None]:
        """Return this scalar, or that of `lag` rounds before, and what stood beside it then.

        Where there was no such round they are infinity and None.
        """
        if not stays_on_device(value):
            return float(value), beside
        self._rounds.append((_copied(value), beside))
        if len(self._rounds) <= self._lag:
            return math.inf, None
        read, then = self._rounds.popleft()
        return read(), then

    def some(self, going: Tensor) -> bool:
        """Return whether any of these booleans is, or was `lag` rounds before, true."""
        return self.seen(going.any(), cast(Beside, None))[0] > 0


class Rows(Protocol):
    """Something that every sample has a row of."""

    def rows(self, keep: Tensor) -> Any:
        """Return the rows of some samples."""
        ...


Problem = TypeVar("Problem", bound=Rows)
Place = TypeVar("Place", bound=Rows)
Result = Callable[[Place], tuple[Tensor, ...]]


class Unfinished(Generic[Problem, Place]):
    """A batch whose samples end one by one, each with what it has come to by then.

    On a CPU those that have ended leave it as soon as enough of them have.

    Attributes:
        problem: of the samples in the batch.
        at: where they stand; the caller moves them on.
        all_solved: whether all samples are known to have ended solved.
    """

    all_solved = False

    def __init__(
        self, problem: Problem, at: Place, result: Result[Place], share: float = 0.75
    ) -> None:
        """Begin with all samples.

        Args:
            problem: of all samples.
            at: where they stand.
            result: what is wanted of a place, (samples, ...) each.
            share: of the samples in the batch, below which those that go on go on alone.
        """
        self.problem, self.at = problem, at
        self._result, self._share = result, share
        self._found = tuple(tensor.clone() for tensor in result(at))
        self._left = torch.arange(len(self._found[0]), device=self._found[0].device)
        self._over: list[Tensor] = []

    def release(self, going: Tensor, late: Tensor) -> bool:
        """Let samples end, and say whether some go on, as far as is known.

        Args:
            going: those that go on, (samples in the batch,) booleans.
            late: those that are not solved, so that what ends among them is left over.
        """
        count = int(going.sum())
        if count < self._share * len(self._left):
            self.results()
            self._over.append(self._left[late & ~going])
            self.problem, self.at = self.problem.rows(going), self.at.rows(going)
            self._left = self._left[going]
        return count > 0

    def resting(self, move: Tensor) -> Tensor:
        """Return a move, (samples in the batch, ...), with 0 for samples that have ended."""
        return move  # they are gone, or few

    def others(self, met: Tensor) -> Tensor:
        """Return which samples in the batch go on and have not met a condition, its shape."""
        return ~met

    def results(self) -> tuple[Tensor, ...]:
        """Return what all samples have come to."""
        for found, now in zip(self._found, self._result(self.at), strict=True):
            found[self._left] = now
        return self._found

    def finish(
        self, value: Tensor, solve: Callable[[Tensor | slice], tuple[Tensor, int]]
    ) -> tuple[Tensor, int]:
        """Return values, (samples, ...), with those of samples that are left over solved anew.

        Args:
            value: of all samples.
            solve: returns the values of some samples, and the steps it took.
        """
        some = torch.cat([*self._over, self._left])
        if not len(some):
            return value, 0
        value[some], steps = solve(some)
        return value, steps


class _Resting(Unfinished[Problem, Place]):
    """A batch on a GPU: all samples stay, because who leaves would have to be read."""

    def __init__(self, problem: Problem, at: Place, result: Result[Place]) -> None:
        """Begin with all samples, as `Unfinished` does."""
        self.problem, self.at = problem, at
        self._result, self._found = result, result(at)
        first = self._found[0]
        self._going = torch.ones(len(first), dtype=torch.bool, device=first.device)
        self._left_over = torch.zeros_like(self._going)
        self._some_go, self._some_over = Late[None](), Late[None]()

    def release(self, going: Tensor, late: Tensor) -> bool:
        """Let samples end, and say whether some went on a few rounds before."""
        self.results()
        self._left_over = self._left_over | (self._going & late & ~going)
        self._going = self._going & going
        over, some = self._some_over.some(self._left_over), self._some_go.some(self._going)
        self.all_solved = not (over or some)
        return some

    def resting(self, move: Tensor) -> Tensor:
        """Return a move with 0 for samples that have ended."""
        return torch.where(_beside(self._going, move), move, 0.0)

    def others(self, met: Tensor) -> Tensor:
        """Return which samples go on and have not met a condition."""
        return _beside(self._going, met) & ~met

    def results(self) -> tuple[Tensor, ...]:
        """Return what all samples have come to."""
        pairs = zip(self._found, self._result(self.at), strict=True)
        self._found = tuple(
            torch.where(_beside(self._going, now), now, found) for found, now in pairs
        )
        return self._found

    def finish(
        self, value: Tensor, solve: Callable[[Tensor | slice], tuple[Tensor, int]]
    ) -> tuple[Tensor, int]:
        """Return values with those left over solved anew; nothing is done where all are solved."""
        if self.all_solved:
            return value, 0
        found, steps = solve(slice(None))
        return torch.where(_beside(self._left_over | self._going, value), found, value), steps


def _beside(flags: Tensor, like: Tensor) -> Tensor:
    """Return a boolean for each sample as it stands beside a tensor."""
    return flags.reshape(-1, *(1,) * (like.ndim - 1))


def unfinished(
    problem: Problem, at: Place, result: Result[Place], share: float = 0.75
) -> Unfinished[Problem, Place]:
    """Return the batch that suits where its samples are, with its arguments."""
    if stays_on_device(result(at)[0]):
        return _Resting(problem, at, result)
    return Unfinished(problem, at, result, share)
