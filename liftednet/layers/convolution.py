"""Windows over one or two axes: convolutions, u = sum over a window of x K + b, and means."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from liftednet.errors import DataError
from liftednet.layers.expression import Expression, Parameter, apply, as_expression
from liftednet.layers.layer import Arguments, Constant, Layer, Shape, by_autograd, weight_rows
from liftednet.maps import LinearMap
from liftednet.penalties import Penalty
from liftednet.samples import Weights
from liftednet.validation import require_count, require_flag

_CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d}
_POOLINGS = {1: functional.avg_pool1d, 2: functional.avg_pool2d}
_TRANSFORMS = {1: (-1,), 2: (-2, -1)}

Sizes = int | tuple[int, ...]


@dataclass(frozen=True)
class Convolution(Layer):
    """u_(o, p) = sum_(c, w) x_(c, stride p + w - padding) K_((c, w), o) + b_o.

    The kernel is a matrix (channels below * window, channels), so that its fit is that of a dense
    layer whose samples are the patches of all images.

    Attributes:
        below: shape of x, (channels, positions along each axis).
        channels: of u.
        window: size of the kernel along each axis, one number for each of one or two axes.
        stride: along each axis.
        padding: zeros at both ends of each axis.
        bias: whether there is b, (channels,).
        dilation: from one entry of the window to the next, along each axis; () for 1.
        groups: of channels, each of which sees its own share of the channels below.

    Raises:
        DataError: a number is out of its range, or the window does not fit into x.
    """

    below: Shape
    channels: int
    window: Shape
    stride: Shape
    padding: Shape
    bias: bool = True
    dilation: Shape = ()
    groups: int = 1

    def __post_init__(self) -> None:
        """Refuse numbers out of their range."""
        require_count("channels", self.channels, 1)
        require_flag("bias", self.bias)
        require_count("groups", self.groups, 1)
        if not self.dilation:
            object.__setattr__(self, "dilation", (1,) * len(self.window))
        _require_windows(self, "window", "stride", "padding", "dilation")
        if self.channels % self.groups or self.below[0] % self.groups:
            raise DataError(
                f"{self.groups} groups do not divide {self.below[0]} channels below and "
                f"{self.channels} above."
            )

    def shape(self, *shapes: Shape) -> Shape:
        """Return (channels, positions along each axis)."""
        sizes = zip(self.below[1:], self.padding, self._reach, self.stride, strict=True)
        return (
            self.channels,
            *((size + 2 * pad - window) // step + 1 for size, pad, window, step in sizes),
        )

    @property
    def _reach(self) -> Shape:
        """The positions from the first to the last entry of the window."""
        sizes = zip(self.window, self.dilation, strict=True)
        return tuple((window - 1) * step + 1 for window, step in sizes)

    @property
    def _kernel(self) -> Shape:
        """The shape of torch's kernel."""
        return (self.channels, self.below[0] // self.groups, *self.window)

    def weight_shape(self, *shapes: Shape) -> tuple[int, int]:
        """Return (channels below a group * entries of the window, channels)."""
        return prod(self._kernel[1:]), self.channels

    def value(self, arguments: Arguments, weights: Any) -> Tensor:
        """Return the convolution, (..., units)."""
        x: Tensor = arguments[0]
        window = weights.matrix.T.reshape(self._kernel)
        images = x.reshape(-1, *self.below)
        convolve = _CONVOLUTIONS[len(self.window)]
        u: Tensor = convolve(
            images, window, weights.bias, self.stride, self.padding, self.dilation, self.groups
        )
        return u.reshape(*x.shape[:-1], prod(self.shape()))

    def constant(self, position: int, arguments: Arguments, weights: Any) -> Constant:
        """Return b at every position, (units,), or None."""
        if weights.bias is None:
            return None
        return weights.bias.repeat_interleave(prod(self.shape()[1:]))

    def map(self, position: int, arguments: Arguments, weights: Any) -> LinearMap:
        """Return x -> x convolved."""
        kernel = Weights(weights.matrix, None)

        def forth(x: Tensor) -> Tensor:
            return self.value([x], kernel.to(x))

        return by_autograd(forth, arguments[0].shape[-1], self._bound(kernel.matrix))

    def _bound(self, matrix: Tensor) -> float:
        """Return a bound of the squared norm: that of the convolution on a torus around x.

        There the convolution is a matrix for each frequency (Sedghi, Gupta, Long, 2019); zeros
        around x and a stride only take rows and columns away.
        """
        axes = _TRANSFORMS[len(self.window)]
        torus = [size + reach - 1 for size, reach in zip(self.below[1:], self._reach, strict=True)]
        kernel = matrix.double().T.reshape(self._kernel)
        window = kernel.new_zeros(*self._kernel[:2], *self._reach)
        window[:, :, *(slice(None, None, step) for step in self.dilation)] = kernel
        at = torch.fft.rfftn(window, s=torus, dim=axes).flatten(2).movedim(-1, 0)
        at = at.unflatten(1, (self.groups, -1))
        gram = at @ at.mH if at.shape[-2] <= at.shape[-1] else at.mH @ at
        return float(torch.linalg.eigvalsh(gram)[..., -1].max())

    def weight_map(self, arguments: Arguments, weights: Any) -> LinearMap:
        """Return [K; b] -> [patches, 1] [K; b], its rows put together to images again."""
        if self.groups > 1:
            return super().weight_map(arguments, weights)
        leading = arguments[0].shape[:-1]
        positions = prod(self.shape()[1:])
        channels = self.channels

        def forth(rows: Tensor) -> Tensor:
            return rows.view(-1, positions, channels).mT.reshape(*leading, positions * channels)

        def back(u: Tensor) -> Tensor:
            return u.reshape(-1, channels, positions).mT.reshape(-1, channels)

        return weight_rows(self.inputs(arguments), self.bias, forth, back)

    def inputs(self, arguments: Arguments) -> Tensor:
        """Return the patches of all images and groups, (samples * groups * positions, inputs)."""
        images = arguments[0].reshape(-1, self._kernel[1], *self.below[1:])
        if len(self.window) == 1:
            images = images.unsqueeze(2)
        window, stride, padding, dilation = (
            (neutral, *numbers)[-2:]
            for neutral, numbers in (
                (1, self.window), (1, self.stride), (0, self.padding), (1, self.dilation),
            )
        )  # fmt: skip
        patches = functional.unfold(images, window, dilation, padding, stride)
        return patches.mT.reshape(-1, patches.shape[1])


def _require_windows(layer: Convolution | AveragePooling, *names: str) -> None:
    """Refuse sizes along the axes that are out of their range, and a window that does not fit."""
    axes = len(layer.window)
    if axes not in _CONVOLUTIONS or len(layer.below) != 1 + axes:
        raise DataError(
            "a window along one or two axes needs channels and as many axes below; got the window "
            f"{layer.window} and the shape {layer.below}."
        )
    for name in names:
        numbers = getattr(layer, name)
        if len(numbers) != axes:
            raise DataError(f"{name} {numbers} must have {axes} axes, as the window has.")
        for number in numbers:
            require_count(name, number, int(name != "padding"))
    if min(layer.shape()) < 1:
        raise DataError(f"the window {layer.window} does not fit into the shape {layer.below}.")


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

    homogeneous = True
    below: Shape
    window: Shape
    stride: Shape

    def __post_init__(self) -> None:
        """Refuse a window that does not fit."""
        _require_windows(self, "window", "stride")

    def shape(self, *shapes: Shape) -> Shape:
        """Return (channels, positions along each axis)."""
        sizes = zip(self.below[1:], self.window, self.stride, strict=True)
        return (self.below[0], *((size - window) // step + 1 for size, window, step in sizes))

    def value(self, arguments: Arguments, weights: Any) -> Tensor:
        """Return the means, (..., units)."""
        x: Tensor = arguments[0]
        pool = _POOLINGS[len(self.window)]
        means: Tensor = pool(x.reshape(-1, *self.below), self.window, self.stride)
        return means.reshape(*x.shape[:-1], prod(self.shape()))

    def map(self, position: int, arguments: Arguments, weights: Any) -> LinearMap:
        """Return x -> the means."""
        overlaps = (ceil(size / step) for size, step in zip(self.window, self.stride, strict=True))
        # |A|_2^2 is at most the largest sum of a row, 1, times that of a column.
        bound = prod(overlaps) / prod(self.window)
        return by_autograd(lambda v: self.value([v], None), arguments[0].shape[-1], bound)


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


def _sizes(name: str, size: Any, axes: int) -> tuple[int, ...]:
    sizes = tuple(size) if isinstance(size, tuple | list) else (size,) * axes
    if len(sizes) != axes:
        raise DataError(f"{name} must be one number or {axes}, got {size!r}.")
    return sizes
