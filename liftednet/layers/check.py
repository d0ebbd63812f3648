"""`check_layer`: whether a layer of one's own is what it says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from liftednet.errors import DeclarationError
from liftednet.layers.layer import Layer, Shape, columns, require_layer
from liftednet.maps import LinearMap
from liftednet.samples import Weights
from liftednet.validation import is_integer

_SAMPLES = 3
_SCALES = (1e-2, 1.0, 1e3)
_TOLERANCE = 1e-9


def check_layer(layer: Layer, *shapes: Shape, steps: int | None = None) -> None:
    """Refuse a layer that is not affine in each argument and in its weights.

    f(v + t (w - v)) = (1 - t) f(v) + t f(w), <A v, u> = <v, A'u>, and |A v|^2 within the bound,
    at random points of several sizes in float64.

    Args:
        layer: yours.
        shapes: of a sample of each argument.
        steps: of sequences, where the layer is for them.

    Raises:
        DeclarationError: the first of these that fails, with the argument and the point.

    Example:
        >>> from liftednet import DeclarationError, check_layer
        >>> from liftednet.layers import Layer
        >>> class Square(Layer):
        ...     def shape(self, x): return x
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
    layer: Layer, arguments: Sequence[Tensor], position: int, weights: Weights | None
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
