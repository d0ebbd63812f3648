"""The dense layer, u = x W + b, of a whole sample or at each of its positions."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from torch import Tensor

from liftednet.layers.expression import Expression, Parameter, apply
from liftednet.layers.layer import Arguments, Constant, Layer, Shape, columns, weight_rows
from liftednet.maps import Composed, Given, LinearMap, Moved, Rows, Times
from liftednet.penalties import Penalty
from liftednet.samples import Design, squared_norm_of
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

    def value(self, arguments: Arguments, weights: Any) -> Tensor:
        """Return x W + b, (..., units)."""
        return weights.apply(arguments[0])

    def constant(self, position: int, arguments: Arguments, weights: Any) -> Constant:
        """Return b, (units,), or None."""
        return weights.bias

    def map(self, position: int, arguments: Arguments, weights: Any) -> LinearMap:
        """Return x -> x W."""
        return Times(weights.matrix)

    def weight_map(self, arguments: Arguments, weights: Any) -> LinearMap:
        """Return [W; b] -> [x, 1] [W; b]."""
        x: Tensor = arguments[0]
        if x.ndim == 2:
            return Rows(Design(x, self.bias))
        return Composed(
            Moved(
                lambda u: u.view(*x.shape[:-1], u.shape[-1]), lambda u: u.reshape(-1, u.shape[-1])
            ),
            Rows(Design(x.flatten(0, -2), self.bias)),
        )

    def inputs(self, arguments: Arguments) -> Tensor:
        """Return x, (samples, inputs)."""
        return arguments[0].flatten(0, -2)


@dataclass(frozen=True)
class DenseAtPositions(Layer):
    """u_t = x_t W + b at every position t of x: a dense layer over the last axis.

    Attributes:
        below: shape of x, (positions along some axes, inputs).
        units: columns of W (inputs, units).
        bias: whether there is b, (units,).
    """

    below: Shape
    units: int
    bias: bool = True

    def shape(self, *shapes: Shape) -> Shape:
        """Return (positions along the same axes, units)."""
        return (*self.below[:-1], self.units)

    def weight_shape(self, *shapes: Shape) -> tuple[int, int]:
        """Return (inputs, units)."""
        return self.below[-1], self.units

    def value(self, arguments: Arguments, weights: Any) -> Tensor:
        """Return x W + b, (..., positions * units)."""
        x: Tensor = arguments[0]
        return weights.apply(self.inputs(arguments)).reshape(*x.shape[:-1], self._together)

    def constant(self, position: int, arguments: Arguments, weights: Any) -> Constant:
        """Return b at every position, (positions * units,), or None."""
        return None if weights.bias is None else weights.bias.repeat(prod(self.below[:-1]))

    def map(self, position: int, arguments: Arguments, weights: Any) -> LinearMap:
        """Return x -> x W at every position."""
        matrix = weights.matrix

        def through(v: Tensor, factor: Tensor) -> Tensor:
            found = v.reshape(-1, len(factor)) @ factor.to(v.dtype)
            return found.reshape(*v.shape[:-1], prod(self.below[:-1]) * factor.shape[1])

        return Given(
            lambda v: through(v, matrix), lambda u: through(u, matrix.T), squared_norm_of(matrix)
        )

    def weight_map(self, arguments: Arguments, weights: Any) -> LinearMap:
        """Return [W; b] -> [x, 1] [W; b], the positions of a sample in one row again."""
        leading = arguments[0].shape[:-1]
        return weight_rows(
            self.inputs(arguments),
            self.bias,
            lambda rows: rows.reshape(*leading, self._together),
            lambda u: u.reshape(-1, self.units),
        )

    @property
    def _together(self) -> int:
        """Units at all positions; there may be no samples to tell it."""
        return prod(self.below[:-1]) * self.units

    def inputs(self, arguments: Arguments) -> Tensor:
        """Return x at all positions, (samples * positions, inputs)."""
        return arguments[0].reshape(-1, self.below[-1])


def dense(
    x: Expression,
    units: int,
    *,
    bias: bool = True,
    penalty: Penalty | None = None,
    weights: Parameter | None = None,
) -> Expression:
    """Return x W + b.

    Args:
        x: what is below, of any shape.
        units: columns of W.
        bias: whether there is b.
        penalty: on W; None for that of the model.
        weights: of another dense layer, to be shared.

    Example:
        >>> from liftednet import Network
        >>> from liftednet.layers import dense
        >>> up = dense(Network().input(3), 5)
        >>> up.shape, up.weights.shape, up.weights.bias
        ((5,), (3, 5), True)
    """
    return apply(Dense(units, bias), x, penalty=penalty, weights=weights)
