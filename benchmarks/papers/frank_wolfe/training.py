"""One training loop for every gradient method of the Frank-Wolfe paper, and the methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.data import Batch, Sequences
from benchmarks.papers.networks import BatchNormRNN, IndRNN, PlainRNN, SequenceModel
from benchmarks.papers.through_time import truncated_backward
from liftednet.errors import SolverError
from liftednet.solvers.gradient import FrankWolfe

RADIUS = 0.03  # of the inner ball around each weight tensor; found on the training data
RATES = (5e-4, 2e-3)
GATED_RATES, SPARSE_RATES = (1e-3, 3e-3), (3e-3, 1e-2)
UNCLIPPED_RATES = (1e-4, 3e-4)  # of plain descent
CLIPPED_RATES = (0.1, 0.3)  # of plain descent, which without clipping diverges at these
SLOW_RATES, LONGER = (1e-4, 2e-4), 3  # of the IndRNN on windows as they are, which learns longer
FORGET_BIAS = 2.0
INPUT_SCALE = 10.0  # of LSTMs on HAR-2: standing persons sway by a fiftieth of what walking does
NOISE, ANGLE = 1.0, 0.1  # deviations: of the channels, and in radians
Objective = Callable[[Tensor, Tensor], Tensor]
MakeOptimizer = Callable[[SequenceModel, float], Optimizer]
MakeNetwork = Callable[[int, int, int], SequenceModel]
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

    def optimizer(self) -> Optimizer:
        """Return the method's optimizer of the model."""
        return self.method.optimizer(self.model, self.rate)

    def _run(self, sequences: Sequences) -> None:
        optimizer = self.optimizer()
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


def vanilla(hidden: int) -> MakeNetwork:
    """Return the maker of a ReLU network of one layer that starts as the identity."""

    def make(features: int, steps: int, outputs: int) -> SequenceModel:
        recurrence = PlainRNN(features, hidden, "relu")
        _start_as_identity(recurrence.get_parameter("weight_hh_l0"))
        return SequenceModel(recurrence, hidden, outputs)

    return make


def batch_normalized(hidden: int) -> MakeNetwork:
    """Return the maker of the same network with batch normalization of its input part."""

    def make(features: int, steps: int, outputs: int) -> SequenceModel:
        recurrence = BatchNormRNN(features, hidden, "relu")
        _start_as_identity(recurrence.recurrent)
        return SequenceModel(recurrence, hidden, outputs)

    return make


def lstm(hidden: int, input_scale: float | None = None) -> MakeNetwork:
    """Return the maker of an LSTM network that starts by forgetting little.

    Args:
        hidden: units.
        input_scale: deviation of the input weights at the start, where each gate of a unit then
            sees one feature on average; None: it sees all, as torch starts.
    """

    def make(features: int, steps: int, outputs: int) -> SequenceModel:
        recurrence = nn.LSTM(features, hidden, batch_first=True)
        # Gates in torch's order: input, forget, cell, output.
        nn.init.constant_(recurrence.get_parameter("bias_hh_l0")[hidden : 2 * hidden], FORGET_BIAS)
        if input_scale is not None:
            weight = recurrence.get_parameter("weight_ih_l0")
            nn.init.sparse_(weight, 1 - 1 / features, input_scale)
        return SequenceModel(recurrence, hidden, outputs)

    return make


def independent(hidden: int, layers: int) -> MakeNetwork:
    """Return the maker of a stacked IndRNN."""

    def make(features: int, steps: int, outputs: int) -> SequenceModel:
        return SequenceModel(IndRNN(features, hidden, layers, steps), hidden, outputs)

    return make


def gradient_descent(model: SequenceModel, rate: float) -> Optimizer:
    """Return plain stochastic gradient descent."""
    return torch.optim.SGD(model.parameters(), rate)


def adam(model: SequenceModel, rate: float) -> Optimizer:
    """Return Adam with torch's settings."""
    return torch.optim.Adam(model.parameters(), rate)


def frank_wolfe(inner_steps: int) -> MakeOptimizer:
    """Return the maker of Frank-Wolfe with K inner steps and Adam's outer step."""

    def make(model: SequenceModel, rate: float) -> Optimizer:
        return FrankWolfe(
            [p for p in model.parameters() if p.requires_grad],
            rate,
            radius=RADIUS,
            inner_steps=inner_steps,
            outer=torch.optim.Adam,
        )

    return make


def table_methods(
    hidden: int, segment: int, layers: int, noisy: bool = False
) -> tuple[Method, ...]:
    """Return the twelve rows of the paper's table III, and those that it lacks.

    Args:
        hidden: units of a layer.
        segment: steps of truncated backpropagation.
        layers: of the IndRNN.
        noisy: whether the windows have noise, which hides what rotations and the LSTM's sparse
            start are for: how the phone sits, and how its bearer sways.
    """
    gated = lstm(hidden, None if noisy else INPUT_SCALE)
    gated_rates = GATED_RATES if noisy else SPARSE_RATES
    stacked, five = independent(hidden, layers), frank_wolfe(5)
    plain_rows = _plain_methods(hidden, segment)
    deep_rows = (
        Method("LSTM + Adam", gated, adam, gated_rates),
        Method("LSTM + Frank-Wolfe", gated, five, gated_rates),
        Method("IndRNN + Adam", stacked, adam, RATES),
        Method("IndRNN + Frank-Wolfe", stacked, five, RATES),
    )
    if noisy:
        return plain_rows + deep_rows
    return (
        *(replace(method, noise=NOISE) for method in plain_rows),
        *(replace(method, angle=ANGLE) for method in deep_rows),
        Method("IndRNN + Adam, longer", stacked, adam, SLOW_RATES, longer=LONGER),
    )


def _plain_methods(hidden: int, segment: int) -> tuple[Method, ...]:
    plain, normed, five = vanilla(hidden), batch_normalized(hidden), frank_wolfe(5)
    return (
        Method("SGD", plain, gradient_descent, UNCLIPPED_RATES),
        Method("SGD + clipping", plain, gradient_descent, CLIPPED_RATES, clip=1.0),
        Method("Adam + clipping", plain, adam, RATES, clip=1.0),
        Method("Truncated", plain, adam, RATES, segment=segment),
        Method("Frank-Wolfe K = 1", plain, frank_wolfe(1), RATES),
        Method("Frank-Wolfe K = 5", plain, five, RATES),
        Method("Frank-Wolfe K = 10", plain, frank_wolfe(10), RATES),
        Method("Batch norm + Frank-Wolfe", normed, five, RATES),
        Method("Truncated + Frank-Wolfe", plain, five, RATES, segment=segment),
    )


@torch.no_grad()
def _start_as_identity(weight: Tensor) -> None:
    weight.copy_(torch.eye(len(weight)))


@dataclass(frozen=True)
class Noise:
    """Adds Gaussian noise to every value.

    Attributes:
        deviation: in the units of the values.
    """

    deviation: float

    def __call__(self, x: Tensor, source: torch.Generator) -> Tensor:
        """Return values with noise.

        Args:
            x: of any shape.
            source: of the noise.
        """
        return x + self.deviation * torch.randn(x.shape, generator=source)


@dataclass(frozen=True)
class Rotations:
    """Turns every window by a small random rotation of its own, the same for all its sensors.

    Attributes:
        mean: (channels,) of the sensors' own units, three axes of each in a row.
        deviation: (channels,) by which the normalized windows are to be multiplied.
        angle: deviation of the rotation about each axis, in radians.
    """

    mean: Tensor
    deviation: Tensor
    angle: float

    def __call__(self, x: Tensor, source: torch.Generator) -> Tensor:
        """Return normalized windows (batch, time, channels) that are turned.

        Args:
            x: (batch, time, channels), normalized.
            source: of the rotations.
        """
        vectors = self.angle * torch.randn(len(x), 3, generator=source)
        sensors = (x * self.deviation + self.mean).unflatten(2, (-1, 3))
        turned: Tensor = sensors @ rotation_matrices(vectors).to(x)[:, None]
        return (turned.flatten(2) - self.mean) / self.deviation


def rotation_matrices(vectors: Tensor) -> Tensor:
    """Return the rotations (count, 3, 3) about axes and by angles given as vectors (count, 3)."""
    identity = torch.eye(3).to(vectors)
    rotations: Tensor = torch.linalg.matrix_exp(
        torch.linalg.cross(vectors[:, None], identity[None], dim=-1)
    )
    return rotations
