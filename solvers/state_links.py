"""The links of a state fit, as its solvers share them: what they ask for, what was made of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from liftednet.problems import Link, StateFit
from liftednet.problems.state_fit import reach


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


@dataclass(frozen=True)
class OfLinks:
    """What was made of quadratic links, with them as they were.

    Attributes:
        weights: a copy of each W_k.
        scales: lam_k L_k / lam.
    """

    weights: tuple[Tensor, ...]
    scales: tuple[float, ...]

    def serves(self, problem: StateFit) -> bool:
        """Say whether a problem has these weights and these scales."""
        return self.scales == scales_of(problem) and all(
            old.dtype == link.weight.dtype and torch.equal(old, link.weight)
            for old, link in zip(self.weights, problem.links, strict=True)
        )


def kept(problem: StateFit) -> tuple[tuple[Tensor, ...], tuple[float, ...]]:
    """Return weights and scales as they are now, for `OfLinks`."""
    return tuple(link.weight.clone() for link in problem.links), scales_of(problem)


def largest_term(problem: StateFit, part: slice) -> float:
    """Return the largest entry of the `terms` for these samples, and 1."""
    return float(largest(terms(problem, part), 1.0))


def largest(terms: Iterable[Tensor], floor: float) -> Tensor:
    """Return the largest absolute value of an entry, at least a floor, as a float64 scalar.

    One term is held at a time, and the scalar stays where the terms are.
    """
    sizes = map(torch.Tensor.max, map(torch.abs, terms))
    return torch.stack([size.double() for size in sizes]).max().clamp(min=floor)


def terms(problem: StateFit, part: slice) -> Iterator[Tensor]:
    """Yield the reach of U and the links' V W' lam_k / lam for these samples, like Z each."""
    yield reach(problem.divergence.activation, problem.pre_activation[part])
    for link in problem.links:
        yield link.lam / problem.lam * (link.target[part].float() @ link.weight.float().T)
