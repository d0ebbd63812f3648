"""The runs behind Table 1: torch networks from every start."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from liftednet.data import (
    Classification,
    digits,
    har,
    har_subjects,
    mnist,
    split,
    subsample,
)
from liftednet.reproduce.runs import Outcome
from liftednet.reproduce.starts import Samples, accuracy, epochs_of
from liftednet.reproduce.table1_starts import (
    NamedStart,
    Weighted,
    network_from,
)

ARCHITECTURES = {
    "300": (300,),
    "300-100": (300, 100),
    "500-150": (500, 150),
    "500-200-100": (500, 200, 100),
    "400-200-100-50": (400, 200, 100, 50),
    "10 x 100": (100,) * 10,
}
BATCH = 100
PAPER_RHO = 1e-3


@dataclass(frozen=True)
class StartRun:
    """A torch network from one start.

    `held_out` says that the tests are made on a sixth of the training data, for choices.
    """

    data: str
    architecture: str
    start: str
    optimizer: str
    rate: float
    epochs: int
    seed: int
    samples: int
    held_out: bool


@dataclass
class Bench:
    """Makes runs; the data and the last start are kept between them.

    Attributes:
        starts: by which a `StartRun` finds its own.
        test_samples: of MNIST.
    """

    starts: Sequence[NamedStart]
    test_samples: int = 10_000
    _data: dict[tuple[str, int, bool], Classification] = field(default_factory=dict)
    _layers: dict[tuple[object, ...], tuple[Weighted, float]] = field(default_factory=dict)

    def from_start(self, run: StartRun) -> Outcome:
        """Train a torch network, tested before and after every epoch."""
        data = self._samples(run.data, run.samples, run.held_out)
        layers, pretraining = self._begun(run, data)
        network = network_from(layers)
        started = time.perf_counter()
        accuracy = train(network, data, OPTIMIZERS[run.optimizer], run.rate, run.epochs, run.seed)
        return {
            "accuracy": accuracy,
            "pretraining": round(pretraining, 2),
            "training": round(time.perf_counter() - started, 2),
        }

    def _begun(self, run: StartRun, data: Classification) -> tuple[Weighted, float]:
        key = (run.data, run.architecture, run.start, run.seed, run.samples, run.held_out)
        if key not in self._layers:
            start = next(named.start for named in self.starts if named.name == run.start)
            started = time.perf_counter()
            layers = start(data, sizes_of(data, run.architecture), run.seed)
            self._layers = {key: (layers, time.perf_counter() - started)}
        return self._layers[key]

    def _samples(self, name: str, samples: int, held_out: bool) -> Classification:
        key = (name, samples, held_out)
        if key not in self._data:
            self._data[key] = loaded(name, samples, self.test_samples, held_out)
        return self._data[key]


def loaded(name: str, samples: int, test_samples: int, held_out: bool) -> Classification:
    """Return data by name, or a part of them with another part of the training data to test on."""
    source = SOURCES[name]
    data = source.load()
    if samples < len(data.x_train):
        data = subsample(data, samples, min(test_samples, len(data.x_test)), seed=0)
    return source.hold_out(data) if held_out else data


def _random_part(data: Classification) -> Classification:
    return Classification(*split(data.x_train, data.y_train, 1 / 6, 0), data.classes)


def _windows() -> Classification:
    """Return the windows of HAR as rows, every channel with mean 0 and variance 1."""
    data = har()
    mean, deviation = data.x_train.mean((0, 1)), data.x_train.std((0, 1))
    train, test = (((x - mean) / deviation).flatten(1) for x in (data.x_train, data.x_test))
    return Classification(train, data.y_train, test, data.y_test, data.classes)


def _four_persons(data: Classification) -> Classification:
    """Hold out persons: neighboring windows overlap, so that random ones would tell nothing."""
    persons = har_subjects()
    held = torch.isin(persons, persons.unique()[2::5])
    x, y = data.x_train, data.y_train
    return Classification(x[~held], y[~held], x[held], y[held], data.classes)


@dataclass(frozen=True)
class Source:
    """Data by name.

    Attributes:
        load: returns all of them.
        hold_out: returns a part of the training data with another part as its test data.
    """

    load: Callable[[], Classification]
    hold_out: Callable[[Classification], Classification] = _random_part


SOURCES = {
    "mnist": Source(mnist),
    "digits": Source(digits),
    "har": Source(_windows, _four_persons),
}


def sizes_of(data: Classification, architecture: str) -> tuple[int, ...]:
    """Return the units of inputs, hidden layers and outputs."""
    return (data.x_train.shape[1], *ARCHITECTURES[architecture], data.classes)


@dataclass(frozen=True)
class Optimizer:
    """How a torch network is trained.

    Attributes:
        make: the optimizer from network and rate.
        reduction: of the cross-entropy over a batch.
    """

    make: Callable[[nn.Module, float], torch.optim.Optimizer]
    reduction: str = "mean"


OPTIMIZERS = {
    # The printed rates fit a loss that is summed over the batch: with the mean, 17 epochs at
    # 1e-5 would leave every random start where it was.
    "paper": Optimizer(
        lambda network, rate: torch.optim.SGD(
            network.parameters(), rate, weight_decay=2 * PAPER_RHO
        ),
        "sum",
    ),
    "SGD": Optimizer(lambda network, rate: torch.optim.SGD(network.parameters(), rate)),
    "Adam": Optimizer(lambda network, rate: torch.optim.Adam(network.parameters(), rate)),
}


def train(
    network: nn.Sequential,
    data: Classification,
    optimizer: Optimizer,
    rate: float,
    epochs: int,
    seed: int,
) -> list[float]:
    """Train on the cross-entropy at a constant rate; return test accuracies, epochs + 1 numbers."""
    steps, loss = optimizer.make(network, rate), nn.CrossEntropyLoss(reduction=optimizer.reduction)
    samples, test = Samples(data.x_train, data.y_train), Samples(data.x_test, data.y_test)
    passes = itertools.islice(epochs_of(network, samples, steps, loss, BATCH, seed), epochs)
    return [accuracy(network, test), *(accuracy(network, test) for _ in passes)]
