"""Steps on minibatches that are recorded once for each kind of batch, and replayed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from liftednet import processes
from liftednet.layers.time import Timeline
from liftednet.solvers.captured import Captured, Graphs

from ..data import Data

if TYPE_CHECKING:
    from .minibatch import BatchSteps, Counts

_OFTEN = 10  # batches of a kind, before a recording pays
_KINDS = 8  # that are told apart


class RecordedSteps:
    """Replays the steps that look at no statistics; these alone read nothing, and are many.

    A replay gives the bits of the plain step, and new weights: those before stay as they were.
    Plain are the first steps of a kind, those on sequences of several lengths, and those of a
    network that reads from the device in a step (BatchNorm without a momentum; output states that
    an iteration finds), of which a `FitWarning` tells once, with the reason.
    """

    def __init__(self, steps: BatchSteps, graphs: Graphs) -> None:
        """Begin without recordings.

        Args:
            steps: that are recorded.
            graphs: records them.
        """
        self._steps, self._graphs = steps, graphs
        self._seen: Counter[Hashable] = Counter()
        self._captured: dict[Hashable, Captured | None] = {}
        self._told = False  # why there can be none

    def step(
        self, batch: Data, counts: Counts, rate: float, samples: int, weight: float
    ) -> Tensor | None:
        """Take a step and return its loss, or None where it has to be a plain one."""
        kind = _kind(batch, samples, weight)
        if kind is None or (kind not in self._seen and len(self._seen) == _KINDS):
            return None
        self._seen[kind] += 1
        if self._seen[kind] <= _OFTEN:
            return None
        limit = batch.like.new_full((), rate, dtype=torch.float64)
        given = [limit, *_tensors(batch).values(), *self._steps.tensors]
        if kind not in self._captured:
            self._captured[kind] = self._recorded(batch, counts, samples, weight, given)
        captured = self._captured[kind]
        if captured is None:
            return None
        loss, *weights = captured(*given)
        self._steps.tensors = weights
        return loss

    def _recorded(
        self, batch: Data, counts: Counts, samples: int, weight: float, given: list[Tensor]
    ) -> Captured | None:
        """Return the recording of a step, None where there can be none; nothing else changes."""
        steps, names = self._steps, list(_tensors(batch))

        def function(limit: Tensor, *tensors: Tensor) -> list[Tensor]:
            rows = dict(zip(names, tensors, strict=False))
            steps.tensors = tensors[len(names) :]
            loss = steps.moved(
                replace(batch, values={**batch.values, **rows}), counts, limit, samples, weight
            )
            return [loss, *steps.tensors[: len(steps.weight_tensors)]]

        before, statistics = steps.tensors, [known.memory() for known in steps.statistics]
        try:
            return Captured(function, given, self._graphs)
        except RuntimeError as error:  # what is no matter of recording, the plain step tells, too
            if not self._told:
                processes.warn(
                    f"steps are not recorded as a CUDA graph, and go on one by one: {error}."
                )
            self._told = True
            return None
        finally:
            steps.tensors = before
            for known, numbers in zip(steps.statistics, statistics, strict=True):
                known.recall(numbers)


def _tensors(batch: Data) -> dict[Any, Tensor]:
    return {x: v for x, v in batch.values.items() if isinstance(v, Tensor)}


def _kind(batch: Data, samples: int, weight: float) -> Hashable | None:
    """Return all of a batch that a recording is made for, or None where that is too much."""
    timelines = [v for v in batch.values.values() if isinstance(v, Timeline)]
    if not all(timeline.full for timeline in timelines):
        return None
    steps = tuple(timeline.steps for timeline in timelines)
    shapes = tuple((v.shape, v.stride(), v.dtype) for v in _tensors(batch).values())
    return batch.among, samples, weight, steps, shapes
