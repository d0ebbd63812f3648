"""The links of a state fit, as its solvers share them, and the batch that its samples leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import reduce
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

from liftednet.problems import Link, StateFit
from liftednet.problems.state_fit import reach
from liftednet.products import square_of_rows


class Rows(Protocol):
    """Something that every sample has a row of."""

    def rows(self, keep: Tensor) -> Any:
        """Return the rows of some samples."""
        ...


class OfSamples:
    """A dataclass of tensors that all have a row for every sample."""

    def rows(self, keep: Tensor) -> Self:
        """Return what it is of some of the samples."""
        parts = (getattr(self, part.name)[keep] for part in fields(self))  # type: ignore[arg-type]
        return type(self)(*parts)


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


def states_refusal(problem: StateFit, lipschitz: bool = True) -> str | None:
    """Return why a state fit is none below links through matrices, or None.

    Args:
        problem: the state fit.
        lipschitz: whether a Lipschitz constant of the activation is asked for.
    """
    activation = problem.divergence.activation
    if lipschitz and activation.lipschitz is None:
        return f"it needs a Lipschitz constant of {activation!r}"
    if not problem.links:
        return "it needs a link"
    if not problem.matrices:
        return "it needs links through a matrix that all samples share"
    return None


def quadratic(problem: StateFit) -> bool:
    """Say whether all links have a quadratic divergence."""
    return all(link.divergence.quadratic for link in problem.links)


def columns_above(problem: StateFit) -> int:
    """Return the number of pre-activations that the links see."""
    return sum(link.weight.shape[1] for link in problem.links)


def curvature_of(link: Link) -> float:
    """Return L_k of a quadratic link."""
    smoothness = link.divergence.smoothness
    assert smoothness is not None  # a quadratic has one
    return smoothness


def scales_of(problem: StateFit) -> tuple[float, ...]:
    """Return lam_k L_k / lam of the links."""
    return tuple(link.lam * curvature_of(link) / problem.lam for link in problem.links)


def hessian_of(problem: StateFit) -> Tensor:
    """Return the sum of scale_k W_k W_k', (units, units), float64, of links that are quadratic."""
    pairs = zip(problem.links, scales_of(problem), strict=True)
    parts = (square_of_rows(link.weight.double()).mul_(scale) for link, scale in pairs)
    none = problem.pre_activation.new_zeros(problem.units, problem.units, dtype=torch.float64)
    return reduce(torch.Tensor.add_, parts, none)


def pulled(lam: float, u: Tensor, links: Iterable[Link]) -> Tensor:
    """Return lam U + the sum of lam_k (V_k - grad R_k(C_k)) W_k', of links that are quadratic.

    That is minus the gradient of the fit without Phi at Z = 0, (samples, units).
    """
    pull = lam * u
    for link in links:
        wanted = link.target - link.divergence.link_gradient(link.offset).expand_as(link.target)
        pull = torch.addmm(pull, wanted, link.weight.T, alpha=link.lam)
    return pull


def row_scales(problem: StateFit, part: slice) -> Tensor:
    """Return the largest of 1, the reach of U and the links' V W' lam_k / lam, (samples,)."""
    u = problem.pre_activation[part]
    found = reach(problem.divergence.activation, u).amax(1).clamp(min=1.0)
    for link in problem.links:
        rows = link.rows(part)
        asked = link.lam / problem.lam * rows.map.adjoint(rows.target).abs().amax(1)
        found = torch.maximum(found, asked)
    return found
