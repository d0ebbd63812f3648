"""Steps on minibatches as CUDA graphs: a GPU takes longer to launch a step than to do it."""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from liftednet import processes

from ..data import Batch, Data

if TYPE_CHECKING:
    from .minibatch import BatchSteps

_BEFORE = 4  # steps of a kind before one is recorded, which takes as long as four
_WARM = 3  # runs before a recording, as torch asks


class StepGraphs:
    """CUDA graphs of steps, one for each kind: how many samples, with a look or without.

    A replay gives the bits of the plain step, and new weights: those before stay as they were, for
    validation, checkpoints and errors. A step that reads from the device in its course (BatchNorm
    without a momentum, output states that an iteration finds) cannot be recorded: it stays plain,
    of which a `FitWarning` tells once.
    """

    def __init__(self, steps: BatchSteps) -> None:
        """Take the steps, of which one has been made."""
        self._steps = steps
        self._source: Data | None = None
        self._seen: Counter[Hashable] = Counter()
        self._replays: dict[Hashable, Callable[[], None] | None] = {}
        self._rows: dict[int, Tensor] = {}  # by their number
        # What all graphs read and write; the last that were handed out are of the same values.
        self._held = [x.clone() for x in steps.tensors]
        self._last = list(self._held)
        self._weights = sum(1 if layer.bias is None else 2 for layer in steps.weights)  # first ones
        self._rate = self._held[0].new_zeros((), dtype=torch.float64)
        self._loss = torch.zeros_like(self._rate)

    def step(
        self, batch: Batch, rate: float, samples: int, weight: float, looks: bool
    ) -> Tensor | None:
        """Take a step and return its loss, or None where it has to be a plain one."""
        if batch.source is not self._source:
            self._source = batch.source
            self._seen.clear()
            self._replays.clear()
        kind = len(batch.rows), batch.among, samples, weight, looks
        self._seen[kind] += 1
        if self._seen[kind] <= _BEFORE:
            return None
        if kind not in self._replays:
            self._replays[kind] = self._recorded(batch, samples, weight)
        replay = self._replays[kind]
        if replay is None:
            return None
        self._rows[len(batch.rows)].copy_(batch.rows)
        self._rate.fill_(rate)
        self._take_in()
        replay()
        own = len(self._held) if looks else self._weights
        self._last = [x.clone() for x in self._held[:own]] + self._last[own:]
        self._steps.tensors = self._last
        return self._loss.clone()

    def _take_in(self) -> None:
        """Copy what has been handed in since the last replay to where graphs read it."""
        now = self._steps.tensors
        for held, last, given in zip(self._held, self._last, now, strict=True):
            if given is not last:
                held.copy_(given)
        self._last = now

    def _recorded(self, batch: Batch, samples: int, weight: float) -> Callable[[], None] | None:
        """Return the replay of a step, None where there can be none; nothing else changes."""
        steps, source = self._steps, batch.source
        rows = self._rows.setdefault(len(batch.rows), torch.empty_like(batch.rows))
        rows.copy_(batch.rows)
        self._take_in()
        before, statistics = steps.tensors, [known.memory() for known in steps.statistics]

        def work() -> None:
            steps.tensors = self._held
            loss = steps.moved(Batch(source, rows, batch.among).data, self._rate, samples, weight)
            self._loss.copy_(loss)
            for held, made in zip(self._held, steps.tensors, strict=True):
                if made is not held:
                    held.copy_(made)

        try:
            return recorded(work, rows.device)
        except RuntimeError as error:  # what is no matter of recording, the plain step tells, too
            if None not in self._replays.values():
                processes.warn(f"steps are not replayed from a CUDA graph: {error}.")
            return None
        finally:
            for held, known in zip(self._held, before, strict=True):
                held.copy_(known)
            steps.tensors = before
            for running, numbers in zip(steps.statistics, statistics, strict=True):
                running.recall(numbers)


def serves(tensor: Tensor) -> bool:
    """Say whether steps are worth recording: launches on a CPU cost nothing."""
    return tensor.is_cuda


def recorded(work: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Return a replay of work on the tensors that it sees; it runs three times before.

    Raises:
        RuntimeError: it waits for the device, or cannot be recorded.
    """
    with torch.cuda.device(device):
        here, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(here)
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(action="ignore"):  # not every read is found
            torch.cuda.set_sync_debug_mode("error")  # a recording that fails leaves its memory
        try:
            with torch.cuda.stream(side):
                for _ in range(_WARM):
                    work()
        finally:
            torch.cuda.set_sync_debug_mode(before)
        here.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Threads that load data may do meanwhile what a recording may not.
        with _kept(), torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            work()
    return graph.replay


@contextmanager
def _kept() -> Iterator[None]:
    """Have no garbage collected: a graph of an earlier training that goes ends a recording."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
