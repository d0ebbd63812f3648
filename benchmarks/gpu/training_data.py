"""MNIST where it is found, else digits that are generated."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.data.mnist import mnist
from benchmarks.gpu.timing import Scale
from liftednet.errors import DataError


@dataclass(frozen=True)
class Images:
    """Images and labels on the device.

    Attributes:
        name: of the data.
        x_train: (samples, 784), float32.
        y_train: (samples,) int64.
        x_test: (samples, 784).
        y_test: (samples,).
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor


def images(scale: Scale) -> Images:
    """Return MNIST, or generated images of the same shapes."""
    if scale.toy:
        return _generated(scale, 60, 30)
    try:
        digits = mnist()
    except DataError:
        return _generated(scale, 60_000, 10_000)
    parts = (digits.x_train.float(), digits.y_train, digits.x_test.float(), digits.y_test)
    return Images("MNIST", *(part.to(scale.device) for part in parts))


def _generated(scale: Scale, train: int, test: int) -> Images:
    """Return noisy mixtures of three prototypes for each of ten classes, pixels in [0, 1]."""
    source = torch.Generator().manual_seed(0)
    prototypes = torch.rand(10, 3, 784, generator=source)
    y = torch.arange(train + test) % 10
    shares = torch.rand(len(y), 3, generator=source).pow(2)
    shares = shares / shares.sum(1, keepdim=True)
    x = (shares.unsqueeze(1) @ prototypes[y]).squeeze(1)
    x = (x + 0.6 * torch.randn(x.shape, generator=source)).clamp(0, 1)
    x, y = x.to(scale.device), y.to(scale.device)
    return Images("generated", x[:train], y[:train], x[train:], y[train:])
