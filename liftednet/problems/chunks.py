"""Samples a chunk at a time, so that the working set of a solve stays in the cache."""

from __future__ import annotations

from collections.abc import Iterator

_ENTRIES = 1 << 17  # half a megabyte of float32, of which a solve holds some ten


def row_chunks(samples: int, columns: int) -> Iterator[slice]:
    """Yield slices of rows with about 130,000 entries each."""
    step = max(1, _ENTRIES // columns)
    for first in range(0, samples, step):
        yield slice(first, min(first + step, samples))
