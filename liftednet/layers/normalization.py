"""Normalization: what is standardized, and the scale and shift that follow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import prod

from torch import Tensor
from torch.nn import functional

from liftednet.layers.layer import Arguments, Layer, Shape
from liftednet.samples import Weights

_OF_BATCHES: ContextVar[bool] = ContextVar("statistics of batches", default=False)


@contextmanager
def batch_statistics() -> Iterator[None]:
    """Let batch normalization take the statistics of its batch, and follow them."""
    token = _OF_BATCHES.set(True)
    try:
        yield
    finally:
        _OF_BATCHES.reset(token)


@dataclass(eq=False)
class RunningStatistics:
    """Mean and variance of every channel, as torch.nn.BatchNorm keeps them.

    Attributes:
        mean: (channels,).
        variance: (channels,).
        batches: how many have been seen, ().
        momentum: share of a new batch, or None for the plain mean of all.
        follows: whether they follow the batches, as in train mode.
    """

    mean: Tensor
    variance: Tensor
    batches: Tensor
    momentum: float | None
    follows: bool

    def copied(self) -> RunningStatistics:
        """Return statistics of their own."""
        mean, variance, batches = self.memory()
        return RunningStatistics(mean, variance, batches, self.momentum, self.follows)

    def memory(self) -> list[Tensor]:
        """Return the numbers, which what follows does not change."""
        return [x.detach().clone() for x in (self.mean, self.variance, self.batches)]

    def recall(self, memory: Sequence[Tensor]) -> None:
        """Take numbers that `memory` has returned, in place."""
        for x, known in zip((self.mean, self.variance, self.batches), memory, strict=True):
            x.copy_(known)

    def share(self) -> float:
        """Count a batch, and return how much it counts."""
        self.batches += 1
        return 1 / float(self.batches) if self.momentum is None else self.momentum


@dataclass(frozen=True)
class BatchNormalization(Layer):
    """u = (x - mean) / sqrt(variance + eps), channel by channel; Ioffe and Szegedy, 2015.

    With given statistics that is affine. In a step on a minibatch the statistics are those of the
    batch, through which gradients go, and the running ones follow, as torch does it.

    Attributes:
        below: shape of x, channels first.
        statistics: of the channels.
        eps: added to the variance.
    """

    below: Shape
    statistics: RunningStatistics = field(repr=False)
    eps: float

    @property
    def affine(self) -> bool:  # type: ignore[override]
        """Whether the statistics are given."""
        return not self.statistics.follows

    def shape(self, *shapes: Shape) -> Shape:
        """Return the shape of x."""
        return self.below

    def value(self, arguments: Arguments, weights: Weights | None) -> Tensor:
        """Return the standardized x, (..., units)."""
        x, known = arguments[0], self.statistics
        follows = known.follows and _OF_BATCHES.get()
        running = (
            (known.mean, known.variance) if follows else (known.mean.to(x), known.variance.to(x))
        )
        share = known.share() if follows else 0.0
        found = functional.batch_norm(
            x.reshape(-1, *self.below), *running, training=follows, momentum=share, eps=self.eps
        )
        return found.reshape(x.shape)


def running_statistics(layers: Iterable[Layer]) -> list[RunningStatistics]:
    """Return the statistics that follow the batches, each once."""
    found = [x.statistics for x in layers if isinstance(x, BatchNormalization) and not x.affine]
    return list({id(known): known for known in found}.values())


@dataclass(frozen=True)
class Scale(Layer):
    """u = x w + b, entry by entry, w and b the same along some axes.

    Attributes:
        below: shape of x.
        spread: shape of w and b, with 1 along the axes on which they are the same.
        bias: whether there is b.
    """

    below: Shape
    spread: Shape
    bias: bool = True

    def shape(self, *shapes: Shape) -> Shape:
        """Return the shape of x."""
        return self.below

    def weight_shape(self, *shapes: Shape) -> tuple[int, int]:
        """Return (1, scales)."""
        return 1, prod(self.spread)

    def value(self, arguments: Arguments, weights: Weights | None) -> Tensor:
        """Return x w + b, (..., units)."""
        assert weights is not None  # it has weights
        x: Tensor = arguments[0]
        scale = weights.matrix.reshape(self.spread)
        found = x.reshape(-1, *self.below) * scale
        if weights.bias is not None:
            found = found + weights.bias.reshape(self.spread)
        return found.reshape(x.shape)
