"""Sequences at the door of a recurrent model, and the directions of time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from liftednet.data.checks import sequence_lengths
from liftednet.deferred import sent
from liftednet.errors import DataError
from liftednet.losses import Loss
from liftednet.problems.states_over_time import steps_before
from liftednet.validation import require_finite, require_float

from .arrays import as_tensor


@dataclass(frozen=True, eq=False)
class Timeline:
    """Which steps the sequences have, and how time runs for a cell.

    Attributes:
        steps: of the longest sequence.
        known: (samples,) int64 steps of each sequence, on the CPU, so that nobody waits for them.
        early: how many steps come before all, for learned initial states: 0 or 1.
        device: where the sequences are.
    """

    steps: int
    known: Tensor
    early: int
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @cached_property
    def lengths(self) -> Tensor:
        """(samples,) int64 steps of each sequence."""
        return sent(self.known, self.device)

    @cached_property
    def places(self) -> Tensor:
        """(rows,) int64, where a cell has a step in its own order, of (steps, samples) in a row."""
        valid = steps_before(self.steps, self.known)
        early = valid.new_ones(self.early, len(self.known))
        return sent(torch.cat([early, valid]).flatten().nonzero()[:, 0], self.device)

    @cached_property
    def valid(self) -> Tensor:
        """(steps, samples) booleans, true where a sequence has the step."""
        return steps_before(self.steps, self.lengths)

    @cached_property
    def last(self) -> Tensor:
        """(steps, samples) booleans, true at the last step of each sequence."""
        return self.valid & ~steps_before(self.steps, self.lengths - 1)

    @cached_property
    def _mirror(self) -> Tensor:
        step = torch.arange(self.steps, device=self.lengths.device)[:, None]
        return torch.where(self.valid, self.lengths - 1 - step, step)

    def turned(self, rows: Tensor, backward: bool) -> Tensor:
        """Return (steps, samples, ...) with each sequence in reverse where `backward`."""
        if not backward:
            return rows
        index = self._mirror.reshape(*self._mirror.shape, *(1,) * (rows.ndim - 2))
        return rows.gather(0, index.expand_as(rows))

    def own(self, rows: Tensor, backward: bool) -> Tensor:
        """Return rows in the order of a cell, with zeros at the early step."""
        rows = self.turned(rows, backward)
        return torch.cat([rows.new_zeros(self.early, *rows.shape[1:]), rows])

    def natural(self, rows: Tensor, backward: bool) -> Tensor:
        """Return a cell's rows in the order of the data, without the early step."""
        return self.turned(rows[self.early :], backward)


@dataclass(frozen=True, eq=False)
class Task:
    """The data of a recurrent training problem.

    Attributes:
        inputs: X, (steps, samples, features), zero beyond the lengths.
        timeline: which steps there are.
        target: encoded y, (steps, samples, outputs); None leaves it free, as prediction does.
        per_step: whether every step has a target, or the last of each sequence alone.
    """

    inputs: Tensor
    timeline: Timeline
    target: Tensor | None
    per_step: bool

    @property
    def counted(self) -> Tensor:
        """(steps, samples) booleans, the steps that have a target."""
        return self.timeline.valid if self.per_step else self.timeline.last

    @cached_property
    def places(self) -> Tensor:
        """(rows,) int64, where there is a target, of (steps, samples) in a row."""
        known, steps = self.timeline.known, self.timeline.steps
        counted = steps_before(steps, known)
        if not self.per_step:
            counted = counted & ~steps_before(steps, known - 1)
        return sent(counted.flatten().nonzero()[:, 0], self.timeline.device)

    def take(self, samples: Tensor) -> Task:
        """Return the task of some samples, (some,) int64 on the CPU."""
        timeline = replace(self.timeline, known=self.timeline.known[samples])
        there = sent(samples, self.timeline.device)
        target = None if self.target is None else self.target[:, there]
        return Task(self.inputs[:, there], timeline, target, self.per_step)

    def double(self) -> Task:
        """Return the task in float64."""
        target = None if self.target is None else self.target.double()
        return replace(self, inputs=self.inputs.double(), target=target)


def picked(rows: Tensor, places: Tensor) -> Tensor:
    """Return some rows of (steps, samples, ...), by their places in a row, (places, ...)."""
    return rows.flatten(0, 1)[places]


def checked_sequences(value: object, features: int, dtype: torch.dtype, device: str) -> Tensor:
    """Return X as a (steps, samples, features) tensor of the model's type and device.

    Raises:
        DataError: it is not (samples, steps, features) of float32 or float64, or empty.
    """
    inputs = as_tensor("X", value)
    if inputs.ndim != 3 or inputs.shape[2] != features or inputs.numel() == 0:
        raise DataError(
            f"X must have shape (samples, steps, {features}) for a network with {features} "
            f"inputs, got {tuple(inputs.shape)}."
        )
    require_float("X", inputs)
    return inputs.to(device=device, dtype=dtype).transpose(0, 1).contiguous()


def checked_timeline(lengths: object, inputs: Tensor, early: int) -> tuple[Tensor, Timeline]:
    """Return X with zeros beyond the lengths, and the timeline.

    Raises:
        DataError: lengths that do not fit, or entries within them that are not finite.
    """
    steps, samples = inputs.shape[:2]
    if lengths is None:
        checked = torch.full((samples,), steps)
    else:
        checked = sequence_lengths(torch.as_tensor(lengths), samples, steps)
    timeline = Timeline(steps, checked.cpu(), early, inputs.device)
    kept = inputs.where(timeline.valid.unsqueeze(-1), 0.0)
    require_finite("X, as (steps, samples, features),", kept)
    return kept, timeline


def encoded_targets(
    value: object, loss: Loss, outputs: int, timeline: Timeline, like: Tensor
) -> tuple[Tensor, bool]:
    """Return targets (steps, samples, outputs), and whether every step has one.

    Raises:
        DataError: y fits neither (samples, steps, ...) nor (samples, ...).
    """
    y = as_tensor("y", value).to(like.device)
    samples = len(timeline.lengths)
    if y.ndim == 0 or len(y) != samples:
        raise DataError(
            f"y must have one row for each of the {samples} samples of X, got {tuple(y.shape)}."
        )
    per_step = y.ndim == 3 or (y.ndim == 2 and not y.is_floating_point())
    if per_step and y.shape[1] != timeline.steps:
        raise DataError(
            f"y of shape {tuple(y.shape)} must have the {timeline.steps} steps of X on its second "
            "axis."
        )
    counted = timeline.valid if per_step else timeline.last
    rows = y.transpose(0, 1)[counted] if per_step else y[counted.nonzero()[:, 1]]
    if rows.is_floating_point():
        require_finite("y", rows)
    target = like.new_zeros(timeline.steps, samples, outputs)
    target[counted] = loss.encode(rows, outputs).to(like)
    return target, per_step
