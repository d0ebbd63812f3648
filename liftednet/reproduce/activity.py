"""HAR-2 and Noisy-HAR-2: the runs of the Frank-Wolfe paper's table, and how they are tuned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from liftednet.data import Classification, Sequences, har2, har_subjects, subsample
from liftednet.reproduce.recurrent_methods import table_methods
from liftednet.reproduce.runs import Outcome, Record, run_all
from liftednet.reproduce.training import Budget, Method, Training, outputs_at_end

HIDDEN, SEGMENT, LAYERS, BATCH = 80, 16, 6, 32
NOISE_VARIANCE = 2.0
TRAINING_NOISE = 1.0  # deviation, in those of the channels
FIRST_SEED = 3  # those before had served earlier protocols


@dataclass(frozen=True)
class Trial:
    """A run that helps to choose a rate: on the training windows of HAR-2, less some persons'."""

    method: str
    rate: float
    gradients: int


@dataclass(frozen=True)
class ActivityRun:
    """A run on all training windows whose test accuracy goes into the table."""

    method: str
    noisy: bool
    rate: float
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

    Learning rates are chosen on windows of held-out persons among the training windows of HAR-2,
    for both data sets; then each seed trains on all windows, and the test windows are read once.

    Args:
        store: the file of finished runs.
        extent: how much is run.
        noisy: whether it is Noisy-HAR-2.
    """
    methods = table_methods(HIDDEN, SEGMENT, LAYERS)
    rates = _chosen_rates(store, methods, extent)
    # Noisy-HAR-2 brings its own noise.
    windows, noise = (
        (_windows(extent, NOISE_VARIANCE), 0.0)
        if noisy
        else (_windows(extent, 0.0), TRAINING_NOISE)
    )
    gradients = extent.epochs * len(windows.x_train) // BATCH
    settings = [
        ActivityRun(method.name, noisy, rates[method.name], gradients, FIRST_SEED + seed)
        for seed in range(extent.seeds)
        for method in methods
    ]
    return run_all(store, settings, _Runner(methods, windows, noise).run, "activity")


def _windows(extent: Extent, noise_variance: float) -> Classification:
    windows = har2(noise_variance=noise_variance)
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


def _chosen_rates(store: Path, methods: Sequence[Method], extent: Extent) -> dict[str, float]:
    kept = persons_apart(har2(), har_subjects())
    if extent.windows is not None:
        kept = subsample(kept, extent.windows, extent.windows, seed=0)
    gradients = extent.epochs * len(kept.x_train) // BATCH
    trials = [Trial(method.name, rate, gradients) for method in methods for rate in method.rates]
    records = run_all(store, trials, _Runner(methods, kept, TRAINING_NOISE).run, "choosing rates")
    return {method.name: _best(records, method.name) for method in methods}


def _best(records: Sequence[Record[Trial]], method: str) -> float:
    own = [record for record in records if record.settings.method == method]
    return max(own, key=lambda record: record.outcome["accuracy"]).settings.rate


@dataclass(frozen=True)
class _Runner:
    """Makes runs on one split: for trials its test part is the validation part."""

    methods: Sequence[Method]
    windows: Classification
    noise: float

    def run(self, run: Trial | ActivityRun) -> Outcome:
        method = next(m for m in self.methods if m.name == run.method)
        seed = run.seed if isinstance(run, ActivityRun) else 0
        torch.manual_seed(seed)  # of the start; the order of the batches has its own generator
        _, steps, features = self.windows.x_train.shape
        network = method.network(features, steps, 1)
        if method.begin is not None:
            method.begin(network, self.windows.x_train, self.windows.y_train, seed)
        budget = Budget(run.gradients, BATCH)
        training = Training(network, method, run.rate, _logistic, budget, seed, self.noise)
        training.run(Sequences.from_padded(self.windows.x_train, self.windows.y_train))
        outputs = outputs_at_end(training.model, self.windows.x_test)
        right = (outputs[:, 0] > 0).long() == self.windows.y_test
        return {"accuracy": float(right.double().mean()), "losses": training.losses}


def _logistic(outputs: Tensor, labels: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(outputs[:, 0], labels.to(outputs))
