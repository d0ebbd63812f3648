"""Where to start a torch network from: the same network and data, one start after another.

Lifted Neural Networks, Table 1 and Figure 2, with the control that they lack: a Kaiming start
whose output layer alone is fitted, by one convex problem.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import torch
from torch import Tensor, nn

from liftednet.activation import Activation
from liftednet.activations import Softmax
from liftednet.export import to_torch
from liftednet.losses import CrossEntropy
from liftednet.models import LiftedMLP
from liftednet.models.starts import STARTS, draw_weights
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import Design, WeightFit, Weights
from liftednet.solvers import solve

LIFTED = "lifted"
FITTED_OUTPUT = "Kaiming with fitted output"


@dataclass(frozen=True)
class Samples:
    """Inputs (samples, features) and labels (samples,)."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Task:
    """A network to train and the data to train it on.

    Attributes:
        sizes: units of the input, every hidden layer, and the output.
        activation: of the hidden layers.
        train: what every start and every network is trained on.
        valid: what settings are chosen on.
        test: what is reported.
    """

    sizes: tuple[int, ...]
    activation: Activation
    train: Samples
    valid: Samples
    test: Samples


@dataclass(frozen=True)
class Layers:
    """A feedforward network as `to_torch` takes it."""

    weights: Sequence[Weights]
    activations: Sequence[Activation]


@dataclass(frozen=True)
class Schedule:
    """How a torch network is trained: by Adam on the cross-entropy.

    Attributes:
        rates: learning rates, each tried from every start.
        epochs: passes over the training set.
        batch: samples of a step.
    """

    rates: tuple[float, ...] = (1e-3, 1e-4)
    epochs: int = 20
    batch: int = 50


@dataclass(frozen=True)
class Curve:
    """Test accuracy before training and after every epoch, from one start.

    Attributes:
        start: its name.
        rate: learning rate.
        seed: of the start and of the order of the batches.
        accuracy: epochs + 1 numbers.
        seconds: processor time that the start itself took.
        epoch_seconds: processor time of an epoch, with its test.
    """

    start: str
    rate: float
    seed: int
    accuracy: tuple[float, ...]
    seconds: float
    epoch_seconds: float


Start = Callable[[Task, int], nn.Sequential]


def accuracy(network: nn.Module, samples: Samples) -> float:
    """Return the share of samples whose largest output is at their label."""
    with torch.no_grad():
        return hits(network(samples.x).argmax(-1), samples)


def hits(predicted: Tensor, samples: Samples) -> float:
    """Return the share of predicted labels (samples,) that are right."""
    return float((predicted == samples.y).double().mean())


def drawn(name: str) -> Start:
    """Return the start that draws every layer by a distribution of `LiftedMLP`'s starts."""

    def start(task: Task, seed: int) -> nn.Sequential:
        return to_torch(_drawn_layers(task, name, seed), logits=True)  # type: ignore[no-any-return]

    return start


def fitted_output(rho: float) -> Start:
    """Return the control: Kaiming hidden layers, and the output layer by one convex problem.

    min over W, b of the cross-entropy on the hidden features + rho |W|_F^2.
    """

    def start(task: Task, seed: int) -> nn.Sequential:
        layers = _drawn_layers(task, "kaiming", seed)
        hidden = to_torch(Layers(layers.weights[:-1], layers.activations[:-1]))
        with torch.no_grad():
            features = hidden(task.train.x)
        loss = CrossEntropy()
        target = loss.encode(task.train.y, task.sizes[-1]).to(features)
        fit = WeightFit(loss.divergence, Design(features), target, SquaredFrobenius(rho))
        layers = Layers([*layers.weights[:-1], solve(fit).value], layers.activations)
        return to_torch(layers, logits=True)  # type: ignore[no-any-return]

    return start


def lifted(fit: Callable[[Task, int], LiftedMLP]) -> Start:
    """Return the start from a lifted network that `fit` trains, given task and seed."""
    return lambda task, seed: to_torch(fit(task, seed), logits=True)


def drawn_starts() -> dict[str, Start]:
    """Return the starts that only draw, by the names that a table shows."""
    shown = {"kaiming": "Kaiming", "xavier": "Xavier", "normal": "normal, variance 0.1"}
    return {shown.get(name, name.replace("-", " ")): drawn(name) for name in STARTS}


def best_on_validation(task: Task, candidates: Sequence[Start], seed: int) -> int:
    """Return the number of the start whose network is best on the validation samples, untrained."""
    scores = [accuracy(start(task, seed), task.valid) for start in candidates]
    return scores.index(max(scores))


def compare(
    task: Task, starts: dict[str, Start], seeds: Sequence[int], schedule: Schedule
) -> Iterator[Curve]:
    """Train the network from every start, with every seed and learning rate.

    Runs of one seed share the order of their batches, and those of one start its weights.

    Yields:
        A curve as soon as it is finished.
    """
    for seed in seeds:
        for name, start in starts.items():
            since = time.process_time()
            begun = start(task, seed)
            seconds = time.process_time() - since
            for rate in schedule.rates:
                network, since = copy.deepcopy(begun), time.process_time()
                adam, loss = torch.optim.Adam(network.parameters(), rate), nn.CrossEntropyLoss()
                epochs = epochs_of(network, task.train, adam, loss, schedule.batch, seed)
                found = [accuracy(network, task.test)]
                found += [accuracy(network, task.test) for _ in islice(epochs, schedule.epochs)]
                epoch = (time.process_time() - since) / schedule.epochs
                yield Curve(name, rate, seed, tuple(found), seconds, epoch)


def _drawn_layers(task: Task, name: str, seed: int) -> Layers:
    generator = torch.Generator().manual_seed(seed)
    weights = draw_weights(list(pairwise(task.sizes)), STARTS[name], generator)
    return Layers(weights, [*[task.activation] * (len(task.sizes) - 2), Softmax()])


def epochs_of(
    network: nn.Module,
    train: Samples,
    optimizer: torch.optim.Optimizer,
    loss: nn.Module,
    batch: int,
    seed: int,
) -> Iterator[None]:
    """Train without end, in an order that the seed gives; yield after every epoch."""
    order = torch.Generator().manual_seed(seed)
    while True:
        for rows in torch.randperm(len(train.y), generator=order).split(batch):
            optimizer.zero_grad()
            loss(network(train.x[rows]), train.y[rows]).backward()
            optimizer.step()
        yield
