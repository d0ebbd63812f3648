"""Songs side by side, cut into windows, so that states can be carried from each to the next."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.data import Sequences


class Lanes:
    """Reads several songs at once, window by window, without end.

    A lane whose song is over takes the next one, so that no lane waits for another; the songs
    come in random order, all of them before any comes again.

    Attributes:
        windows: of all songs.
        owners: (windows,) int64 the song of each window.

    Args:
        songs: with a target at every step.
        count: lanes.
        steps: of a window; the last of a song may be shorter.
        source: of the orders.
    """

    def __init__(self, songs: Sequences, count: int, steps: int, source: torch.Generator) -> None:
        """Begin before the first window."""
        self.windows = songs.windows(steps)
        pieces = (songs.lengths + steps - 1) // steps
        self.owners = torch.repeat_interleave(torch.arange(len(songs)), pieces)
        self._ends = pieces.cumsum(0)
        self._starts = self._ends - pieces
        self._songs = self._endless(source)
        self._next, self._end = torch.zeros(2, count, dtype=torch.int64)

    def draw(self) -> tuple[Tensor, Tensor]:
        """Return the next window of every lane, and the lanes in which a song begins.

        Returns:
            (lanes,) int64 numbers of windows, and (lanes,) booleans.
        """
        begins = self._next >= self._end
        for lane in begins.nonzero().flatten().tolist():
            song = next(self._songs)
            self._next[lane], self._end[lane] = self._starts[song], self._ends[song]
        drawn = self._next.clone()
        self._next += 1
        return drawn, begins

    def _endless(self, source: torch.Generator) -> Iterator[int]:
        while True:
            yield from torch.randperm(len(self._ends), generator=source).tolist()
