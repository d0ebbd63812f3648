"""Samples a chunk at a time, so that the working set of a solve stays in the cache.

A GPU takes large chunks, whose temporaries fit in its memory and whose launches cost little.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

_ENTRIES = 1 << 17  # half a megabyte of float32, of which a solve holds some ten
_ENTRIES_ON_GPU = 1 << 26


def row_chunks(samples: int, columns: int, device: torch.device | None = None) -> Iterator[slice]:
    """Yield slices of rows with about 130,000 entries each, or 67 million on a GPU."""
    on_gpu = device is not None and device.type == "cuda"
    step = max(1, (_ENTRIES_ON_GPU if on_gpu else _ENTRIES) // columns)
    for first in range(0, samples, step):
        yield slice(first, min(first + step, samples))
