"""The weights of a state fit's links, to tell whether what was made of them still serves."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from liftednet import deferred
from liftednet.problems import StateFit


@dataclass(frozen=True)
class LinkWeights:
    """Weights as they once were.

    Attributes:
        tensors: a copy of each; on a GPU, where comparing them would wait, each itself.
        versions: how often each had been changed in place, where it is the tensor itself.
    """

    tensors: tuple[Tensor, ...]
    versions: tuple[int, ...] | None

    def are_those_of(self, problem: StateFit) -> bool:
        """Say whether a problem with as many links has these weights, as far as can be known."""
        weights = [link.weight for link in problem.links]
        if self.versions is not None:
            same = all(new is old for new, old in zip(weights, self.tensors, strict=True))
            return same and _versions(weights) == self.versions
        return all(
            old.dtype == new.dtype and old.shape == new.shape and torch.equal(old, new)
            for old, new in zip(self.tensors, weights, strict=True)
        )


def link_weights(problem: StateFit) -> LinkWeights:
    """Return the weights that the links of a problem have now."""
    weights = tuple(link.weight for link in problem.links)
    if any(map(deferred.stays_on_device, weights)):
        return LinkWeights(weights, _versions(weights))
    return LinkWeights(tuple(weight.clone() for weight in weights), None)


def _versions(weights: tuple[Tensor, ...] | list[Tensor]) -> tuple[int, ...]:
    return tuple(-1 if weight.is_inference() else weight._version for weight in weights)
