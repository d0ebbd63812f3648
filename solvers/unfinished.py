"""The samples of a batch that still go on: on a CPU the others leave it, on a GPU they rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from . import deferred


class Rows(Protocol):
    """Something that every sample has a row of."""

    def rows(self, keep: Tensor) -> Any:
        """Return the rows of some samples."""
        ...


Problem = TypeVar("Problem", bound=Rows)
Place = TypeVar("Place", bound=Rows)
Result = Callable[[Place], tuple[Tensor, ...]]


class Unfinished(ABC, Generic[Problem, Place]):
    """A batch whose samples end one by one, each with what it has come to by then.

    Attributes:
        problem: of the samples in the batch.
        at: where they stand; the caller moves them on.
        all_solved: whether all samples are known to have ended solved.
    """

    problem: Problem
    at: Place
    all_solved = False

    @abstractmethod
    def release(self, going: Tensor, late: Tensor) -> bool:
        """Let samples end, and say whether some go on, as far as is known.

        Args:
            going: those that go on, (samples in the batch,) booleans.
            late: those that are not solved, so that what ends among them is left over.
        """

    @abstractmethod
    def resting(self, move: Tensor) -> Tensor:
        """Return a move, (samples in the batch, ...), with 0 for samples that have ended."""

    @abstractmethod
    def others(self, met: Tensor) -> Tensor:
        """Return which samples in the batch go on and have not met a condition, its shape."""

    @abstractmethod
    def results(self) -> tuple[Tensor, ...]:
        """Return what all samples have come to."""

    @abstractmethod
    def finish(
        self, value: Tensor, solve: Callable[[Tensor | slice], tuple[Tensor, int]]
    ) -> tuple[Tensor, int]:
        """Return values, (samples, ...), with those of samples that are left over solved anew.

        Args:
            value: of all samples.
            solve: returns the values of some samples, and the steps it took.
        """


class Leaving(Unfinished[Problem, Place]):
    """A batch on a CPU: samples that have ended leave it as soon as enough of them have."""

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
        """Let samples end, and say whether some go on."""
        count = int(going.sum())
        if count < self._share * len(self._left):
            self.results()
            self._over.append(self._left[late & ~going])
            self.problem, self.at = self.problem.rows(going), self.at.rows(going)
            self._left = self._left[going]
        return count > 0

    def resting(self, move: Tensor) -> Tensor:
        """Return the move: those that have ended are gone, or few."""
        return move

    def others(self, met: Tensor) -> Tensor:
        """Return which samples have not met a condition."""
        return ~met

    def results(self) -> tuple[Tensor, ...]:
        """Return what all samples have come to."""
        for found, now in zip(self._found, self._result(self.at), strict=True):
            found[self._left] = now
        return self._found

    def finish(
        self, value: Tensor, solve: Callable[[Tensor | slice], tuple[Tensor, int]]
    ) -> tuple[Tensor, int]:
        """Return values with those of samples that are left over solved anew."""
        some = torch.cat([*self._over, self._left])
        if not len(some):
            return value, 0
        value[some], steps = solve(some)
        return value, steps


class Resting(Unfinished[Problem, Place]):
    """A batch on a GPU: all samples stay, because who leaves would have to be read."""

    def __init__(self, problem: Problem, at: Place, result: Result[Place]) -> None:
        """Begin with all samples, as `Leaving` does."""
        self.problem, self.at = problem, at
        self._result, self._found = result, result(at)
        first = self._found[0]
        self._going = torch.ones(len(first), dtype=torch.bool, device=first.device)
        self._over = torch.zeros_like(self._going)
        self._some_go, self._some_over = deferred.Late[None](), deferred.Late[None]()

    def release(self, going: Tensor, late: Tensor) -> bool:
        """Let samples end, and say whether some went on a few rounds before."""
        self.results()
        self._over = self._over | (self._going & late & ~going)
        self._going = self._going & going
        over, some = self._some_over.some(self._over), self._some_go.some(self._going)
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
        return torch.where(_beside(self._over | self._going, value), found, value), steps


def _beside(flags: Tensor, like: Tensor) -> Tensor:
    """Return a boolean for each sample as it stands beside a tensor."""
    return flags.reshape(-1, *(1,) * (like.ndim - 1))


def unfinished(
    problem: Problem, at: Place, result: Result[Place], share: float = 0.75
) -> Unfinished[Problem, Place]:
    """Return the batch that suits where its samples are, with the arguments of `Leaving`."""
    if deferred.stays_on_device(result(at)[0]):
        return Resting(problem, at, result)
    return Leaving(problem, at, result, share)
