"""The metric in which a layer's weights are pulled to their previous values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from liftednet.errors import SolverError
from liftednet.penalties import Penalty
from liftednet.products import product
from liftednet.samples import Weights

_NOISE = 1e-9  # share of a covariance, below which a direction's variance may be rounding


@dataclass(frozen=True)
class Move:
    """A direction of one layer's weights, and how fast the linearized objective falls along it.

    Attributes:
        matrix: of W, up to the scale, (inputs, units).
        bias: of b, (units,), or None.
        scale: of the matrix.
        slope: the gradient times the direction.
    """

    matrix: Tensor
    bias: Tensor | None
    scale: float
    slope: float

    def taken(self, layer: Weights, length: float) -> Weights:
        """Return weights moved by a length, in the memory of the direction."""
        scale = length * self.scale
        matrix = torch.sub(layer.matrix, self.matrix, alpha=scale, out=self.matrix)
        if layer.bias is None or self.bias is None:
            return Weights(matrix, layer.bias)
        return Weights(matrix, torch.sub(layer.bias, self.bias, alpha=length))


class LayerMetric:
    """Running statistics of a layer's inputs, and the step that they precondition.

    With mean mu, variance v (of all entries) and covariance C of the inputs, all with exponential
    forgetting, and s the damping, the metric on [W; b] is v (I + C / (s v)) on centered inputs,
    (v + 1 / s) on the bias. C is kept by its leading eigenvectors, which one step of subspace
    iteration follows at every look. Without a bias, mu is 0 and C the second moment.
    """

    def __init__(
        self,
        inputs: int,
        bias: bool,
        rank: int,
        damping: float,
        memory: float,
        generator: torch.Generator,
        variance: float = 1.0,
    ) -> None:
        """Begin with random directions.

        Args:
            inputs: columns of X.
            bias: whether the layer has one, which takes the mean of the inputs.
            rank: eigenvectors that are kept, at most a quarter of the inputs.
            damping: s; a larger one trusts the covariance less.
            memory: share that the past keeps at every look, in [0, 1).
            generator: of the directions.
            variance: v as long as no inputs have been seen.
        """
        kept = min(rank, inputs // 4)
        self._bias, self._damping, self._memory = bias, damping, memory
        self._mean = torch.zeros(inputs)  # of the type of the first inputs or gradient
        self._drawn = torch.linalg.qr(torch.randn(inputs, kept, generator=generator))[0]
        self._vectors = self._drawn
        self._values = torch.zeros(kept)
        self._variance, self._looks, self._unseen = 0.0, 0.0, variance

    def memory(self) -> list[Any]:
        """Return the running statistics, which no look changes in place."""
        return [self._mean, self._vectors, self._values, self._variance, self._looks]

    def recall(self, memory: list[Any]) -> None:
        """Go back to what `memory` has returned."""
        self._mean, self._vectors, self._values, self._variance, self._looks = memory

    @property
    def mean(self) -> Tensor:
        """The running mean of the inputs, (inputs,), 0 without a bias."""
        return self._mean

    @property
    def blind(self) -> bool:
        """Whether it needs to `begin` before sums about a mean can be formed."""
        return self._bias and not self._looks

    def first_sums(self, inputs: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return how often inputs, (samples, inputs), count, and their sum."""
        return _mass(inputs, weights), _counted(inputs, weights).sum(0)

    def begin(self, mass: Tensor, total: Tensor) -> None:
        """Take the mean of the first inputs from their sums."""
        if mass > 0:
            self._mean = total / mass

    def sums(self, inputs: Tensor, weights: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return what `look` needs of a batch, sums over samples about the mean so far.

        Args:
            inputs: (samples, inputs).
            weights: (samples,), how often each is there; None for 1.
        """
        self._mean, self._vectors, self._values, self._drawn = (
            part.to(inputs) for part in (self._mean, self._vectors, self._values, self._drawn)
        )
        centered = self.centered(inputs)
        counted = _counted(centered, weights)
        moved = counted.T @ (centered @ self._vectors)
        return _mass(inputs, weights), counted.sum(0), moved, (counted * centered).sum()

    def look(self, mass: Tensor, total: Tensor, moved: Tensor, squares: Tensor) -> None:
        """Update the statistics by the `sums` of a batch.

        Raises:
            SolverError: the squares of inputs overflow.
        """
        if not mass > 0:
            return
        looks = self._memory * self._looks + 1
        share = 1 / looks
        total, moved, squares = total / mass, moved / mass, squares / mass
        if self._bias:  # the mean moves, and with it what the sums are about
            shift = share * total
            along = shift @ self._vectors
            moved = moved - shift.outer(total @ self._vectors - along) - total.outer(along)
            squares = squares - (2 - share) * share * total.dot(total)
            self._mean = self._mean + shift
        spread = float(squares / len(total))
        if not spread < math.inf:
            raise SolverError("the variance of a layer's inputs is not finite: scale X.")
        self._looks = looks
        self._variance += share * (spread - self._variance)
        mixed = (1 - share) * self._vectors * self._values + share * moved
        found, upper = torch.linalg.qr(mixed)
        self._values = upper.diagonal().abs()
        digits = max(len(found) * torch.finfo(found.dtype).eps, _NOISE)
        least = digits * torch.linalg.vector_norm(self._values)
        self._values = self._values.where(self._values > least, 0.0)
        # What is left where the inputs have a lower rank is rounding: the next look begins anew.
        self._vectors = found.where(self._values > 0, self._drawn)

    def centered(self, inputs: Tensor) -> Tensor:
        """Return inputs less their running mean, (samples, inputs)."""
        return inputs - self._mean.to(inputs) if self._bias else inputs

    def centered_gradient(self, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return a gradient of W as it is on centered inputs, (inputs, units)."""
        return weight if bias is None else weight.addr(self._mean.to(weight), bias, alpha=-1)

    def about(self, mean: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return a gradient of W on inputs less another mean as it is on inputs less this one."""
        if bias is None or mean is self._mean:
            return weight
        return weight.addr_((self._mean - mean).to(weight), bias, alpha=-1)

    def move(self, weight: Tensor, bias: Tensor | None, pull: float = 0.0) -> Move:
        """Return the gradient times the inverse metric.

        Args:
            weight: the gradient of W on centered inputs, (inputs, units); overwritten.
            bias: the gradient of b, (units,), or None.
            pull: the curvature of a penalty whose gradient is in that of W. Inputs that vary less
                do not make the step longer: it would be all penalty, and the bias stand still.
        """
        variance = max(self._least_variance(weight), pull)
        fall = torch.dot(weight.flatten(), weight.flatten())
        if len(self._values):
            self._vectors, self._values = self._vectors.to(weight), self._values.to(weight)
            seen = product(self._vectors.T, weight)
            shrunk = (self._values / (self._values + self._damping * variance))[:, None] * seen
            fall -= (seen * shrunk).sum()
            weight.addmm_(self._vectors, shrunk, alpha=-1)
        if bias is None:
            return Move(weight, None, 1 / variance, float(fall / variance))
        shift = bias / (variance + 1 / self._damping)
        slope = float(fall) / variance + float(shift @ bias)
        shift = torch.addmv(shift, weight.T, self._mean.to(weight), alpha=-1 / variance)
        return Move(weight, shift, 1 / variance, slope)

    def _least_variance(self, like: Tensor) -> float:
        if not self._looks:  # of a layer that does not show its inputs
            return self._unseen
        return max(self._variance, float(torch.finfo(like.dtype).tiny))

    def held(self, layer: Weights, penalty: Penalty, t: float) -> Weights:
        """Return the proximal step of a penalty in the metric v I, of rank 0.

        The mean pre-activation is kept by the bias.

        Args:
            layer: where the step ends without the penalty.
            penalty: pi.
            t: the length of the step.
        """
        matrix = penalty.prox(layer.matrix, t / self._least_variance(self._mean))
        if layer.bias is None:
            return Weights(matrix, None)
        left = layer.matrix - matrix
        return Weights(matrix, torch.addmv(layer.bias, left.T, self._mean.to(left)))


def _counted(rows: Tensor, weights: Tensor | None) -> Tensor:
    return rows if weights is None else weights.unsqueeze(1) * rows


def _mass(rows: Tensor, weights: Tensor | None) -> Tensor:
    return rows.new_tensor(len(rows)) if weights is None else weights.sum()
