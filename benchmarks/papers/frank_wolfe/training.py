"""One training loop for every gradient method that the recurrent papers compare."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.data import Batch, Sequences
from benchmarks.papers.networks import IndRNN, SequenceModel
from liftednet.errors import SolverError
from liftednet.solvers.gradient import truncated_backward

Objective = Callable[[Tensor, Tensor], Tensor]
MakeOptimizer = Callable[[SequenceModel, float], Optimizer]
MakeNetwork = Callable[[int, int, int], SequenceModel]
Begin = Callable[[SequenceModel, Tensor, Tensor, int], None]
Augment = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True)
class Method:
    """A row of a table: a network and how it is trained.

    Attributes:
        name: of the row.
        network: builds it from features, steps and outputs.
        optimizer: builds it from the network and a learning rate.
        rates: learning rates to choose from on validation data, as many for every method.
        clip: largest norm of the gradient, or None.
        segment: steps of truncated backpropagation, or None for the whole sequence.
        begin: changes the network before training, given the training data and the seed.
        noise: deviation of the noise that sensor windows get in training.
        angle: deviation in radians of the rotations that they get instead.
        longer: how many times the passes of other rows it has.
    """

    name: str
    network: MakeNetwork
    optimizer: MakeOptimizer
    rates: tuple[float, ...]
    clip: float | None = None
    segment: int | None = None
    begin: Begin | None = None
    noise: float = 0.0
    angle: float = 0.0
    longer: int = 1


@dataclass(frozen=True)
class Budget:
    """How long a run may train; equal for all methods of a table.

    Attributes:
        gradients: batches whose gradient is computed, the inner steps of Frank-Wolfe among them.
        batch: sequences of a batch.
        checks: how often the loss is reported.
    """

    gradients: int
    batch: int
    checks: int = 10


@dataclass
class Training:
    """A model under training by one method.

    The learning rate falls linearly to 0 over the budget.

    Attributes:
        model: is changed in place.
        method: what trains it.
        rate: learning rate at the start.
        objective: loss of outputs and targets.
        budget: how long.
        seed: of the order of the batches, and of what changes them.
        augment: returns the inputs of a batch changed at random; None leaves them.
        look: is called at every check, if given.
        losses: mean training loss since the last check, one for each check; NaN ends a run that
            diverged.
        seen: what `look` returned.
    """

    model: SequenceModel
    method: Method
    rate: float
    objective: Objective
    budget: Budget
    seed: int
    augment: Augment | None = None
    look: Callable[[], float] | None = None
    losses: list[float] = field(default_factory=list)
    seen: list[float] = field(default_factory=list)

    def run(self, sequences: Sequences) -> None:
        """Train on the sequences, whose targets belong to their last steps.

        A method that refuses the gradients of a diverging network ends the run with a loss of NaN.
        """
        try:
            self._run(sequences)
        except SolverError:
            self.losses.append(math.nan)

    def _run(self, sequences: Sequences) -> None:
        optimizer = self.method.optimizer(self.model, self.rate)
        steps = max(1, self.budget.gradients // optimizer.param_groups[0].get("inner_steps", 1))
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: max(1e-3, 1 - i / steps))
        closure = self._closure(optimizer, self._batches(sequences))
        every, total = math.ceil(steps / self.budget.checks), 0.0
        for step in range(1, steps + 1):
            total += float(optimizer.step(closure))  # type: ignore[arg-type]
            schedule.step()
            if isinstance(self.model.recurrence, IndRNN):
                self.model.recurrence.constrain_()
            if step % every == 0:
                self.losses.append(total / every)
                total = 0.0
                if self.look is not None:
                    self.seen.append(self.look())

    def _batches(self, sequences: Sequences) -> Iterator[Batch]:
        source = torch.Generator().manual_seed(self.seed)
        for batch in sequences.endless(self.budget.batch, source):
            changed = batch.x if self.augment is None else self.augment(batch.x, source)
            yield replace(batch, x=changed)

    def _closure(self, optimizer: Optimizer, batches: Iterator[Batch]) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = self._backward(next(batches))
            if self.method.clip is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.method.clip)
            return loss

        return closure

    def _backward(self, batch: Batch) -> Tensor:
        if self.method.segment is not None:
            return self._truncated(batch, self.method.segment)
        loss = self.objective(self.model.at_end(batch.x, batch.lengths), batch.y)
        loss.backward()
        return loss.detach()

    def _truncated(self, batch: Batch, segment: int) -> Tensor:
        """Ask for the answer at the end of every segment: only so do early ones get gradients."""
        parts = math.ceil(batch.x.shape[1] / segment)

        def loss(outputs: Tensor, first: int) -> Tensor:
            return self.objective(outputs[:, -1], batch.y) / parts

        return truncated_backward(self.model, batch.x, segment, loss)


@torch.no_grad()
def outputs_at_end(model: SequenceModel, x: Tensor, batch: int = 500) -> Tensor:
    """Return the outputs at the last step, in evaluation mode: (samples, outputs).

    Args:
        model: is left in training mode.
        x: (samples, time, features).
        batch: samples at a time.
    """
    model.eval()
    outputs = torch.cat([model.at_end(part) for part in x.split(batch)])
    model.train()
    return outputs
