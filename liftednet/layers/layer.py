"""A layer: pre-activations that are affine in each argument and in the weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from liftednet.errors import DeclarationError
from liftednet.maps import Composed, LinearMap, Moved, Rows, Traced, pulled_back
from liftednet.samples import Design, Weights

Shape = tuple[int, ...]
Arguments = Sequence[Any]
Constant = Tensor | None


class Layer(ABC):
    """u = f(arguments, weights), affine in each argument, and in the weights, the others fixed.

    Subclass it and give `shape`, `value` and, for a layer with weights, `weight_shape`; the linear
    maps follow by autograd, and those that are given are faster. `check_layer` refuses one that
    is not affine. Tensors are (samples, units) or (steps, samples, units), units in one row:
    channels of an image stand one after another.

    Attributes:
        bias: whether the weights have a bias beside their matrix.
        linear: whether f is affine in all arguments together, so that a variable may stand in
            several of them.
        plain: whether f is x W + b of its one argument x.
        affine: whether f is affine in each argument; one that is not is for minibatches alone.

    Example:
        >>> from liftednet import Network, check_layer
        >>> from liftednet.layers import Layer, apply
        >>> class Scaling(Layer):
        ...     def shape(self, x): return x
        ...     def weight_shape(self, x): return 1, x[0]
        ...     def value(self, arguments, weights): return arguments[0] * weights.matrix[0]
        >>> check_layer(Scaling(), (4,))  # raises an error where it is not affine
        >>> apply(Scaling(), Network().input(4)).weights.shape
        (1, 4)
    """

    bias: bool = False
    linear: bool = True
    plain: bool = False
    affine: bool = True

    @abstractmethod
    def shape(self, *shapes: Shape) -> Shape:
        """Return the shape of a sample of u, from those of the arguments.

        Raises:
            DataError: the shapes do not fit.
        """

    def weight_shape(self, *shapes: Shape) -> tuple[int, int] | None:
        """Return (rows, columns) of the weight matrix, or None for a layer without weights."""
        return None

    @abstractmethod
    def value(self, arguments: Arguments, weights: Weights | None) -> Tensor:
        """Return u, (..., units)."""

    def map(self, position: int, arguments: Arguments, weights: Weights | None) -> LinearMap:
        """Return the linear part of f in one argument, the others and the weights given."""

        def function(v: Tensor) -> Tensor:
            others = [x.to(v.dtype) if isinstance(x, Tensor) else x for x in arguments]
            given = None if weights is None else weights.to(v)
            return self.value([*others[:position], v, *others[position + 1 :]], given)

        return Traced(function, arguments[position])

    def constant(self, position: int, arguments: Arguments, weights: Weights | None) -> Constant:
        """Return f where one argument is 0, (units,) or (..., units); None where that is 0."""
        zero = torch.zeros_like(arguments[position])
        return self.value([*arguments[:position], zero, *arguments[position + 1 :]], weights)

    def weight_map(self, arguments: Arguments, weights: Weights) -> LinearMap:
        """Return the linear part of f in [W; b], the arguments given."""

        def function(stacked: Tensor) -> Tensor:
            given = [x.to(stacked.dtype) if isinstance(x, Tensor) else x for x in arguments]
            return self.value(given, weights.like(stacked))

        return Traced(function, weights.stacked())

    def inputs(self, arguments: Arguments) -> Tensor | None:
        """Return X of a layer whose weights see u = [X, 1] [W; b], (samples, inputs), or None.

        The metric in which minibatches move weights is made of it.
        """
        return None

    @property
    def variance(self) -> float:
        """Mean square of what a weight is multiplied by, where `inputs` does not tell."""
        return 1.0


def require_layer(layer: object) -> None:
    """Raise `DeclarationError` unless it is a layer, an object and no class."""
    if not isinstance(layer, Layer):
        raise DeclarationError(
            f"a Layer object is needed, such as Dense(3), got {layer!r}"
            f"{': make one of the class' if isinstance(layer, type) else ''}."
        )


def columns(shape: Shape) -> int:
    """Return how many units a shape has."""
    return prod(shape)


def rows_of(x: Tensor, bias: bool) -> LinearMap:
    """Return the map [W; b] -> x W + b for x (samples, inputs) or (steps, samples, inputs)."""
    rows = Rows(Design(x.flatten(0, -2), bias))
    if x.ndim == 2:
        return rows
    leading = x.shape[:-1]
    return Composed(
        Moved(lambda u: u.view(*leading, u.shape[-1]), lambda u: u.reshape(-1, u.shape[-1])), rows
    )


def adjoint_of(function: Any, like: Tensor, u: Tensor) -> Tensor:
    """Return A'u of a linear torch function, for v of the shape of a tensor in the type of u."""
    with torch.enable_grad():
        point = torch.zeros(like.shape, dtype=u.dtype, device=u.device).requires_grad_()
        value = function(point)
    return pulled_back([value], [point], [u])[0]
