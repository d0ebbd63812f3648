"""Layers as functions of expressions: what networks are written in."""

from __future__ import annotations

from typing import Any

from liftednet.errors import DataError
from liftednet.layers.convolution import Convolution
from liftednet.layers.dense import Dense
from liftednet.layers.expression import TIME, Expression, Parameter, apply, as_expression
from liftednet.layers.join import Concatenation
from liftednet.layers.pooling import AveragePooling
from liftednet.layers.time import Delay, Early, First, Late, Turn
from liftednet.penalties import Penalty

Sizes = int | tuple[int, ...]


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
    """
    return apply(Dense(units, bias), x, penalty=penalty, weights=weights)


def convolution(
    x: Expression,
    channels: int,
    window: Sizes,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    bias: bool = True,
    penalty: Penalty | None = None,
    weights: Parameter | None = None,
) -> Expression:
    """Return x convolved over its axes, as torch.nn.Conv1d and Conv2d do.

    Args:
        x: of shape (channels, positions) or (channels, rows, columns).
        channels: of the result.
        window: size of the kernel, one number or one for each axis.
        stride: likewise.
        padding: likewise.
        dilation: likewise.
        groups: of channels, each of which sees its own share of those below.
        bias: whether there is one for each channel.
        penalty: on the kernel; None for that of the model.
        weights: of another convolution, to be shared.

    Raises:
        DataError: the window does not fit into x.
    """
    axes = len(as_expression(x).shape) - 1
    layer = Convolution(
        x.shape,
        channels,
        _sizes("window", window, axes),
        _sizes("stride", stride, axes),
        _sizes("padding", padding, axes),
        bias,
        _sizes("dilation", dilation, axes),
        groups,
    )
    return apply(layer, x, penalty=penalty, weights=weights)


def average_pooling(x: Expression, window: Sizes, *, stride: Sizes | None = None) -> Expression:
    """Return the means of x over windows, channel by channel.

    Args:
        x: of shape (channels, positions) or (channels, rows, columns).
        window: one number, or one for each axis.
        stride: likewise; None for the window.

    Raises:
        DataError: the window does not fit into x.
    """
    axes = len(as_expression(x).shape) - 1
    sizes = _sizes("window", window, axes)
    steps = sizes if stride is None else _sizes("stride", stride, axes)
    return apply(AveragePooling(x.shape, sizes, steps), x)


def concatenate(*arguments: Expression) -> Expression:
    """Return the units of all arguments side by side."""
    return (
        as_expression(arguments[0]) if len(arguments) == 1 else apply(Concatenation(), *arguments)
    )


def delay(x: Expression) -> Expression:
    """Return x one step later, 0 at the first step.

    Raises:
        DataError: x is no sequence.
    """
    return apply(Delay(), _sequence("delay", x))


def turn(x: Expression) -> Expression:
    """Return x with each sequence in reverse.

    Raises:
        DataError: x is no sequence.
    """
    return apply(Turn(), _sequence("turn", x), TIME)


def early(x: Expression) -> Expression:
    """Return x with one more step, 0, before all.

    Raises:
        DataError: x is no sequence.
    """
    return apply(Early(), _sequence("early", x))


def late(x: Expression) -> Expression:
    """Return x without its first step.

    Raises:
        DataError: x is no sequence.
    """
    return apply(Late(), _sequence("late", x))


def first_step(x: Expression) -> Expression:
    """Return 1 at the first step of x and 0 at the others.

    Raises:
        DataError: x is no sequence.
    """
    return apply(First(), _sequence("first_step", x))


def _sequence(name: str, x: Expression) -> Expression:
    if not as_expression(x).sequence:
        raise DataError(f"{name} needs a sequence: declare the input with sequence=True.")
    return x


def _sizes(name: str, size: Any, axes: int) -> tuple[int, ...]:
    sizes = tuple(size) if isinstance(size, tuple | list) else (size,) * axes
    if len(sizes) != axes:
        raise DataError(f"{name} must be one number or {axes}, got {size!r}.")
    return sizes
