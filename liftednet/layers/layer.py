"""A layer: pre-activations that are affine in each argument and in the weights, and its check."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from liftednet.errors import DeclarationError
from liftednet.maps import Composed, Function, Given, LinearMap, Moved, Rows, Traced, adjoint_of
from liftednet.samples import Design, Weights
from liftednet.validation import is_integer

_SAMPLES = 3
_SCALES = (1e-2, 1.0, 1e3)  # of the points at which a layer is looked at
_TOLERANCE = 1e-9

Shape = tuple[int, ...]
Arguments = Sequence[Any]
Constant = Tensor | None


class Layer(ABC):
    """u = f(arguments, weights), affine in each argument, and in the weights, the others fixed.

    Subclass it and give `value`, `shape` where it changes and, for a layer with weights,
    `weight_shape`; the linear maps follow by autograd, and those that are given are faster.
    `check_layer` refuses one that is not affine. Tensors are (samples, units) or (steps, samples,
    units), units in one row: channels of an image stand one after another.

    Attributes:
        bias: whether the weights have a bias beside their matrix.
        linear: whether f is affine in all arguments together, so that a variable may stand in
            several of them.
        plain: whether f is x W + b of its one argument x.
        affine: whether f is affine in each argument; one that is not is for minibatches alone.
        homogeneous: whether f is 0 where an argument is.
        sequence: whether u has steps; None where that is as in the arguments.
        initial_steps: how many steps more than the arguments u has before the first of the data.

    Example:
        >>> from liftednet import Network
        >>> from liftednet.layers import check_layer
        >>> from liftednet.layers import Layer, apply
        >>> class Scaling(Layer):
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
    homogeneous: bool = False
    sequence: bool | None = None
    initial_steps: int = 0

    def shape(self, *shapes: Shape) -> Shape:
        """Return the shape of a sample of u, from those of the arguments; the first if not given.

        Raises:
            DataError: the shapes do not fit.
        """
        return shapes[0]

    def weight_shape(self, *shapes: Shape) -> tuple[int, int] | None:
        """Return (rows, columns) of the weight matrix, or None for a layer without weights."""
        return None

    @abstractmethod
    def value(self, arguments: Arguments, weights: Any) -> Tensor:
        """Return u, (..., units)."""

    def map(self, position: int, arguments: Arguments, weights: Any) -> LinearMap:
        """Return the linear part of f in one argument, the others and the weights given."""

        def function(v: Tensor) -> Tensor:
            others = [x.to(v.dtype) if isinstance(x, Tensor) else x for x in arguments]
            given = None if weights is None else weights.to(v)
            return self.value([*others[:position], v, *others[position + 1 :]], given)

        return Traced(function, arguments[position])

    def constant(self, position: int, arguments: Arguments, weights: Any) -> Constant:
        """Return f where one argument is 0, (units,) or (..., units); None where that is 0."""
        if self.homogeneous:
            return None
        zero = torch.zeros_like(arguments[position])
        return self.value([*arguments[:position], zero, *arguments[position + 1 :]], weights)

    def weight_map(self, arguments: Arguments, weights: Any) -> LinearMap:
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


class Moving(Layer):
    """u = entries of one argument at other places; give `map`, and `shape` where it changes."""

    homogeneous = True

    def value(self, arguments: Arguments, weights: Any) -> Tensor:
        """Return u, (..., units)."""
        return self.map(0, arguments, weights).apply(arguments[0])


def weight_rows(x: Tensor, bias: bool, forth: Function, back: Function) -> LinearMap:
    """Return the map [W; b] -> x W + b, its rows moved to where they stand in u.

    Args:
        x: (rows, inputs).
        bias: whether there is b.
        forth: makes u of the rows.
        back: makes rows of u.
    """
    return Composed(Moved(forth, back, whole_rows=False), Rows(Design(x, bias)))


def by_autograd(forth: Function, width: int, bound: float) -> LinearMap:
    """Return a linear map of every sample, (..., width), whose adjoint is that of autograd."""
    return Given(forth, lambda u: adjoint_of(forth, u.new_empty(*u.shape[:-1], width), u), bound)


def check_layer(layer: Layer, *shapes: Shape, steps: int | None = None) -> None:
    """Refuse a layer that is not affine in each argument and in its weights.

    f(v + t (w - v)) = (1 - t) f(v) + t f(w), <A v, u> = <v, A'u>, and |A v|^2 within the bound,
    at random points of several sizes in float64; and a sample alone has the value that it has
    among others.

    Args:
        layer: yours.
        shapes: of a sample of each argument.
        steps: of sequences, where the layer is for them.

    Raises:
        DeclarationError: the first of these that fails, with the argument and the point.

    Example:
        >>> from liftednet.errors import DeclarationError
        >>> from liftednet.layers import check_layer
        >>> from liftednet.layers import Layer
        >>> class Square(Layer):
        ...     def value(self, arguments, weights): return arguments[0] ** 2
        >>> try: check_layer(Square(), (4,))
        ... except DeclarationError as error: print("is not affine" in str(error))
        True
    """
    require_layer(layer)
    if not shapes or not all(
        isinstance(x, tuple | list) and x and all(map(is_integer, x)) for x in shapes
    ):
        raise DeclarationError(f"check_layer needs shapes such as (3,) or (1, 8, 8), got {shapes}.")
    generator = torch.Generator().manual_seed(0)
    leading = (_SAMPLES,) if steps is None else (steps, _SAMPLES)

    def drawn(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    arguments = [drawn(*leading, columns(shape)) for shape in shapes]
    wanted, weights = layer.weight_shape(*shapes), None
    if wanted is not None:
        weights = Weights(drawn(*wanted), drawn(wanted[1]) if layer.bias else None)
    result = layer.value(arguments, weights)
    expected = (*leading, columns(layer.shape(*shapes)))
    if tuple(result.shape) != expected:
        raise DeclarationError(
            f"{layer} says that it has shape {expected} and gives {tuple(result.shape)}."
        )
    alone = layer.value([x[..., :1, :] for x in arguments], weights)
    if not torch.allclose(alone, result[..., :1, :]):
        raise DeclarationError(f"{layer} mixes samples: of one alone it gives another value.")
    for position in range(len(arguments)):
        _refuse_bad(
            f"{layer}, argument {position},",
            _in_one(layer, arguments, position, weights),
            layer.map(position, arguments, weights),
            arguments[position],
            drawn,
        )
    if weights is not None:
        _refuse_bad(
            f"{layer}, its weights,",
            lambda v: layer.value(arguments, weights.like(v)),
            layer.weight_map(arguments, weights),
            weights.stacked(),
            drawn,
        )


def _in_one(
    layer: Layer, arguments: Sequence[Tensor], position: int, weights: Any
) -> Callable[[Tensor], Tensor]:
    def function(v: Tensor) -> Tensor:
        return layer.value([*arguments[:position], v, *arguments[position + 1 :]], weights)

    return function


def _refuse_bad(
    name: str,
    function: Callable[[Tensor], Tensor],
    linear: LinearMap,
    like: Tensor,
    drawn: Callable[..., Tensor],
) -> None:
    zero = function(torch.zeros_like(like))
    for scale in _SCALES:
        v, w = (scale * drawn(*like.shape) for _ in range(2))
        between = function(0.3 * v + 0.7 * w)
        straight = 0.3 * function(v) + 0.7 * function(w)
        _refuse_far(f"{name} is not affine", between, straight, (v, w))
        applied = linear.apply(v)
        moved = function(v) - zero
        _refuse_far(f"{name} has a linear map that is not its own", applied, moved, (v,))
        u = drawn(*applied.shape)
        pair = (applied * u).sum(), (v * linear.adjoint(u).view_as(v)).sum()
        _refuse_far(f"{name} has an adjoint that is not that of its map", *pair, (v, u))
        longest = float(applied.square().sum() / v.square().sum())
        if longest > linear.squared_norm * (1 + 1e-6):
            raise DeclarationError(
                f"{name} has a squared norm of at least {longest:.6g}, and its bound is "
                f"{linear.squared_norm:.6g}, at {_shown((v,))}."
            )


def _refuse_far(what: str, found: Tensor, wanted: Tensor, at: Sequence[Tensor]) -> None:
    scale = float(torch.stack([found.abs().max(), wanted.abs().max()]).max())
    off = float((found - wanted).abs().max())
    if not off <= _TOLERANCE * max(scale, 1e-300):
        raise DeclarationError(f"{what}: off by {off:.3g} of {scale:.3g} at {_shown(at)}.")


def _shown(points: Sequence[Tensor]) -> str:
    return " and ".join(
        f"[{', '.join(f'{x:.4g}' for x in point.flatten()[:4].tolist())}, ...]" for point in points
    )
