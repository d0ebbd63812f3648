"""HAR-2 and Noisy-HAR-2: the table of the Frank-Wolfe paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from liftednet.data import Classification, Sequences, har2, split, subsample
from liftednet.reproduce.recurrent_methods import table_methods
from liftednet.reproduce.runs import Outcome, Record, run_all
from liftednet.reproduce.tables import Table, mean_and_spread
from liftednet.reproduce.training import Budget, Method, Training, outputs_at_end

HIDDEN, SEGMENT, LAYERS, BATCH = 80, 16, 6, 32
NOISE_VARIANCE = 2.0

# Test accuracy in per cent on HAR-2 and Noisy-HAR-2, as printed (table III).
PRINTED = {
    "SGD": (87.66, 74.38),
    "SGD + clipping": (93.36, 74.38),
    "Truncated": (93.62, 86.20),
    "LSTM + Adam": (94.40, 92.12),
    "Frank-Wolfe K = 1": (93.52, 86.04),
    "Frank-Wolfe K = 5": (94.11, 89.36),
    "Frank-Wolfe K = 10": (93.65, 89.52),
    "Batch norm + Frank-Wolfe": (94.37, 89.38),
    "Truncated + Frank-Wolfe": (94.01, 89.28),
    "LSTM + Frank-Wolfe": (94.95, 92.41),
    "IndRNN + Adam": (95.73, 91.20),
    "IndRNN + Frank-Wolfe": (96.55, 92.15),
}


@dataclass(frozen=True)
class Trial:
    """A run that helps to choose a learning rate: on a part of the training windows of HAR-2."""

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
        epochs: passes over the training windows, counted in gradients.
        trial_epochs: the same for the choice of a learning rate.
        windows: training windows, or None for all.
    """

    seeds: int
    epochs: int
    trial_epochs: int
    windows: int | None = None


def activity_table(store: Path, extent: Extent, noisy: bool) -> Table:
    """Run what is missing of one data set's column, and return it as a table.

    Learning rates are chosen on a sixth of the training windows of HAR-2 with seed 0, for both
    data sets; then each seed trains on all windows, and the test windows are read once.

    Args:
        store: the file of finished runs.
        extent: how much is run.
        noisy: whether it is Noisy-HAR-2.
    """
    methods = table_methods(HIDDEN, SEGMENT, LAYERS)
    rates = _chosen_rates(store, methods, extent)
    windows = _windows(extent, NOISE_VARIANCE if noisy else 0.0)
    gradients = extent.epochs * len(windows.x_train) // BATCH
    settings = [
        ActivityRun(method.name, noisy, rates[method.name], gradients, seed)
        for method in methods
        for seed in range(extent.seeds)
    ]
    records = run_all(store, settings, _Runner(methods, windows).final, "activity")
    return _table(records, methods, noisy, extent)


def _windows(extent: Extent, noise_variance: float) -> Classification:
    windows = har2(noise_variance=noise_variance)
    if extent.windows is None:
        return windows
    return subsample(windows, extent.windows, extent.windows, seed=0)


def _chosen_rates(store: Path, methods: Sequence[Method], extent: Extent) -> dict[str, float]:
    windows = _windows(extent, 0.0)
    kept = Classification(*split(windows.x_train, windows.y_train, 1 / 6, seed=0), classes=2)
    gradients = extent.trial_epochs * len(kept.x_train) // BATCH
    trials = [Trial(method.name, rate, gradients) for method in methods for rate in method.rates]
    records = run_all(store, trials, _Runner(methods, kept).trial, "choosing rates")
    return {method.name: _best(records, method.name) for method in methods}


def _best(records: Sequence[Record[Trial]], method: str) -> float:
    own = [record for record in records if record.settings.method == method]
    return max(own, key=lambda record: record.outcome["accuracy"]).settings.rate


@dataclass(frozen=True)
class _Runner:
    """Makes runs on one split: for trials its test part is the validation part."""

    methods: Sequence[Method]
    windows: Classification

    def trial(self, trial: Trial) -> Outcome:
        return self._train(trial.method, trial.rate, trial.gradients, seed=0)

    def final(self, run: ActivityRun) -> Outcome:
        return self._train(run.method, run.rate, run.gradients, run.seed)

    def _train(self, name: str, rate: float, gradients: int, seed: int) -> Outcome:
        method = next(m for m in self.methods if m.name == name)
        torch.manual_seed(seed)  # of the start; the order of the batches has its own generator
        _, steps, features = self.windows.x_train.shape
        training = Training(
            method.network(features, steps, 1),
            method,
            rate,
            _logistic,
            Budget(gradients, BATCH),
            seed,
        )
        training.run(Sequences.from_padded(self.windows.x_train, self.windows.y_train))
        outputs = outputs_at_end(training.model, self.windows.x_test)
        right = (outputs[:, 0] > 0).long() == self.windows.y_test
        return {"accuracy": float(right.double().mean()), "losses": training.losses}


def _logistic(outputs: Tensor, labels: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(outputs[:, 0], labels.to(outputs))


def _table(
    records: Sequence[Record[ActivityRun]],
    methods: Sequence[Method],
    noisy: bool,
    extent: Extent,
) -> Table:
    rows = []
    for method in methods:
        own = [record for record in records if record.settings.method == method.name]
        accuracies = [100 * record.outcome["accuracy"] for record in own]
        printed = PRINTED.get(method.name)
        diverged = sum(not math.isfinite(record.outcome["losses"][-1]) for record in own)
        rows.append(
            [
                method.name,
                "not in the paper" if printed is None else f"{printed[noisy]:.2f}",
                mean_and_spread(accuracies, 2) + (f", {diverged} diverged" if diverged else ""),
                f"{min(accuracies):.2f}",
                f"{max(accuracies):.2f}",
                f"{own[0].settings.rate:g}",
                f"{sum(record.seconds for record in own) / len(own):.0f}",
            ]
        )
    title = "Noisy-HAR-2" if noisy else "HAR-2"
    columns = ("method", "paper %", "test % (seeds)", "least", "most", "rate", "seconds")
    notes = (
        f"Every row: {extent.epochs} passes over the training windows in batches of {BATCH}, "
        "counted in gradients, so that K inner steps cost K; the rate falls linearly to 0.",
        f"The rate is the best of three on a sixth of the training windows of HAR-2 "
        f"({extent.trial_epochs} passes, seed 0); the test windows are read once a seed.",
        "The paper trains for hundreds of passes and reports the best test accuracy.",
    )
    return Table(title, columns, rows, notes)
