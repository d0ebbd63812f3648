"""Convolutions over one or two axes, u = sum over a window of x K + b."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from liftednet.errors import DataError
from liftednet.layers.layer import Arguments, Constant, Layer, Shape, adjoint_of
from liftednet.maps import Composed, Given, LinearMap, Moved, Rows
from liftednet.samples import Design, Weights
from liftednet.validation import require_count, require_flag

_CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d}
_TRANSFORMS = {1: (-1,), 2: (-2, -1)}


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
        if len(self.window) not in _CONVOLUTIONS:
            raise DataError(f"a convolution has one or two axes, got the window {self.window}.")
        if not self.dilation:
            object.__setattr__(self, "dilation", (1,) * len(self.window))
        for name, least in (("window", 1), ("stride", 1), ("padding", 0), ("dilation", 1)):
            numbers = getattr(self, name)
            if len(numbers) != len(self.window):
                raise DataError(f"{name} {numbers} must have as many axes as {self.window}.")
            for number in numbers:
                require_count(name, number, least)
        if len(self.below) != 1 + len(self.window):
            raise DataError(
                f"a convolution with the window {self.window} needs channels and "
                f"{len(self.window)} axes below, got the shape {self.below}."
            )
        if self.channels % self.groups or self.below[0] % self.groups:
            raise DataError(
                f"{self.groups} groups do not divide {self.below[0]} channels below and "
                f"{self.channels} above."
            )
        if min(self.shape()) < 1:
            raise DataError(f"the window {self.window} does not fit into the shape {self.below}.")

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

    def value(self, arguments: Arguments, weights: Weights | None) -> Tensor:
        """Return the convolution, (..., units)."""
        assert weights is not None  # it has weights
        return self._convolved(arguments[0], weights.matrix, weights.bias)

    def _convolved(self, x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
        window = matrix.T.reshape(self._kernel)
        images = x.reshape(-1, *self.below)
        convolve = _CONVOLUTIONS[len(self.window)]
        u = convolve(images, window, bias, self.stride, self.padding, self.dilation, self.groups)
        return u.reshape(*x.shape[:-1], prod(self.shape()))

    def constant(self, position: int, arguments: Arguments, weights: Weights | None) -> Constant:
        """Return b at every position, (units,), or None."""
        assert weights is not None  # it has weights
        if weights.bias is None:
            return None
        return weights.bias.repeat_interleave(prod(self.shape()[1:]))

    def map(self, position: int, arguments: Arguments, weights: Weights | None) -> LinearMap:
        """Return x -> x convolved."""
        assert weights is not None  # it has weights
        matrix = weights.matrix
        width = arguments[0].shape[-1]

        def forth(x: Tensor) -> Tensor:
            return self._convolved(x, matrix.to(x.dtype), None)

        def back(u: Tensor) -> Tensor:
            return adjoint_of(forth, u.new_empty(*u.shape[:-1], width), u)

        return Given(forth, back, self._bound(matrix))

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

    def weight_map(self, arguments: Arguments, weights: Weights) -> LinearMap:
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

        return Composed(
            Moved(forth, back, whole_rows=False), Rows(Design(self.inputs(arguments), self.bias))
        )

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
