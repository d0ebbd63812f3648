"""HAR-2 and Noisy-HAR-2: the runs of the Frank-Wolfe paper's table, and how they are tuned."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.data import Sequences, har, har2, har_subjects, subsample
from benchmarks.harness.runs import Outcome, Record, best_rate, run_all
from benchmarks.papers.frank_wolfe.augmentations import Noise, Rotations
from benchmarks.papers.frank_wolfe.methods import table_methods
from benchmarks.papers.frank_wolfe.training import (
    Augment,
    Budget,
    Method,
    Training,
    outputs_at_end,
)
from liftednet.data import Classification

HIDDEN, SEGMENT, LAYERS, BATCH = 80, 16, 6, 32
NOISE_VARIANCE = 2.0
FIRST_SEED = 6  # those before had served earlier protocols


@dataclass(frozen=True)
class ActivityTrial:
    """A run that helps to choose a rate: judged on training windows of persons held out."""

    method: str
    noisy: bool
    rate: float
    noise: float
    angle: float
    gradients: int
    seed: int = 0


@dataclass(frozen=True)
class ActivityRun:
    """A run on all training windows whose test accuracy goes into the table."""

    method: str
    noisy: bool
    rate: float
    noise: float
    angle: float
    gradients: int
    seed: int


@dataclass(frozen=True)
class Extent:
    """How much of the table is run.

    Attributes:
        seeds: of each row.
        epochs: passes over the training windows, counted in gradients; of a trial too.
        windows: training windows, or None for all.
    """

    seeds: int
    epochs: int
    windows: int | None = None


def activity_runs(store: Path, extent: Extent, noisy: bool) -> list[Record[ActivityRun]]:
    """Run what is missing of one data set's column, and return all of it, seed by seed.

    Learning rates are chosen on windows of held-out persons among the training windows; then each
    seed trains on all of those; what the test windows say along the way decides nothing.

    Args:
        store: the file of finished runs.
        extent: how much is run.
        noisy: whether it is Noisy-HAR-2.
    """
    methods = table_methods(HIDDEN, SEGMENT, LAYERS, noisy)
    every = har2(noise_variance=NOISE_VARIANCE if noisy else 0.0)
    rates = _chosen_rates(store, methods, every, extent, noisy)
    windows = _some(every, extent)
    settings = [
        ActivityRun(
            m.name, noisy, rates[m.name], m.noise, m.angle, _gradients(m, windows, extent),
            FIRST_SEED + seed,
        )
        for seed in range(extent.seeds)
        for m in methods
    ]  # fmt: skip
    return run_all(store, settings, _Runner(methods, windows).run, "activity")


def _gradients(method: Method, windows: Classification, extent: Extent) -> int:
    return method.longer * extent.epochs * len(windows.x_train) // BATCH


def _some(windows: Classification, extent: Extent) -> Classification:
    if extent.windows is None:
        return windows
    return subsample(windows, extent.windows, extent.windows, seed=0)


def persons_apart(windows: Classification, persons: Tensor) -> Classification:
    """Return the training windows alone, with those of every third person as the test part.

    Neighboring windows overlap by half: a share of them at random would be known already.

    Args:
        windows: of HAR-2.
        persons: (training windows,) who wore the phone.
    """
    held = torch.isin(persons, persons.unique()[::3])
    x, y = windows.x_train, windows.y_train
    return Classification(x[~held], y[~held], x[held], y[held], windows.classes)


def _chosen_rates(
    store: Path, methods: Sequence[Method], windows: Classification, extent: Extent, noisy: bool
) -> dict[str, float]:
    kept = _some(persons_apart(windows, har_subjects()), extent)
    trials = [
        ActivityTrial(m.name, noisy, rate, m.noise, m.angle, _gradients(m, kept, extent))
        for m in methods
        for rate in m.rates
    ]
    records = run_all(store, trials, _Runner(methods, kept).run, "choosing rates")
    return {method.name: best_rate(records, method.name) for method in methods}


@dataclass(frozen=True)
class _Runner:
    """Makes runs on one split: for trials its test part is the validation part."""

    methods: Sequence[Method]
    windows: Classification

    def run(self, run: ActivityTrial | ActivityRun) -> Outcome:
        started = time.process_time()
        method = next(m for m in self.methods if m.name == run.method)
        torch.manual_seed(run.seed)  # of the start; the order of the batches has its own generator
        _, steps, features = self.windows.x_train.shape
        network = method.network(features, steps, 1)
        if method.begin is not None:
            method.begin(network, self.windows.x_train, self.windows.y_train, run.seed)
        budget, augment = Budget(run.gradients, BATCH), _augmentation(run)

        def accuracy() -> float:
            outputs = outputs_at_end(network, self.windows.x_test)
            right = (outputs[:, 0] > 0).long() == self.windows.y_test
            return float(right.double().mean())

        training = Training(
            network, method, run.rate, _logistic, budget, run.seed, augment,
            accuracy if isinstance(run, ActivityRun) else None,
        )  # fmt: skip
        training.run(Sequences.from_padded(self.windows.x_train, self.windows.y_train))
        found = {"accuracy": accuracy(), "losses": training.losses, "accuracies": training.seen}
        return {**found, "processor": round(time.process_time() - started, 3)}


def _augmentation(run: ActivityTrial | ActivityRun) -> Augment | None:
    if run.angle > 0:
        windows = har().x_train
        return Rotations(windows.mean((0, 1)), windows.std((0, 1)), run.angle)
    return Noise(run.noise) if run.noise > 0 else None


def _logistic(outputs: Tensor, labels: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(outputs[:, 0], labels.to(outputs))
