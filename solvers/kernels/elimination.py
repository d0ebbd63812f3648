"""The linear system of a Newton step over time, on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from .device import has_triton, on_device
from .table import padded_width

_MOST_UNITS = 64
_WARPS = {16: 2, 32: 4, 64: 8}


def serves(right: Tensor) -> bool:
    """Say whether the kernel is the one to take a system: on a GPU, with at most 64 units."""
    return right.is_cuda and right.shape[2] <= _MOST_UNITS and has_triton()


def eliminated(blocks: Tensor, between: Tensor, free: Tensor, right: Tensor) -> Tensor:
    """Return the solution of a block-tridiagonal system for every sample, in one launch.

    Args:
        blocks: the diagonal blocks, (steps, samples, units, units), float64, overwritten.
        between: the blocks below the diagonal before units that are held are cut out of them,
            (units, units).
        free: (steps, samples, units) booleans.
        right: (steps, samples, units), zero where units are held.
    """
    from .tridiagonal import eliminate

    steps, samples, units = right.shape
    value = torch.empty_like(right, memory_format=torch.contiguous_format)
    width = padded_width(units)
    with on_device(right):
        eliminate[(samples,)](
            blocks.contiguous(),
            between.contiguous(),
            free.char().contiguous(),
            right.contiguous(),
            value,
            steps,
            samples,
            units,
            UNITS=width,
            num_warps=_WARPS[width],
        )
    return value
