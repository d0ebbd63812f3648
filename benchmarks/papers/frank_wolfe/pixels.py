"""Pixel-by-pixel and permuted MNIST, at a size that a machine without a GPU allows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, cross_entropy

from benchmarks.data import Sequences, pixel_sequences
from benchmarks.harness.runs import Outcome, Record, best_rate, matching, run_all
from benchmarks.harness.tables import Table
from benchmarks.papers.frank_wolfe.methods import RATES, adam, frank_wolfe, independent, vanilla
from benchmarks.papers.frank_wolfe.training import Budget, Method, Training, outputs_at_end
from liftednet.data import Classification, mnist, split

HIDDEN, BATCH, LAYERS = 128, 64, 6
SIDE, SEGMENT = 14, 49  # pixels; steps, a quarter of an image as in the paper
HELD_OUT, TRIAL_SHARE = 2000, 5

_FIVE = frank_wolfe(5)
METHODS = (
    Method("RNN, Adam + clipping", vanilla(HIDDEN), adam, RATES, clip=1.0),
    Method("RNN, truncated", vanilla(HIDDEN), adam, RATES, clip=1.0, segment=SEGMENT),
    Method("RNN, Frank-Wolfe K = 5", vanilla(HIDDEN), _FIVE, RATES),
    Method("RNN, truncated + Frank-Wolfe", vanilla(HIDDEN), _FIVE, RATES, segment=SEGMENT),
    Method("IndRNN, Adam", independent(HIDDEN, LAYERS), adam, RATES),
    Method("IndRNN, Frank-Wolfe K = 5", independent(HIDDEN, LAYERS), _FIVE, RATES),
)
# Test accuracy in per cent of whole images after 400 epochs, as printed (table II).
PRINTED = {"IndRNN, Adam": (98.88, 93.00), "IndRNN, Frank-Wolfe K = 5": (98.82, 92.59)}


@dataclass(frozen=True)
class PixelTrial:
    """A run that helps to choose a rate: judged on training images that it does not see."""

    method: str
    rate: float
    gradients: int
    seed: int = 0
    permuted: bool = False


@dataclass(frozen=True)
class PixelRun:
    """A run that goes into the table."""

    method: str
    rate: float
    gradients: int
    seed: int
    permuted: bool


def pixel_table(store: Path, gradients: dict[str, int]) -> Table:
    """Run what is missing and return test accuracies, plain and permuted.

    Args:
        store: the file of finished runs.
        gradients: of the runs with "RNN" and those with "IndRNN".
    """
    images = coarse(mnist())
    budgets = {method.name: gradients[method.name.split(",")[0]] for method in METHODS}
    rates = _chosen_rates(store, images, budgets)
    settings = [
        PixelRun(name, rates[name], budgets[name], 1, permuted)
        for permuted in (False, True)
        for name in budgets
    ]
    records = run_all(store, settings, lambda run: train_pixels(run, images), "pixels")
    return _table(records)


def coarse(images: Classification) -> Classification:
    """Return images of 14 by 14 pixels, each the mean of four: a quarter of the steps."""

    def pooled(x: Tensor) -> Tensor:
        squares = x.unflatten(1, (1, 2 * SIDE, 2 * SIDE))
        return avg_pool2d(squares, 2).flatten(1)

    return replace(images, x_train=pooled(images.x_train), x_test=pooled(images.x_test))


def train_pixels(run: PixelTrial | PixelRun, images: Classification) -> Outcome:
    """Train on batches of the training images; return losses and test accuracy."""
    method = next(m for m in METHODS if m.name == run.method)
    pixels = pixel_sequences(images, permutation_seed=0 if run.permuted else None)
    torch.manual_seed(run.seed)
    model = method.network(1, pixels.x_train.shape[1], 10)
    budget = Budget(run.gradients, BATCH)
    training = Training(model, method, run.rate, cross_entropy, budget, run.seed)
    training.run(Sequences.from_padded(pixels.x_train, pixels.y_train))
    right = outputs_at_end(model, pixels.x_test).argmax(1) == pixels.y_test
    return {"accuracy": float(right.double().mean()), "losses": training.losses}


def _chosen_rates(store: Path, images: Classification, budgets: dict[str, int]) -> dict[str, float]:
    kept = _without_test(images)
    trials = [
        PixelTrial(method.name, rate, budgets[method.name] // TRIAL_SHARE)
        for method in METHODS
        for rate in method.rates
    ]
    tried = run_all(store, trials, lambda run: train_pixels(run, kept), "choosing rates")
    return {name: best_rate(tried, name) for name in budgets}


def _without_test(images: Classification) -> Classification:
    held_out = HELD_OUT / len(images.x_train)
    parts = split(images.x_train, images.y_train, held_out, seed=0)
    return Classification(*parts, images.classes)


def _table(records: Sequence[Record[PixelRun]]) -> Table:
    rows = []
    for method in METHODS:
        plain, permuted = (
            matching(records, method=method.name, permuted=permuted)[0]
            for permuted in (False, True)
        )
        printed = PRINTED.get(method.name)
        cells = ["a curve"] * 2 if printed is None else [f"{number:.2f}" for number in printed]
        rows.append(
            [
                method.name,
                f"{plain.settings.rate:g}",
                str(plain.settings.gradients),
                cells[0],
                _percent(plain),
                cells[1],
                _percent(permuted),
                f"{plain.seconds:.0f}",
            ]
        )
    columns = ("method", "rate", "gradients", "paper pixel %", "pixel %", "paper permuted %")
    notes = (
        f"Images of {SIDE} by {SIDE} pixels, so {SIDE * SIDE} steps where the paper has 784: whole "
        f"images have not been run. {HIDDEN} units, batches of {BATCH} of all training images, all "
        "10,000 test images, read once; one seed.",
        f"Each rate is the better of two on {HELD_OUT} held-out training images, in order, with a "
        f"fifth of the gradients.",
        "The paper trains for hundreds of epochs (400 for the IndRNN; one epoch is 938 such "
        "gradients): this shows where the methods stand after the gradients in the table, not what "
        "they reach.",
    )
    return Table("Pixel-MNIST and Permute-MNIST", (*columns, "permuted %", "seconds"), rows, notes)


def _percent(record: Record[PixelRun]) -> str:
    diverged = not math.isfinite(record.outcome["losses"][-1])
    return f"{100 * record.outcome['accuracy']:.1f}" + (" (diverged)" if diverged else "")
