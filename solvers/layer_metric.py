"""The metric in which a layer's weights are pulled to their previous values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from liftednet.penalties import Penalty
from liftednet.samples import Weights

_NOISE = 1e-9  # share of a covariance, below which a direction's variance may be rounding


class _Scales(NamedTuple):
    """What the steps between two looks have in common.

    Attributes:
        shares: of what is along each eigenvector, that which a step leaves out, (rank, 1).
        of_matrix: 1 / v, ().
        of_bias: 1 / (v + 1 / s), ().
        mean: mu / v, (inputs,).
    """

    shares: Tensor
    of_matrix: Tensor
    of_bias: Tensor
    mean: Tensor


@dataclass(frozen=True)
class Move:
    """A direction of one layer's weights, and how fast the linearized objective falls along it.

    Attributes:
        matrix: of W, up to its scale, (inputs, units).
        bias: of b, (units,), or None.
        scale: of the matrix, ().
        falls: the gradients times the directions, each up to a scale of its own, ().
        scales: of the falls, ().
    """

    matrix: Tensor
    bias: Tensor | None
    scale: Tensor
    falls: list[Tensor]
    scales: list[Tensor]

    def taken(self, layer: Weights, length: Tensor, scaled: Tensor) -> Weights:
        """Return weights moved by a length, (), in the memory of the direction.

        Args:
            layer: the weights.
            length: how far, ().
            scaled: the length times the scale of the matrix, ().
        """
        return Weights(self._matrix(layer, scaled), self._bias(layer, length))

    def _matrix(self, layer: Weights, scaled: Tensor) -> Tensor:
        return torch.addcmul(layer.matrix, self.matrix, scaled, value=-1, out=self.matrix)

    def _bias(self, layer: Weights, length: Tensor) -> Tensor | None:
        if layer.bias is None or self.bias is None:
            return layer.bias
        return torch.addcmul(layer.bias, self.bias, length, value=-1)


@dataclass(frozen=True)
class ProximalMove(Move):
    """A direction along which a step ends with the prox of a penalty, in the metric v I of rank 0.

    Attributes:
        bias: of the mean pre-activation, which the bias keeps from what the matrix does.
        mean: of the inputs, (inputs,).
        penalty: pi.
        counts: samples that share it.
    """

    mean: Tensor
    penalty: Penalty
    counts: float

    def taken(self, layer: Weights, length: Tensor, scaled: Tensor) -> Weights:
        """Return weights moved by a length, and the nearest to them that the penalty asks for."""
        share = scaled / self.counts
        matrix = self.penalty.prox(self._matrix(layer, scaled), cast(float, share))  # acts as one
        bias = self._bias(layer, length)
        if bias is not None:
            bias = torch.addmv(bias, (layer.matrix - matrix).T, self.mean)
        return Weights(matrix, bias)


def slope_of(moves: Sequence[Move]) -> Tensor:
    """Return how fast the linearized objective falls along moves together, ()."""
    falls = torch.stack([fall for move in moves for fall in move.falls])
    return falls.dot(torch.stack([scale for move in moves for scale in move.scales]))


class LayerMetric:
    """Running statistics of a layer's inputs, and the step that they precondition.

    With mean mu, variance v (of all entries) and covariance C of the inputs, all with exponential
    forgetting, and s the damping, the metric on [W; b] is v (I + C / (s v)) on centered inputs,
    (v + 1 / s) on the bias. C is kept by its leading eigenvectors, which one step of subspace
    iteration follows at every look. Without a bias, mu is 0 and C the second moment.

    Nothing here is read from a device, which a step would have to wait for.

    Attributes:
        state: mu, the eigenvectors, their values, v and how many looks there have been, weighed as
            they are forgotten. No look changes them in place.
        mean: of the inputs, (inputs,), 0 without a bias.
        variance: v, float64, ().
        blind: whether it needs to `begin` before sums about a mean can be formed.
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
        self._drawn = torch.linalg.qr(torch.randn(inputs, kept, generator=generator))[0]
        self.mean = torch.zeros(inputs)  # of the type of the first inputs or gradient
        self._vectors, self._values = self._drawn, torch.zeros(kept)
        self.variance = torch.tensor(variance, dtype=torch.float64)
        self._looks = torch.zeros((), dtype=torch.float64)
        self.blind = bias
        self._scales: tuple[float, _Scales] | None = None  # and the pull for which they hold

    @property
    def state(self) -> list[Tensor]:
        """The running statistics."""
        return [self.mean, self._vectors, self._values, self.variance, self._looks]

    @state.setter
    def state(self, state: Sequence[Tensor]) -> None:
        self.mean, self._vectors, self._values, self.variance, self._looks = state

    @property
    def tensors(self) -> list[Tensor]:
        """All that the next step depends on, once there has been one."""
        assert self._scales is not None  # of the last step
        return [*self.state, *self._scales[1]]

    @tensors.setter
    def tensors(self, tensors: Sequence[Tensor]) -> None:
        assert self._scales is not None
        self.state, self._scales = tensors[:5], (self._scales[0], _Scales(*tensors[5:]))

    def scaled_for(self, pull: float) -> bool:
        """Return whether the last step has left its scales, which hold for this pull."""
        return self._scales is not None and self._scales[0] == pull

    def recall(self, memory: Sequence[Any]) -> None:
        """Go back to a state of which the last two may be numbers."""
        *known, variance, looks = memory
        if looks > 0:
            numbers = (torch.as_tensor(x, dtype=torch.float64) for x in (variance, looks))
            self.state, self.blind, self._scales = [*known, *numbers], False, None

    def first_sums(self, inputs: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return how often inputs, (samples, inputs), count, and their sum."""
        return _mass(inputs, weights), _counted(inputs, weights).sum(0)

    def begin(self, mass: Tensor, total: Tensor) -> None:
        """Take the mean of the first inputs from their sums."""
        self.mean = (total / mass).where(mass > 0, 0.0)
        self.blind, self._scales = False, None

    def sums(self, inputs: Tensor, weights: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return what `look` needs of a batch, sums over samples about the mean so far.

        Args:
            inputs: (samples, inputs).
            weights: (samples,), how often each is there; None for 1.
        """
        self.mean, self._vectors, self._values, self._drawn = (
            part.to(inputs) for part in (self.mean, self._vectors, self._values, self._drawn)
        )
        centered = self.centered(inputs)
        counted = _counted(centered, weights)
        moved = counted.T @ (centered @ self._vectors)
        return _mass(inputs, weights), counted.sum(0), moved, (counted * centered).sum()

    def look(self, mass: Tensor, total: Tensor, moved: Tensor, squares: Tensor) -> None:
        """Update the statistics by the `sums` of a batch; one without mass changes nothing."""
        counts, before = mass > 0, self.state
        mass = mass.where(counts, 1.0)
        self._looks = self._memory * self._looks.to(mass.device) + 1
        share = 1 / self._looks
        total, moved, squares = total / mass, moved / mass, squares / mass
        if self._bias:  # the mean moves, and with it what the sums are about
            shift = share * total
            along = shift @ self._vectors
            moved = moved - shift.outer(total @ self._vectors - along) - total.outer(along)
            squares = squares - (2 - share) * share * total.dot(total)
            self.mean = self.mean + shift
        spread = (squares / len(total)).double()
        self.variance = self.variance.to(spread).lerp(spread, share)
        mixed = (1 - share) * self._vectors * self._values + share * moved
        found, upper = torch.linalg.qr(mixed)
        self._values = upper.diagonal().abs()
        digits = max(len(found) * torch.finfo(found.dtype).eps, _NOISE)
        least = digits * torch.linalg.vector_norm(self._values)
        self._values = self._values.where(self._values > least, 0.0)
        # What is left where the inputs have a lower rank is rounding: the next look begins anew.
        self._vectors = found.where(self._values > 0, self._drawn)
        self.state = [new.where(counts, old) for new, old in zip(self.state, before, strict=True)]
        self._scales = None

    def centered(self, inputs: Tensor) -> Tensor:
        """Return inputs less their running mean, (samples, inputs)."""
        return inputs - self.mean.to(inputs) if self._bias else inputs

    def centered_gradient(self, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return a gradient of W as it is on centered inputs, (inputs, units)."""
        if bias is None:
            return weight
        self.mean = self.mean.to(weight)  # once, also of a layer whose inputs nobody looks at
        return weight.addr(self.mean, bias, alpha=-1)

    def about(self, mean: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return a gradient of W on inputs less another mean as it is on inputs less this one."""
        if bias is None or mean is self.mean:
            return weight
        return weight.addr_((self.mean - mean).to(weight), bias, alpha=-1)

    def move(
        self,
        weight: Tensor,
        bias: Tensor | None,
        pull: float = 0.0,
        penalty: Penalty | None = None,
        counts: float = 1.0,
    ) -> Move:
        """Return the gradient times the inverse metric, of a penalty whose gradient it contains.

        Args:
            weight: the gradient of W on centered inputs, (inputs, units); overwritten.
            bias: the gradient of b, (units,), or None.
            pull: the curvature of a penalty whose gradient is in that of W. Inputs that vary less
                do not make the step longer: it would be all penalty, and the bias stand still.
            penalty: one whose gradient is not in that of W, with whose prox a step ends: in the
                metric v I, of rank 0. None where there is none.
            counts: samples that share it.
        """
        scales, fall = self._scales_for(pull, weight), torch.linalg.vector_norm(weight).square()
        if len(self._values):
            seen = self._vectors.T @ weight
            shrunk = scales.shares * seen
            fall = fall - seen.flatten().dot(shrunk.flatten())
            weight.addmm_(self._vectors, shrunk, alpha=-1)
        falls, found = [fall], [scales.of_matrix]
        if bias is not None:
            falls.append(bias.dot(bias))
            found.append(scales.of_bias)
            bias = bias * scales.of_bias
        if penalty is not None:
            return ProximalMove(
                weight, bias, scales.of_matrix, falls, found, self.mean, penalty, counts
            )
        if bias is not None:
            bias = torch.addmv(bias, weight.T, scales.mean, alpha=-1)
        return Move(weight, bias, scales.of_matrix, falls, found)

    def _scales_for(self, pull: float, like: Tensor) -> _Scales:
        if self._scales is None or self._scales[0] != pull:
            self._scales = pull, self._scaled(like, pull)
        return self._scales[1]

    def _scaled(self, like: Tensor, pull: float) -> _Scales:
        self._vectors, self._values = self._vectors.to(like), self._values.to(like)
        variance = self.variance.to(like.device).clamp(min=max(torch.finfo(like.dtype).tiny, pull))
        shares = self._values / (self._values + self._damping * variance)
        of_bias = 1 / (variance + 1 / self._damping)
        mean = self.mean.to(like) / variance
        return _Scales(shares.unsqueeze(1), (1 / variance).to(like), of_bias.to(like), mean)


def _counted(rows: Tensor, weights: Tensor | None) -> Tensor:
    return rows if weights is None else weights.unsqueeze(1) * rows


def _mass(rows: Tensor, weights: Tensor | None) -> Tensor:
    return rows.new_full((), len(rows)) if weights is None else weights.sum()
