"""Minibatches of sequences: one exact step over time in place of backpropagation."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from liftednet import deferred
from liftednet.errors import SolverError
from liftednet.problems import WeightFit, Weights
from liftednet.solvers.newton_over_time import NewtonOverTime
from liftednet.validation import require_positive

from .arrays import require_count
from .block_update import readable, where
from .descent import Ending, Step, Trace
from .minibatch import all_finite
from .progress import Report
from .recurrent_blocks import RecurrentBlocks
from .recurrent_solvers import Solvers
from .sequence_arrays import Task

_MEMORY = 0.95  # of the running Gram matrices
_SMALLEST_SHARE = 0.02  # of the step, at the end of training


@dataclass(frozen=True)
class SequenceMinibatch:
    """How a recurrent network is trained on minibatches.

    Attributes:
        epochs: passes over the sequences.
        batch_size: sequences of a batch.
        damping: what is added to the running Gram matrix, in units of its mean diagonal.
        readout_rate: step of the output weights in their metric.

    Raises:
        DataError: a number is out of its range.
    """

    epochs: int = 50
    batch_size: int = 50
    damping: float = 0.01
    readout_rate: float = 0.2

    def __post_init__(self) -> None:
        """Refuse numbers out of their range."""
        require_count("epochs", self.epochs, 1)
        require_count("batch_size", self.batch_size, 1)
        require_positive("damping", self.damping)
        require_positive("readout_rate", self.readout_rate)

    @property
    def rounds(self) -> int:
        """The epochs."""
        return self.epochs

    def train(self, blocks: RecurrentBlocks, seed: int, report: Report | None) -> Trace:
        """Change weights and states in place, and return the mean loss of every batch."""
        return BatchTraining(blocks, self, seed).run(report)


@dataclass(frozen=True)
class Taken:
    """What a batch did; on a GPU it waits there until it is read.

    Attributes:
        loss: its mean loss before its step.
        finite: whether the weights after it are, (); None before they are known.
    """

    loss: float
    finite: Tensor | None = None

    @property
    def on_device(self) -> bool:
        """Whether reading it would wait for a GPU."""
        return deferred.stays_on_device(self.loss)

    def good_loss(self) -> float:
        """Return the loss.

        Raises:
            SolverError: it is not finite, or the weights are not.
        """
        if not self.loss < torch.inf:
            raise SolverError(
                f"the loss of a batch is {float(self.loss)}: raise lam, or scale the inputs."
            )
        if self.finite is not None and not self.finite:
            raise SolverError("a batch made weights NaN or infinite: scale the inputs.")
        return float(self.loss)


class BatchTraining:
    """Trains on batches; every batch has states of its own.

    A forward pass gives states at which D is zero. One Newton step over all time, from the last
    layer to the first, moves them towards the targets: it carries credit over the whole sequence
    as backpropagation does, in bounded steps. Then every weight fit, linearized at the forward
    pass, is pulled to the previous weights in the metric of a running Gram matrix. lam grows as
    1 / (1 - progress), so that the steps shrink to nothing.
    """

    def __init__(self, blocks: RecurrentBlocks, settings: SequenceMinibatch, seed: int) -> None:
        """Take the blocks of the whole data, whose weights are changed in place.

        Args:
            blocks: after a forward pass.
            settings: how to train.
            seed: of the order of the sequences.
        """
        self._blocks, self._settings = blocks, settings
        self._generator = torch.Generator().manual_seed(seed)
        self._solvers = Solvers(NewtonOverTime(max_iterations=1), "auto", "auto")
        self._metrics: list[Tensor | None] = [None] * len(blocks.weights)

    def run(self, report: Report | None) -> Trace:
        """Train for all epochs, and return the mean loss of every batch before its step.

        Raises:
            SolverError: the loss or the weights of a batch are not finite; its step is not taken,
                nor those after it; on a GPU, which is looked at after an epoch, those of its epoch
                are where they are finite.
        """
        blocks = self._blocks
        trace = Trace(float(blocks.loss()) / len(blocks.task.places))
        try:
            for step in self._steps(trace.start):
                trace.steps.append(step)
                if report is not None:
                    report(step)
        except KeyboardInterrupt:
            trace.ending = Ending.INTERRUPTED
        blocks.pass_forward()
        return trace

    def _steps(self, before: float) -> Iterator[Step]:
        samples, started = len(self._blocks.timeline.known), time.perf_counter()
        total = self._settings.epochs * -(-samples // self._settings.batch_size)
        for epoch, parts in enumerate(self._epochs(samples)):
            for taken in readable(self._batches(parts, epoch * len(parts), total)):
                for batch in taken:
                    loss, seconds = batch.good_loss(), time.perf_counter() - started
                    name = self._solvers.states.name
                    yield Step(epoch, "batch", loss, before - loss, torch.nan, 1, name, seconds)
                    before = loss

    def _epochs(self, samples: int) -> Iterator[Sequence[Tensor]]:
        """Yield the samples of every batch of an epoch."""
        for _ in range(self._settings.epochs):
            order = torch.randperm(samples, generator=self._generator)
            yield order.split(self._settings.batch_size)

    def _batches(self, parts: Sequence[Tensor], first: int, total: int) -> Iterator[Taken]:
        """Take a step with every batch of an epoch, and yield what it did."""
        samples = sum(map(len, parts))
        for number, part in enumerate(parts, start=first):
            share = max(_SMALLEST_SHARE, 1 - number / total)
            yield self._step(self._blocks.task.take(part), share, samples / len(part))

    def _step(self, task: Task, share: float, batches: float) -> Taken:
        """Move all weights by one batch; on a GPU only where they stay finite."""
        whole = self._blocks.architecture
        architecture = replace(whole, lam=whole.lam / share)
        batch = RecurrentBlocks(architecture, task, self._blocks.weights, self._solvers)
        passed = batch.weight_fits()
        taken = Taken(batch.loss() / passed[-1].design.samples)
        if not taken.on_device:
            taken.good_loss()
        batch.move_states()
        fits = [*batch.weight_fits()[:-1], passed[-1]]
        rates = [1.0] * (len(fits) - 1) + [self._settings.readout_rate * share]
        moved = []
        for number, (layer, rate) in enumerate(zip(self._blocks.weights, rates, strict=True)):
            change = self._change(number, passed[number], fits[number], batches)
            stacked = layer.stacked() + rate * change.to(layer.matrix)
            moved.append(Weights(stacked[:-1], stacked[-1]))
        return self._keep(taken.loss, moved)

    def _keep(self, loss: float, moved: list[Weights]) -> Taken:
        weights, finite = self._blocks.weights, all_finite(moved)
        taken = Taken(loss, finite)
        if taken.on_device:
            good = finite & (loss < torch.inf)
            moved = [where(good, new, old) for new, old in zip(moved, weights, strict=True)]
        else:
            taken.good_loss()
        weights[:] = moved
        return taken

    def _change(self, number: int, passed: WeightFit, moved: WeightFit, batches: float) -> Tensor:
        """Return the step of one layer, float64, from its fits before and after the states."""
        layer, smoothness = self._blocks.weights[number], passed.divergence.smoothness
        assert smoothness is not None  # of every loss and every tight layer that is let in
        above = layer.apply(moved.design.inputs)
        error = moved.targets - moved.divergence.link_gradient(above)
        gradient = passed.design.cross(error)
        rho = self._blocks.architecture.rho[number == len(self._blocks.weights) - 1]
        pull = 2 * rho / (passed.lam * batches) * layer.matrix.double()
        gradient[:-1] -= pull
        count = passed.design.samples
        metric = self._running(number, smoothness * passed.design.gram / count)
        damped = metric.clone()
        damped.diagonal().add_(self._settings.damping * metric.diagonal().mean())
        change: Tensor = torch.linalg.solve_ex(damped, gradient / count).result
        return change  # not finite where the system is singular, which is looked at

    def _running(self, number: int, gram: Tensor) -> Tensor:
        previous = self._metrics[number]
        metric = gram if previous is None else _MEMORY * previous + (1 - _MEMORY) * gram
        self._metrics[number] = metric
        return metric
