"""Layers without weights that join, scale or cut what comes from below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from liftednet.errors import DataError
from liftednet.layers.layer import Arguments, Layer, Moving, Shape, columns
from liftednet.maps import Columns, Diagonal, Identity, LinearMap, Moved


@dataclass(frozen=True)
class Sum(Layer):
    """u = x + y + ..., as in a residual connection."""

    def shape(self, *shapes: Shape) -> Shape:
        """Return the one shape of all arguments.

        Raises:
            DataError: they differ.
        """
        return _one_shape("a sum", shapes)

    def value(self, arguments: Arguments, weights: Any) -> Tensor:
        """Return the sum."""
        total: Tensor = arguments[0]
        for x in arguments[1:]:
            total = total + x
        return total

    def map(self, position: int, arguments: Arguments, weights: Any) -> LinearMap:
        """Return the identity."""
        return Identity()


@dataclass(frozen=True)
class Shaped(Moving):
    """u = x, its row of units read in another shape.

    Attributes:
        sizes: of a sample.
    """

    sizes: Shape

    def shape(self, *shapes: Shape) -> Shape:
        """Return the other shape."""
        return self.sizes

    def map(self, position: int, arguments: Arguments, weights: Any) -> LinearMap:
        """Return the identity."""
        return Identity()


@dataclass(frozen=True)
class Concatenation(Layer):
    """u = [x, y, ...], the units of all arguments side by side."""

    def shape(self, *shapes: Shape) -> Shape:
        """Return the units of all arguments."""
        return (sum(map(columns, shapes)),)

    def value(self, arguments: Arguments, weights: Any) -> Tensor:
        """Return the arguments side by side."""
        return torch.cat(list(arguments), -1)

    def map(self, position: int, arguments: Arguments, weights: Any) -> LinearMap:
        """Return the place of one argument among the columns."""
        widths = [x.shape[-1] for x in arguments]
        first = sum(widths[:position])
        return Columns(slice(first, first + widths[position]), sum(widths))


@dataclass(frozen=True)
class Scaled(Layer):
    """u = scale x + shift, as in 1 - z.

    Attributes:
        scale: a number.
        shift: a number.
    """

    scale: float
    shift: float = 0.0

    def value(self, arguments: Arguments, weights: Any) -> Tensor:
        """Return scale x + shift."""
        x: Tensor = arguments[0]
        return self.scale * x + self.shift

    def map(self, position: int, arguments: Arguments, weights: Any) -> LinearMap:
        """Return x -> scale x."""
        return Diagonal(arguments[0].new_tensor(self.scale))


@dataclass(frozen=True)
class Part(Moving):
    """u = some of the units of x, as gates of one product or blocks of a pool are cut apart.

    Attributes:
        first: the first of them.
        last: the one after the last.
        step: from one to the next.
    """

    first: int
    last: int
    step: int = 1

    def shape(self, *shapes: Shape) -> Shape:
        """Return how many they are.

        Raises:
            DataError: x does not have these units.
        """
        if not 0 <= self.first < self.last <= columns(shapes[0]):
            raise DataError(
                f"units {self.first} to {self.last} cannot be cut out of {columns(shapes[0])}."
            )
        return (len(range(self.first, self.last, self.step)),)

    def map(self, position: int, arguments: Arguments, weights: Any) -> LinearMap:
        """Return the choice of the units."""
        place = slice(self.first, self.last, self.step)
        placed = Columns(place, arguments[0].shape[-1])
        return Moved(placed.adjoint, placed.apply, whole_rows=False, by_sample=True)


@dataclass(frozen=True)
class Product(Layer):
    """u = x * y, unit by unit, as in a gated cell: affine in each, not in both."""

    linear = False
    homogeneous = True

    def shape(self, *shapes: Shape) -> Shape:
        """Return the shape of both.

        Raises:
            DataError: they differ.
        """
        return _one_shape("a product", shapes)

    def value(self, arguments: Arguments, weights: Any) -> Tensor:
        """Return x * y."""
        return arguments[0] * arguments[1]

    def map(self, position: int, arguments: Arguments, weights: Any) -> LinearMap:
        """Return the product with the other factor."""
        return Diagonal(arguments[1 - position])


def _one_shape(what: str, shapes: Sequence[Shape]) -> Shape:
    if len(set(shapes)) > 1:
        raise DataError(f"{what} needs equal shapes, got {' and '.join(map(str, shapes))}.")
    return shapes[0]
