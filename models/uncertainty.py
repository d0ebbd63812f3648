"""Inputs that are known up to a ball or a box, and the worst of it for a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from liftednet.errors import DeclarationError
from liftednet.layers import Input
from liftednet.layers.expression import value_of
from liftednet.network import Network
from liftednet.samples import Weights
from liftednet.validation import require_positive

from .block import Structure, row_weights
from .data import Data

__all__ = ["Ball", "Box"]

_STEPS = 3  # of Frank and Wolfe: .91 to .96 of the loss that thirty reach on the digits


@dataclass(frozen=True)
class Ball:
    """Rows of X known up to |delta| <= radius in the Euclidean norm, in the units of X.

    Lifted Neural Networks, section 9: training against the worst of it, as `uncertainty=`.

    Raises:
        DataError: radius is not positive.

    Example:
        >>> import torch
        >>> from liftednet.models.uncertainty import Ball
        >>> Ball(2.0).farthest(torch.tensor([[3.0, 4.0]]))
        tensor([[1.2000, 1.6000]])
    """

    radius: float

    def __post_init__(self) -> None:
        """Refuse a radius that is not positive."""
        require_positive("radius", self.radius)

    def farthest(self, slope: Tensor) -> Tensor:
        """Return argmax <slope, delta> of every row, (samples, features)."""
        size = torch.linalg.vector_norm(slope, dim=-1, keepdim=True)
        return self.radius * slope / size.clamp(min=torch.finfo(slope.dtype).tiny)


@dataclass(frozen=True)
class Box(Ball):
    """Entries of X known up to |delta| <= radius, in the units of X.

    Raises:
        DataError: radius is not positive.

    Example:
        >>> import torch
        >>> from liftednet.models.uncertainty import Box
        >>> Box(0.1).farthest(torch.tensor([[3.0, -4.0]]))
        tensor([[ 0.1000, -0.1000]])
    """

    def farthest(self, slope: Tensor) -> Tensor:
        """Return argmax <slope, delta> of every row, (samples, features)."""
        return self.radius * slope.sign()


def require_uncertainty(given: object, network: Network) -> None:
    """Refuse what is no ball or box, and networks whose losses have no worst rows here.

    Raises:
        DeclarationError: it cannot be trained with.
    """
    if not isinstance(given, Ball):
        raise DeclarationError(
            f"uncertainty must be a Ball(radius) or a Box(radius), got {given!r}."
        )
    if any(x.sequence or x.missing for x in network.inputs):
        raise DeclarationError(
            "uncertainty is for inputs that are seen whole: without sequences, and without missing "
            "entries."
        )
    if any(term.state is not None for term in network.terms):
        raise DeclarationError(
            "uncertainty is for losses on the last pre-activation, such as CrossEntropy or "
            "SquaredError, without output states."
        )


@dataclass(frozen=True)
class WorstRows:
    """The rows of a batch where the loss is largest within a ball or a box of each.

    max over delta of the loss at x + delta by steps of Frank and Wolfe: the linearized loss is
    largest at r g / |g|, or r sign(g), in closed form. Of one layer, two classes or one output
    the first step is exact: l(u + s) with s = r |w| in the dual norm (El Ghaoui and Lebret, 1997).

    Attributes:
        structure: of the network.
        uncertainty: the ball or the box, in the units of X.
        scales: of inputs that are standardized.
    """

    structure: Structure
    uncertainty: Ball
    scales: Mapping[Input, Tensor]

    def of(self, batch: Data, weights: Sequence[Weights]) -> Data:
        """Return the batch with the worst rows that three steps find."""
        inputs = self.structure.network.inputs
        given = {x: batch.values[x] for x in inputs}
        rows = given
        for step in range(_STEPS):
            share = 2 / (step + 2)
            ends = {
                x: given[x] + self._farthest(x, g) for x, g in self._slopes(batch, rows, weights)
            }
            rows = {x: torch.lerp(rows[x], ends[x], share) for x in inputs}
        return replace(batch, values={**batch.values, **rows})

    def _farthest(self, variable: Input, slope: Tensor) -> Tensor:
        scale = self.scales.get(variable, slope.new_ones(())).to(slope)
        return self.uncertainty.farthest(slope / scale) / scale

    @torch.enable_grad()
    def _slopes(self, batch: Data, rows: Mapping[Input, Tensor], weights: Sequence[Weights]) -> Any:
        """Return pairs of an input and the gradient of the loss of every row in it."""
        leaves = {x: row.detach().requires_grad_() for x, row in rows.items()}
        given = dict(zip(self.structure.parameters, weights, strict=True))
        values = self.structure.passed({**batch.values, **leaves, **given})
        total: Any = 0.0
        for term in self.structure.network.terms:
            y, u = batch.values[term.label], value_of(term.argument, values)
            losses = term.weight * term.divergence.values(y, u)
            known = row_weights(batch.values, y)
            total = total + (losses if known is None else losses.where(known > 0, 0.0)).sum()
        return list(zip(leaves, torch.autograd.grad(total, list(leaves.values())), strict=True))
