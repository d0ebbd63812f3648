"""The runs behind Table 1: torch networks from every start."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from benchmarks.harness.runs import Outcome
from benchmarks.papers.table1.data import loaded, sizes_of
from benchmarks.papers.table1.starts import NamedStart, Weighted, network_from
from liftednet.command.demo_starts import Samples, accuracy, epochs_of
from liftednet.data import Classification

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
