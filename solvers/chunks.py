"""How many samples a solver takes at a time: as many as the cache of a CPU, or a GPU, holds."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from liftednet.samples import row_chunks

_ENTRIES_ON_GPU = 1 << 26  # whose temporaries fit in its memory, in few launches


def device_chunks(samples: int, columns: int, device: torch.device) -> Iterator[slice]:
    """Yield slices of rows with about 130,000 entries each, or 67 million on a GPU."""
    if device.type == "cuda":
        return row_chunks(samples, columns, _ENTRIES_ON_GPU)
    return row_chunks(samples, columns)
