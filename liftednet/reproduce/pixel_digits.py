"""Pixel-by-pixel and permuted MNIST, at a size that a machine without a GPU allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from liftednet.data import Classification, Sequences, mnist, pixel_sequences, subsample
from liftednet.reproduce.recurrent_methods import adam, frank_wolfe, independent, vanilla
from liftednet.reproduce.runs import Outcome, Record, run_all
from liftednet.reproduce.tables import Table
from liftednet.reproduce.training import Budget, Method, Training, outputs_at_end

HIDDEN, BATCH, SEGMENT, LAYERS, TEST = 128, 64, 196, 6, 1000
ADAM_RATE, LOOKING_RATE = 1e-3, 3e-3

_FIVE = frank_wolfe(5)
METHODS = (
    Method("RNN, Adam + clipping", vanilla(HIDDEN), adam, (ADAM_RATE,), clip=1.0),
    Method("RNN, truncated", vanilla(HIDDEN), adam, (ADAM_RATE,), clip=1.0, segment=SEGMENT),
    Method("RNN, Frank-Wolfe K = 5", vanilla(HIDDEN), _FIVE, (LOOKING_RATE,)),
    Method(
        "RNN, truncated + Frank-Wolfe", vanilla(HIDDEN), _FIVE, (LOOKING_RATE,), segment=SEGMENT
    ),
    Method("IndRNN, Adam", independent(HIDDEN, LAYERS), adam, (ADAM_RATE,)),
    Method("IndRNN, Frank-Wolfe K = 5", independent(HIDDEN, LAYERS), _FIVE, (LOOKING_RATE,)),
)
# Test accuracy in per cent after 400 epochs, as printed (table II).
PRINTED = {"IndRNN, Adam": (98.88, 93.00), "IndRNN, Frank-Wolfe K = 5": (98.82, 92.59)}


@dataclass(frozen=True)
class PixelRun:
    """A network trained on sequences of pixels."""

    method: str
    permuted: bool
    rate: float
    gradients: int
    seed: int


def pixel_table(store: Path, gradients: dict[str, int]) -> Table:
    """Run what is missing and return test accuracies, plain and permuted.

    Args:
        store: the file of finished runs.
        gradients: of the runs with "RNN" and those with "IndRNN".
    """
    images = mnist()
    settings = [
        PixelRun(
            method.name, permuted, method.rates[0], gradients[method.name.split(",")[0]], seed=0
        )
        for permuted in (False, True)
        for method in METHODS
    ]
    records = run_all(store, settings, lambda run: train_pixels(run, images), "pixels")
    return _table(records)


def train_pixels(run: PixelRun, images: Classification) -> Outcome:
    """Train on batches of the training images; return losses and test accuracy."""
    method = next(m for m in METHODS if m.name == run.method)
    # Only the images that the budget can show are turned into sequences.
    shown = subsample(images, min(60_000, run.gradients * BATCH), TEST, run.seed)
    pixels = pixel_sequences(shown, permutation_seed=0 if run.permuted else None)
    torch.manual_seed(run.seed)
    model = method.network(1, pixels.x_train.shape[1], 10)
    budget = Budget(run.gradients, BATCH)
    training = Training(model, method, run.rate, cross_entropy, budget, run.seed)
    training.run(Sequences.from_padded(pixels.x_train, pixels.y_train))
    right = outputs_at_end(model, pixels.x_test).argmax(1) == pixels.y_test
    return {"accuracy": float(right.double().mean()), "losses": training.losses}


def _table(records: Sequence[Record[PixelRun]]) -> Table:
    rows = []
    for method in METHODS:
        plain, permuted = (
            next(r for r in records if (r.settings.method, r.settings.permuted) == (method.name, p))
            for p in (False, True)
        )
        printed = PRINTED.get(method.name)
        rows.append(
            [
                method.name,
                str(plain.settings.gradients),
                "only a curve" if printed is None else f"{printed[0]:.2f}",
                f"{100 * plain.outcome['accuracy']:.1f}",
                "only a curve" if printed is None else f"{printed[1]:.2f}",
                f"{100 * permuted.outcome['accuracy']:.1f}",
                f"{plain.seconds:.0f}",
            ]
        )
    columns = (
        "method",
        "gradients",
        "paper pixel %",
        "pixel %",
        "paper permuted %",
        "permuted %",
        "seconds",
    )
    notes = (
        f"{HIDDEN} units, batches of {BATCH}, one seed, rates not tuned, {TEST} test images. The "
        "paper trains for hundreds of epochs (400 for the IndRNN; one epoch is 938 such "
        "gradients): these figures show that the methods run and where they stand after the "
        "gradients in the table, not what they reach.",
    )
    return Table("Pixel-MNIST and Permute-MNIST", columns, rows, notes)
