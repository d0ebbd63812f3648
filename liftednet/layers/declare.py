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

    Example:
        >>> from liftednet import Network
        >>> from liftednet.layers import dense
        >>> up = dense(Network().input(3), 5)
        >>> up.shape, up.weights.shape, up.weights.bias
        ((5,), (3, 5), True)
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

    Example:
        >>> from liftednet import Network
        >>> from liftednet.layers import convolution
        >>> maps = convolution(Network().input(1, 8, 8), 4, 3, stride=2, padding=1)
        >>> maps.shape, maps.weights.shape  # the kernel as a matrix, window times channels below
        ((4, 4, 4), (9, 4))
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

    Example:
        >>> from liftednet import Network
        >>> from liftednet.layers import average_pooling
        >>> average_pooling(Network().input(4, 8, 8), 2).shape
        (4, 4, 4)
    """
    axes = len(as_expression(x).shape) - 1
    sizes = _sizes("window", window, axes)
    steps = sizes if stride is None else _sizes("stride", stride, axes)
    return apply(AveragePooling(x.shape, sizes, steps), x)


def concatenate(*arguments: Expression) -> Expression:
    """Return the units of all arguments side by side, (..., sum of units).

    Args:
        arguments: of any units, all of them sequences or none.

    Raises:
        DataError: sequences stand beside what has one value for each sample.

    Example:
        >>> from liftednet import Network
        >>> from liftednet.layers import concatenate
        >>> network = Network()
        >>> concatenate(network.input(3), network.input(5)).shape
        (8,)
    """
    return (
        as_expression(arguments[0]) if len(arguments) == 1 else apply(Concatenation(), *arguments)
    )


def delay(x: Expression) -> Expression:
    """Return x one step later, 0 at the first step.

    Raises:
        DataError: x is no sequence.

    Example:
        >>> import torch
        >>> from liftednet import Network
        >>> from liftednet.layers import delay
        >>> later = delay(Network().input(1, sequence=True))
        >>> later.layer.value([torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1)], None).flatten()
        tensor([0., 1., 2.])
    """
    return apply(Delay(), _sequence("delay", x))


def turn(x: Expression) -> Expression:
    """Return x with each sequence in reverse.

    Raises:
        DataError: x is no sequence.

    Example:
        >>> from liftednet import Network
        >>> from liftednet.layers import concatenate, turn
        >>> x = Network().input(2, sequence=True)
        >>> both = concatenate(x, turn(x))  # each sequence beside its mirror image
        >>> both.shape, both.sequence
        ((4,), True)
    """
    return apply(Turn(), _sequence("turn", x), TIME)


def early(x: Expression) -> Expression:
    """Return x with one more step, 0, before all.

    Raises:
        DataError: x is no sequence.

    Example:
        >>> import torch
        >>> from liftednet import Network
        >>> from liftednet.layers import early
        >>> longer = early(Network().input(1, sequence=True))
        >>> longer.layer.value([torch.ones(2, 1, 1)], None).flatten()
        tensor([0., 1., 1.])
    """
    return apply(Early(), _sequence("early", x))


def late(x: Expression) -> Expression:
    """Return x without its first step.

    Raises:
        DataError: x is no sequence.

    Example:
        >>> import torch
        >>> from liftednet import Network
        >>> from liftednet.layers import early, late
        >>> rest = late(early(Network().input(1, sequence=True)))
        >>> rest.layer.value([torch.tensor([0.0, 1.0, 2.0]).view(3, 1, 1)], None).flatten()
        tensor([1., 2.])
    """
    return apply(Late(), _sequence("late", x))


def first_step(x: Expression) -> Expression:
    """Return 1 at the first step of x and 0 at the others.

    Raises:
        DataError: x is no sequence.

    Example:
        >>> import torch
        >>> from liftednet import Network
        >>> from liftednet.layers import first_step
        >>> first = first_step(Network().input(2, sequence=True))
        >>> first.layer.value([torch.zeros(3, 1, 2)], None).flatten()
        tensor([1., 0., 0.])
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
