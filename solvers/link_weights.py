"""The weights of a state fit's links, to tell whether what was made of them still serves."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from liftednet.problems import StateFit


@dataclass(frozen=True)
class LinkWeights:
    """Weights as they once were.

    Attributes:
        tensors: a copy of each.
    """

    tensors: tuple[Tensor, ...]

    def are_those_of(self, problem: StateFit) -> bool:
        """Say whether a problem with as many links has these weights."""
        return all(
            old.dtype == link.weight.dtype and torch.equal(old, link.weight)
            for old, link in zip(self.tensors, problem.links, strict=True)
        )


def link_weights(problem: StateFit) -> LinkWeights:
    """Return the weights that the links of a problem have now."""
    return LinkWeights(tuple(link.weight.clone() for link in problem.links))
