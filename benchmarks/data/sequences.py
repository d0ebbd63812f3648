"""One interface for real and generated sequences: padded mini-batches with lengths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from liftednet.errors import DataError
from liftednet.validation import sequence_lengths

IGNORED_LABEL = -100
"""Label of padded steps: `torch.nn.functional.cross_entropy` leaves it out by default."""


@dataclass(frozen=True)
class Batch:
    """Padded sequences.

    Attributes:
        x: (batch, time, features) real numbers, zero beyond each length.
        y: (batch, time, ...) where every step has a target, padded with `IGNORED_LABEL` for
            labels and 0 for numbers; (batch, ...) where only the sequence has one.
        lengths: (batch,) int64 steps of each sequence.
    """

    x: Tensor
    y: Tensor
    lengths: Tensor

    @property
    def mask(self) -> Tensor:
        """(batch, time) booleans, true where a step is real."""
        steps = torch.arange(self.x.shape[1], device=self.lengths.device)
        return steps < self.lengths[:, None]


@dataclass(frozen=True)
class Sequences:
    """Sequences of any lengths, laid one after another, so that padding costs no memory.

    Attributes:
        rows: (total steps, features) inputs.
        targets: (total steps, ...) where every step has one, else (sequences, ...).
        starts: (sequences,) int64 first row of each sequence.
        lengths: (sequences,) int64 steps of each sequence.
        per_step: whether every step has a target.
    """

    rows: Tensor
    targets: Tensor
    starts: Tensor
    lengths: Tensor
    per_step: bool

    @classmethod
    def from_padded(cls, x: Tensor, y: Tensor, lengths: Tensor | None = None) -> Sequences:
        """Take over padded sequences, such as a generated task.

        Targets belong to steps if y has the time axis of X after its first axis.

        Args:
            x: (sequences, time, features) inputs.
            y: (sequences, time) or (sequences, time, outputs) per step; (sequences,) or
                (sequences, outputs) for the sequence.
            lengths: (sequences,) steps of each sequence; None: all have every step.
        """
        if x.ndim != 3:
            raise DataError(f"X must be (sequences, time, features); it is {tuple(x.shape)}.")
        if not 0 < len(x) == len(y):
            raise DataError(f"X and y need as many rows, got {len(x)} and {len(y)}.")
        samples, steps = x.shape[:2]
        lengths = torch.full((samples,), steps) if lengths is None else lengths
        lengths = sequence_lengths(lengths, samples, steps)
        # (sequences, time) numbers with time 1 would be ambiguous; a column is one output.
        per_step = y.ndim >= 2 and y.shape[1] == steps and (y.ndim == 3 or steps > 1)
        targets = y.flatten(0, 1) if per_step else y
        return cls(x.flatten(0, 1), targets, torch.arange(samples) * steps, lengths, per_step)

    @classmethod
    def next_step(cls, rows: Tensor, lengths: Tensor) -> Sequences:
        """Pair each step with the next one of its sequence, as its target.

        Args:
            rows: (total steps, features), the sequences one after another.
            lengths: (sequences,) steps of each, at least 2.
        """
        if int(lengths.sum()) != len(rows) or int(lengths.min()) < 2:
            raise DataError(
                f"The lengths must be at least 2 and add up to the {len(rows)} rows; they add up "
                f"to {int(lengths.sum())} and the least is {int(lengths.min())}."
            )
        lengths = lengths.long()
        starts = lengths.cumsum(0) - lengths
        return cls(rows, rows.roll(-1, 0), starts, lengths - 1, per_step=True)

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self.lengths)

    def windows(self, steps: int) -> Sequences:
        """Cut every sequence into pieces of at most `steps` steps; needs targets per step."""
        if not self.per_step:
            raise DataError("Only sequences with a target at every step can be cut into windows.")
        counts = (self.lengths + steps - 1) // steps
        owner = torch.repeat_interleave(torch.arange(len(self)), counts)
        piece = torch.arange(len(owner)) - (counts.cumsum(0) - counts)[owner]
        lengths = (self.lengths[owner] - piece * steps).clamp(max=steps)
        return Sequences(self.rows, self.targets, self.starts[owner] + piece * steps, lengths, True)

    def batch(self, indices: Tensor) -> Batch:
        """Return the named sequences, padded to the longest of them.

        Args:
            indices: (batch,) int64 numbers of sequences.
        """
        lengths = self.lengths[indices]
        step = torch.arange(int(lengths.max()))
        padding = step >= lengths[:, None]
        row = (self.starts[indices][:, None] + step).clamp(max=len(self.rows) - 1)
        x = _real(self.rows[row]).masked_fill(padding[:, :, None], 0)
        if not self.per_step:
            return Batch(x, self.targets[indices], lengths)
        return Batch(x, _padded_targets(self.targets[row], padding), lengths)

    def batches(self, size: int, generator: torch.Generator) -> Iterator[Batch]:
        """Go once through all sequences in random order; the last batch may be smaller.

        Args:
            size: sequences of a batch.
            generator: of the order.
        """
        order = torch.randperm(len(self), generator=generator)
        return (self.batch(indices) for indices in order.split(size))

    def endless(self, size: int, generator: torch.Generator) -> Iterator[Batch]:
        """Go through all sequences again and again, in a new order each time.

        Args:
            size: sequences of a batch.
            generator: of the orders.
        """
        while True:
            yield from self.batches(size, generator)


def _padded_targets(y: Tensor, padding: Tensor) -> Tensor:
    if y.ndim == 2 and not y.is_floating_point():
        return y.masked_fill(padding, IGNORED_LABEL)
    return _real(y).masked_fill(padding.reshape(padding.shape + (1,) * (y.ndim - 2)), 0)


def _real(values: Tensor) -> Tensor:
    return values if values.is_floating_point() else values.float()
