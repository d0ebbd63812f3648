"""The metric in which a layer's weights are pulled to their previous values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from liftednet.deferred import at_least, reported


@dataclass(frozen=True)
class Move:
    """A direction of one layer's weights, and how fast the linearized objective falls along it.

    Attributes:
        matrix: of W, up to the scale, (inputs, units).
        bias: of b, (units,).
        scale: of the matrix.
        slope: the gradient times the direction.
    """

    matrix: Tensor
    bias: Tensor
    scale: float
    slope: float


class LayerMetric:
    """Running statistics of a layer's inputs, and the step that they precondition.

    With mean mu, variance v (of all entries) and covariance C of the inputs, all with exponential
    forgetting, and s the damping, the metric on [W; b] is v (I + C / (s v)) on centered inputs,
    (v + 1 / s) on the bias. C is kept by its leading eigenvectors, which one step of subspace
    iteration follows at every look.
    """

    def __init__(
        self, inputs: int, rank: int, damping: float, memory: float, generator: torch.Generator
    ) -> None:
        """Begin with random directions.

        Args:
            inputs: columns of X.
            rank: eigenvectors that are kept, at most a quarter of the inputs.
            damping: s; a larger one trusts the covariance less.
            memory: share that the past keeps at every look, in [0, 1).
            generator: of the directions.
        """
        kept = min(rank, inputs // 4)
        self._damping, self._memory = damping, memory
        self._mean = torch.zeros(inputs)
        self._vectors = torch.linalg.qr(torch.randn(inputs, kept, generator=generator))[0]
        self._values = torch.zeros(kept)
        self._variance = self._looks = 0.0

    def look(self, inputs: Tensor) -> None:
        """Update the statistics by a batch of inputs, (samples, inputs)."""
        self._mean, self._vectors, self._values = (
            part.to(inputs) for part in (self._mean, self._vectors, self._values)
        )
        self._looks = self._memory * self._looks + 1
        share = 1 / self._looks
        self._mean = self._mean.lerp(inputs.mean(0), share)
        centered = inputs - self._mean
        spread = reported(centered.square().mean())
        self._variance += share * (spread - self._variance)
        moved = centered.T @ (centered @ self._vectors) / len(inputs)
        mixed = (1 - share) * self._vectors * self._values + share * moved
        self._vectors, upper = torch.linalg.qr(mixed)
        self._values = upper.diagonal().abs()

    def centered(self, inputs: Tensor) -> Tensor:
        """Return inputs less their running mean, (samples, inputs)."""
        return inputs - self._mean

    def move(self, weight: Tensor, bias: Tensor) -> Move:
        """Return the gradient times the inverse metric; the gradient of W is overwritten.

        Args:
            weight: the gradient of W on centered inputs, (inputs, units).
            bias: the gradient of b, (units,).
        """
        variance = at_least(self._variance, torch.finfo(weight.dtype).tiny)
        fall = torch.dot(weight.flatten(), weight.flatten())
        if len(self._values):
            seen = self._vectors.T @ weight
            shrunk = (self._values / (self._values + self._damping * variance))[:, None] * seen
            fall -= (seen * shrunk).sum()
            weight.addmm_(self._vectors, shrunk, alpha=-1)
        shift = bias / (variance + 1 / self._damping)
        slope = reported(fall / variance + shift @ bias)
        return Move(weight, shift - self._mean @ weight / variance, 1 / variance, slope)
