"""The product of two variables, unit by unit: what makes a cell gated."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from liftednet.errors import DataError
from liftednet.layers.layer import Arguments, Layer, Shape
from liftednet.maps import Diagonal, LinearMap
from liftednet.samples import Weights


@dataclass(frozen=True)
class Product(Layer):
    """u = x * y, unit by unit: affine in each, not in both."""

    linear = False

    def shape(self, *shapes: Shape) -> Shape:
        """Return the shape of both.

        Raises:
            DataError: they differ.
        """
        if shapes[0] != shapes[1]:
            raise DataError(f"a product needs equal shapes, got {shapes[0]} and {shapes[1]}.")
        return shapes[0]

    def value(self, arguments: Arguments, weights: Weights | None) -> Tensor:
        """Return x * y."""
        product: Tensor = arguments[0] * arguments[1]
        return product

    def constant(self, position: int, arguments: Arguments, weights: Weights | None) -> None:
        """Return None: 0 for 0."""

    def map(self, position: int, arguments: Arguments, weights: Weights | None) -> LinearMap:
        """Return the product with the other factor."""
        return Diagonal(arguments[1 - position])
