"""The adding task at several lengths (figure 3 of the paper, as a table)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import mse_loss

from benchmarks.data import Sequences, adding
from benchmarks.harness.report import Table, mean_and_spread
from benchmarks.harness.runs import Outcome, Record, matching, run_all
from benchmarks.papers.frank_wolfe.training import (
    Budget,
    Method,
    Training,
    adam,
    frank_wolfe,
    gradient_descent,
    outputs_at_end,
    vanilla,
)

HIDDEN, BATCH, TRAIN, TEST = 128, 50, 20_000, 1000
BASELINE = 1 / 6  # variance of the sum of two uniform numbers: the loss of answering 1

RATES, CLIPPED_RATES = (1e-3, 3e-3, 1e-2), (0.03, 0.1, 0.3)

_NETWORK = vanilla(HIDDEN)
METHODS = (
    Method("SGD + clipping", _NETWORK, gradient_descent, CLIPPED_RATES, clip=1.0),
    Method("Adam + clipping", _NETWORK, adam, RATES, clip=1.0),
    Method("Frank-Wolfe K = 1", _NETWORK, frank_wolfe(1), RATES),
    Method("Frank-Wolfe K = 5", _NETWORK, frank_wolfe(5), RATES),
)


@dataclass(frozen=True)
class AddingRun:
    """A network trained on the adding task."""

    method: str
    length: int
    rate: float
    gradients: int
    seed: int


def adding_table(store: Path, lengths: Sequence[int], gradients: int, seeds: int) -> Table:
    """Run what is missing, and return the table of test errors.

    Each method's rate is the best of three at the shortest length, with half the gradients and a
    seed of its own.

    Args:
        store: the file of finished runs.
        lengths: of the sequences.
        gradients: of each run.
        seeds: of each length.
    """
    trials = [
        AddingRun(method.name, min(lengths), rate, gradients // 2, seed=1000)
        for method in METHODS
        for rate in method.rates
    ]
    tried = run_all(store, trials, train_adding, "choosing rates")
    rates = {method.name: _best(tried, method.name) for method in METHODS}
    settings = [
        AddingRun(method.name, length, rates[method.name], gradients, seed)
        for length in lengths
        for method in METHODS
        for seed in range(seeds)
    ]
    return _table(run_all(store, settings, train_adding, "adding"))


def train_adding(run: AddingRun) -> Outcome:
    """Train on 20,000 sequences; return the losses on the way and the mean squared test error."""
    method = next(m for m in METHODS if m.name == run.method)
    torch.manual_seed(run.seed)
    model = method.network(2, run.length, 1)
    budget = Budget(run.gradients, BATCH, checks=20)
    training = Training(model, method, run.rate, mse_loss, budget, run.seed)
    training.run(Sequences.from_padded(*adding(TRAIN, run.length, seed=2 * run.seed)))
    x, y = adding(TEST, run.length, seed=2 * run.seed + 1)
    return {"error": float(mse_loss(outputs_at_end(model, x), y)), "losses": training.losses}


def _best(tried: Sequence[Record[AddingRun]], method: str) -> float:
    own = matching(tried, method=method)
    return min(own, key=lambda record: record.outcome["error"]).settings.rate


def _table(records: Sequence[Record[AddingRun]]) -> Table:
    lengths = sorted({record.settings.length for record in records})
    rows = []
    for method in METHODS:
        own = [matching(records, method=method.name, length=length) for length in lengths]
        cells = [_cell([r.outcome for r in part]) for part in own]
        rows.append([method.name, f"{own[0][0].settings.rate:g}", *cells])
    columns = ("method", "rate", *(f"length {length}" for length in lengths))
    notes = (
        f"Mean squared error on {TEST} new sequences (seeds); answering 1 gives {BASELINE:.3f}. "
        f"ReLU network of {HIDDEN} units started as the identity, "
        f"{records[0].settings.gradients} gradients of {BATCH} sequences for every method.",
        "Rates are the best of three at the shortest length with half the gradients, on other "
        "data. The paper prints a picture without numbers.",
    )
    return Table("Adding task", columns, rows, notes)


def _cell(outcomes: Sequence[Outcome]) -> str:
    stayed = [o["error"] for o in outcomes if _finite(o)]
    diverged = len(outcomes) - len(stayed)
    parts = [mean_and_spread(stayed, 4)] if stayed else []
    return ", ".join(parts + ([f"{diverged} diverged"] if diverged else []))


def _finite(outcome: Outcome) -> bool:
    return math.isfinite(outcome["error"]) and math.isfinite(outcome["losses"][-1])
