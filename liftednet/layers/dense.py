"""The dense layer, u = x W + b."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from liftednet.layers.layer import Arguments, Constant, Layer, Shape, columns, rows_of
from liftednet.maps import LinearMap, Times
from liftednet.samples import Weights
from liftednet.validation import require_count, require_flag


@dataclass(frozen=True)
class Dense(Layer):
    """u = x W + b; Lifted Neural Networks, eq. (1).

    Attributes:
        units: columns of W (inputs, units).
        bias: whether there is b, (units,).

    Raises:
        DataError: units is no positive integer.
    """

    units: int
    bias: bool = True
    plain = True

    def __post_init__(self) -> None:
        """Refuse a number of units that is not positive."""
        require_count("units", self.units, 1)
        require_flag("bias", self.bias)

    def shape(self, *shapes: Shape) -> Shape:
        """Return (units,)."""
        return (self.units,)

    def weight_shape(self, *shapes: Shape) -> tuple[int, int]:
        """Return (inputs, units)."""
        return columns(shapes[0]), self.units

    def value(self, arguments: Arguments, weights: Weights | None) -> Tensor:
        """Return x W + b, (..., units)."""
        assert weights is not None  # it has weights
        return weights.apply(arguments[0])

    def constant(self, position: int, arguments: Arguments, weights: Weights | None) -> Constant:
        """Return b, (units,), or None."""
        assert weights is not None  # it has weights
        return weights.bias

    def map(self, position: int, arguments: Arguments, weights: Weights | None) -> LinearMap:
        """Return x -> x W."""
        assert weights is not None  # it has weights
        return Times(weights.matrix)

    def weight_map(self, arguments: Arguments, weights: Weights) -> LinearMap:
        """Return [W; b] -> [x, 1] [W; b]."""
        return rows_of(arguments[0], self.bias)

    def inputs(self, arguments: Arguments) -> Tensor:
        """Return x, (samples, inputs)."""
        x: Tensor = arguments[0]
        return x.flatten(0, -2)
