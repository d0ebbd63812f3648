"""Layers of torch networks: any map of tensors, embeddings, and normalization."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import prod
from typing import Any

from torch import Tensor
from torch.nn import functional

from liftednet.errors import DataError
from liftednet.layers.layer import Arguments, Layer, Shape

_OF_BATCHES: ContextVar[bool] = ContextVar("statistics of batches", default=False)


@dataclass(frozen=True)
class Layout:
    """How a tensor holds samples: along one axis, `factor` entries of it for each of them.

    Rows are (samples, units), in the order of the tensor once the samples stand first. A tensor
    without samples, such as a table of positions, is the same for each.

    Attributes:
        sizes: of the tensor, with 1 where the samples stand.
        axis: where they stand, or None.
        factor: entries of that axis for each sample.
    """

    sizes: Shape
    axis: int | None = 0
    factor: int = 1

    @property
    def shape(self) -> Shape:
        """The shape of a sample."""
        if self.axis is None:
            return self.sizes or (1,)
        merged = (self.factor,) if self.factor > 1 else ()
        return (*self.sizes[: self.axis], *merged, *self.sizes[self.axis + 1 :]) or (1,)

    @property
    def units(self) -> int:
        """How many entries a sample has."""
        return prod(self.shape)

    def pack(self, tensor: Tensor, samples: int) -> Tensor:
        """Return a tensor as rows, (samples, units)."""
        if self.axis is None:
            return tensor.reshape(1, -1).expand(samples, -1)
        return tensor.unflatten(self.axis, (samples, self.factor)).movedim(self.axis, 0).flatten(1)

    def unpack(self, rows: Tensor) -> Tensor:
        """Return rows (samples, units) as the tensor."""
        if self.axis is None:
            return rows[0].reshape(self.sizes)
        before, after = self.sizes[: self.axis], self.sizes[self.axis + 1 :]
        apart = rows.reshape(len(rows), *before, self.factor, *after).movedim(0, self.axis)
        return apart.flatten(self.axis, self.axis + 1)


@dataclass(frozen=True)
class Mapped(Layer):
    """u = f(x, y, ...), any torch function, differentiated by autograd.

    Attributes:
        function: f, of tensors in the given layouts.
        below: the layouts of its arguments.
        above: the layout of u.
        name: what it is called where it is shown.
        linear: whether f is affine in all arguments together.
        affine: whether f is affine in each argument: what is not is for minibatches alone.
    """

    function: Callable[..., Any] = field(repr=False)
    below: tuple[Layout, ...] = field(repr=False)
    above: Layout = field(repr=False)
    name: str
    linear: bool = True
    affine: bool = True

    def shape(self, *shapes: Shape) -> Shape:
        """Return the shape of a sample of u."""
        return self.above.shape

    def value(self, arguments: Arguments, weights: Any) -> Tensor:
        """Return f, (..., units)."""
        leading = arguments[0].shape[:-1]
        rows = [x.reshape(-1, x.shape[-1]) for x in arguments]
        given = [layout.unpack(x) for layout, x in zip(self.below, rows, strict=True)]
        found = self.above.pack(self.function(*given), len(rows[0]))
        return found.reshape(*leading, found.shape[-1])


@dataclass(frozen=True)
class Held(Layer):
    """u = weights by themselves, the same for every sample of an argument that only counts them.

    Attributes:
        sizes: of the weights as torch has them.
        by_position: whether the last axis is added to one position each, as learned places are.
    """

    sizes: Shape
    by_position: bool = False

    @property
    def variance(self) -> float:
        """Share of the positions that an entry is added to."""
        return 1 / max(1, prod(self.sizes[:-1])) if self.by_position else 1.0

    def shape(self, *shapes: Shape) -> Shape:
        """Return the sizes."""
        return self.sizes or (1,)

    def weight_shape(self, *shapes: Shape) -> tuple[int, int]:
        """Return (entries of one row of the weights, rows), torch's layout turned."""
        return prod(self.sizes[1:]), self.sizes[0] if self.sizes else 1

    def value(self, arguments: Arguments, weights: Any) -> Tensor:
        """Return the weights, (..., units)."""
        return weights.matrix.T.reshape(-1).expand(*arguments[0].shape[:-1], -1)

    def constant(self, position: int, arguments: Arguments, weights: Any) -> Tensor:
        """Return the weights, (units,)."""
        return weights.matrix.T.reshape(-1)


@dataclass(frozen=True)
class Embedding(Layer):
    """u = rows of a table, W' of torch's, at the numbers in x.

    Attributes:
        sizes: of the table, (entries, features).
        padding: an entry that is not trained, or None.
    """

    sizes: tuple[int, int]
    padding: int | None = None
    affine = False

    @property
    def variance(self) -> float:
        """Share of the numbers that ask for an entry, were all as frequent."""
        return 1 / self.sizes[0]

    def shape(self, *shapes: Shape) -> Shape:
        """Return (numbers, features)."""
        return (*shapes[0], self.sizes[1])

    def weight_shape(self, *shapes: Shape) -> tuple[int, int]:
        """Return (features, entries)."""
        return self.sizes[1], self.sizes[0]

    def value(self, arguments: Arguments, weights: Any) -> Tensor:
        """Return the rows, (..., numbers * features)."""
        x: Tensor = arguments[0]
        numbers = x.detach().round().long()
        try:
            found = functional.embedding(numbers, weights.matrix.T, self.padding)
        except IndexError as error:
            raise DataError(
                f"an embedding of {self.sizes[0]} entries takes whole numbers from 0 to "
                f"{self.sizes[0] - 1}, got {int(numbers.min())} to {int(numbers.max())}."
            ) from error
        return found.flatten(-2).reshape(*x.shape[:-1], x.shape[-1] * found.shape[-1])


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

    def value(self, arguments: Arguments, weights: Any) -> Tensor:
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

    def value(self, arguments: Arguments, weights: Any) -> Tensor:
        """Return x w + b, (..., units)."""
        x: Tensor = arguments[0]
        scale = weights.matrix.reshape(self.spread)
        found = x.reshape(-1, *self.below) * scale
        if weights.bias is not None:
            found = found + weights.bias.reshape(self.spread)
        return found.reshape(x.shape)
