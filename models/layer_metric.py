"""The metric in which a layer's weights are pulled to their previous values."""

from __future__ import annotations

import torch
from torch import Tensor


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
        spread = float(centered.square().mean())
        self._variance += share * (spread - self._variance)
        moved = centered.T @ (centered @ self._vectors) / len(inputs)
        mixed = (1 - share) * self._vectors * self._values + share * moved
        self._vectors, upper = torch.linalg.qr(mixed)
        self._values = upper.diagonal().abs()

    def direction(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient (inputs, units), (units,) times the inverse metric."""
        variance = max(self._variance, torch.finfo(weight.dtype).tiny)
        damped = self._damping * variance
        centered = torch.addr(weight, self._mean, bias, alpha=-1)
        shrink = self._values / (self._values + damped)
        seen = shrink.unsqueeze(1) * (self._vectors.T @ centered)
        direction = torch.addmm(centered, self._vectors, seen, alpha=-1) / variance
        return direction, bias / (variance + 1 / self._damping) - self._mean @ direction
