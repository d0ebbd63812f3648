"""Average pooling, which is linear in what it pools."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

from torch import Tensor
from torch.nn import functional

from liftednet.errors import DataError
from liftednet.layers.layer import Arguments, Layer, Shape, adjoint_of
from liftednet.maps import Given, LinearMap
from liftednet.samples import Weights
from liftednet.validation import require_count

_POOLINGS = {1: functional.avg_pool1d, 2: functional.avg_pool2d}


@dataclass(frozen=True)
class AveragePooling(Layer):
    """u = the mean of x over windows along one or two axes, channel by channel.

    Attributes:
        below: shape of x, (channels, positions along each axis).
        window: along each axis.
        stride: along each axis.

    Raises:
        DataError: a number is not positive, or the window does not fit into x.
    """

    below: Shape
    window: Shape
    stride: Shape

    def __post_init__(self) -> None:
        """Refuse a window that does not fit."""
        if len(self.below) != 1 + len(self.window) or len(self.window) not in _POOLINGS:
            raise DataError(
                f"pooling with the window {self.window} needs channels and as many axes below, got "
                f"the shape {self.below}."
            )
        for name, numbers in (("window", self.window), ("stride", self.stride)):
            for number in numbers:
                require_count(name, number, 1)
        if any(window > size for window, size in zip(self.window, self.below[1:], strict=True)):
            raise DataError(f"the window {self.window} does not fit into the shape {self.below}.")

    def shape(self, *shapes: Shape) -> Shape:
        """Return (channels, positions along each axis)."""
        sizes = zip(self.below[1:], self.window, self.stride, strict=True)
        return (self.below[0], *((size - window) // step + 1 for size, window, step in sizes))

    def value(self, arguments: Arguments, weights: Weights | None) -> Tensor:
        """Return the means, (..., units)."""
        return self._pooled(arguments[0])

    def _pooled(self, x: Tensor) -> Tensor:
        pool = _POOLINGS[len(self.window)]
        means: Tensor = pool(x.reshape(-1, *self.below), self.window, self.stride)
        return means.reshape(*x.shape[:-1], prod(self.shape()))

    def constant(self, position: int, arguments: Arguments, weights: Weights | None) -> None:
        """Return None: 0 for 0."""

    def map(self, position: int, arguments: Arguments, weights: Weights | None) -> LinearMap:
        """Return x -> the means."""
        width = arguments[0].shape[-1]
        overlaps = (ceil(size / step) for size, step in zip(self.window, self.stride, strict=True))

        def back(u: Tensor) -> Tensor:
            return adjoint_of(self._pooled, u.new_empty(*u.shape[:-1], width), u)

        # |A|_2^2 is at most the largest sum of a row, 1, times that of a column.
        return Given(self._pooled, back, prod(overlaps) / prod(self.window))
