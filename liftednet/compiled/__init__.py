"""Loops that Numba compiles for the CPU; where it is not installed, torch does the same.

They are compiled when they are first called, which takes seconds, and kept on disk beside their
sources (or where NUMBA_CACHE_DIR says), so that later processes load them in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from typing import TypeVar

import torch
from torch import Tensor

__all__ = ["has_numba", "in_threads", "refusal"]

_ENTRIES = 1 << 17  # of a part that is worth a thread
Found = TypeVar("Found")


@cache
def has_numba() -> bool:
    """Say whether Numba is installed."""
    return find_spec("numba") is not None


def refusal(tensor: Tensor) -> str | None:
    """Return why no compiled loop can take a tensor, or None."""
    if tensor.device.type != "cpu":
        return f"it needs tensors on a CPU, not on {tensor.device}"
    if not has_numba():
        return "it needs Numba, which is not installed: pip install 'liftednet[cpu]'"
    return None


def in_threads(work: Callable[[slice], Found], samples: int, columns: int) -> list[Found]:
    """Return what a compiled loop returns for parts of the samples, one for each thread of torch.

    Args:
        work: takes a slice of rows; compiled loops hold no lock of Python's.
        samples: how many rows there are.
        columns: entries of each.
    """
    parts = min(torch.get_num_threads(), max(1, samples * columns // _ENTRIES))
    if parts == 1:
        return [work(slice(0, samples))]
    step = -(-samples // parts)
    slices = [slice(first, first + step) for first in range(0, samples, step)]
    with ThreadPoolExecutor(len(slices)) as pool:
        return list(pool.map(work, slices))
