"""Numbers that stay on a GPU until they are read.

Reading a number from a GPU waits until it has done all that was handed to it. A 0-d tensor acts as
a number in arithmetic, so that objectives, residuals and step lengths can be worked with there, and
read when somebody asks for them.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor


def stays_on_device(value: object) -> bool:
    """Say whether reading a number would wait for a GPU."""
    return isinstance(value, Tensor) and value.is_cuda


def reported(value: Tensor) -> float:
    """Return a scalar as a number; from a GPU the 0-d tensor itself."""
    return cast(float, value) if stays_on_device(value) else float(value)


def counted(value: Tensor) -> int:
    """Return a whole scalar as a number; from a GPU the 0-d tensor itself."""
    return cast(int, value) if stays_on_device(value) else int(value)


def at_least(value: float, floor: float) -> float:
    """Return the larger of two numbers, of which the first may stay on a device."""
    return cast(float, value.clamp(min=floor)) if isinstance(value, Tensor) else max(value, floor)


def at_most(value: float, ceiling: float) -> float:
    """Return the smaller of two numbers, of which the first may stay on a device."""
    if isinstance(value, Tensor):
        return cast(float, value.clamp(max=ceiling))
    return min(value, ceiling)


def subtract_(target: Tensor, move: Tensor, length: float, allowed: object = True) -> None:
    """Subtract length times a move in place, where it is allowed.

    Args:
        target: what is moved.
        move: of its shape.
        length: a number, which may stay on a device.
        allowed: a boolean, which may stay on a device; elsewhere it is true.
    """
    if isinstance(length, Tensor):
        target.copy_(torch.where(torch.as_tensor(allowed), target - length * move, target))
    else:
        target.sub_(move, alpha=length)
