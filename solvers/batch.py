"""A batch of samples that end one by one, on a CPU and on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor


class Rows(Protocol):
    """Something that every sample has a row of."""

    def rows(self, keep: Tensor) -> Any:
        """Return the rows of some samples."""
        ...


Problem = TypeVar("Problem", bound=Rows)
Place = TypeVar("Place", bound=Rows)


class Unfinished(Generic[Problem, Place]):
    """A batch that samples leave as soon as enough of them have ended, each with what it came to.

    Attributes:
        problem: of the samples in the batch.
        at: where they stand; the caller moves them on.
    """

    def __init__(
        self,
        problem: Problem,
        at: Place,
        result: Callable[[Place], tuple[Tensor, ...]],
        share: float = 0.75,
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
        """Let samples end, and say whether some go on.

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

    def results(self) -> tuple[Tensor, ...]:
        """Return what all samples have come to."""
        for found, now in zip(self._found, self._result(self.at), strict=True):
            found[self._left] = now
        return self._found

    def unsolved(self) -> Tensor:
        """Return the numbers of the samples that ended unsolved, or have not ended."""
        return torch.cat([*self._over, self._left])
