"""Networks by themselves: the lifted one without options, and opponents that are tuned."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.harness.exact import exact_gradients
from benchmarks.harness.runs import Outcome, Record
from benchmarks.harness.tables import Table, mean_and_spread
from benchmarks.harness.tuning import tuned
from benchmarks.papers.table1.data import loaded, sizes_of
from benchmarks.papers.table1.extent import Extent
from benchmarks.papers.table1.starts import drawn, network_from, unit_variance
from liftednet.command.demo_starts import shuffled
from liftednet.data import Classification
from liftednet.losses import CrossEntropy
from liftednet.models import LiftedMLP, Minibatch

# Test accuracy as printed, by hidden layers.
PRINTED = {
    "300": 0.898,
    "300-100": 0.875,
    "500-150": 0.865,
    "500-200-100": 0.853,
    "400-200-100-50": 0.770,
}
OURS, EXACT = "lifted", "exact gradients, same step"
ADAMW, MUON, LBFGS = "AdamW", "Muon", "L-BFGS"
_MEMORY = 20  # pairs that L-BFGS keeps
_FACTOR = 3.0  # from one rate or decay to the next
STARTS = {
    "kaiming": drawn("kaiming"),
    "orthogonal": drawn("orthogonal"),
    "LSUV": unit_variance,
}


@dataclass(frozen=True)
class AloneRun:
    """One training; the fields after `architecture` are those of a user who gives no options.

    Attributes:
        samples: of MNIST to train on.
        epochs: passes over them; evaluations of L-BFGS on all of them.
        architecture: of the hidden layers.
        method: who trains.
        rate: of the step at its beginning; it falls linearly to zero, but for L-BFGS, whose line
            searches begin there.
        decay: of the weights; rho for the lifted network.
        smoothing: of the labels.
        batch: samples of a step.
        start: of the weights.
        seed: of start and order.
        held_out: whether a sixth of the training data is trained without and tested on.
    """

    samples: int
    epochs: int
    architecture: str
    method: str = OURS
    rate: float = 0.3
    decay: float = 1.0
    smoothing: float = 0.0
    batch: int = 100
    start: str = "auto"
    seed: int = 0
    held_out: bool = False


@dataclass(frozen=True)
class Row:
    """A method as a table shows it.

    Attributes:
        name: of the row.
        first: where the search begins, or the setting itself.
        search: as `tuned` takes it.
    """

    name: str
    first: AloneRun
    search: Sequence[tuple[str, float | tuple[object, ...]]] = ()


def rows_of(samples: int, epochs: int, architecture: str) -> list[Row]:
    """Return the methods that are compared on an architecture."""
    ours = AloneRun(samples, epochs, architecture)
    adamw = replace(ours, method=ADAMW, rate=1e-3, decay=0.1, smoothing=0.1, start="kaiming")
    scales: list[tuple[str, float | tuple[object, ...]]] = [("rate", _FACTOR), ("decay", _FACTOR)]
    again = ("rate", _FACTOR)
    lbfgs = replace(adamw, method=LBFGS, epochs=10 * epochs, rate=1.0, decay=0.0)
    return [
        Row("lifted, no option", ours),
        Row(EXACT, replace(ours, method=EXACT)),
        Row("lifted, labels smoothed", replace(ours, smoothing=0.1)),
        Row(
            "AdamW, tuned",
            adamw,
            [*scales, ("decay", (0.0,)), ("smoothing", (0.0,)), ("batch", (50, 200)),
             ("start", ("orthogonal", "LSUV")), again],
        ),
        Row("Muon, tuned", replace(adamw, method=MUON, rate=3e-3, batch=400), scales),
        Row(
            "L-BFGS, tuned",
            replace(lbfgs, epochs=5 * epochs // 2, decay=1e-5),
            [*scales, ("decay", (0.0,)), ("smoothing", (0.0,)),
             ("start", ("orthogonal", "LSUV")), again],
        ),
        Row("L-BFGS, ten times the passes", lbfgs),
    ]  # fmt: skip


def train(run: AloneRun, test_samples: int = 10_000) -> Outcome:
    """Train a network and read what it is tested on, of MNIST so many samples, once."""
    data = loaded("mnist", run.samples, test_samples, run.held_out)
    started = time.process_time()
    if run.method == EXACT:
        with exact_gradients():
            predict = _by_library(run, data)
    else:
        predict = (_by_library if run.method == OURS else _by_torch)(run, data)
    seconds = time.process_time() - started
    with torch.no_grad():
        right = predict(data.x_test) == data.y_test
    return {"accuracy": float(right.double().mean()), "processor": round(seconds, 2)}


def _by_library(run: AloneRun, data: Classification) -> Callable[[Tensor], Tensor]:
    method = Minibatch(epochs=run.epochs, batch_size=run.batch, rate=run.rate)
    model = LiftedMLP(
        sizes_of(data, run.architecture), loss=CrossEntropy(run.smoothing), rho=run.decay,
        method=method, start=run.start, seed=run.seed,
    )  # fmt: skip
    return model.fit(data.x_train, data.y_train).predict


def _by_torch(run: AloneRun, data: Classification) -> Callable[[Tensor], Tensor]:
    mean = data.x_train.mean(0)
    centered = replace(data, x_train=data.x_train - mean)
    network = network_from(STARTS[run.start](centered, sizes_of(data, run.architecture), run.seed))
    if run.method == LBFGS:
        _by_lbfgs(network, centered, run)
    else:
        fall(network, centered, _optimizers(network, run), run)
    return lambda x: network(x - mean).argmax(1)


def _optimizers(network: nn.Sequential, run: AloneRun) -> list[torch.optim.Optimizer]:
    """Return AdamW, or Muon below the output and AdamW for the rest; biases do not decay."""
    *hidden, output = [p for p in network.parameters() if p.ndim == 2]
    biases = [p for p in network.parameters() if p.ndim == 1]
    bound = [output] if run.method == MUON else [*hidden, output]
    groups = [
        {"params": bound, "weight_decay": run.decay},
        {"params": biases, "weight_decay": 0.0},
    ]
    found: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, run.rate, fused=True)]
    if run.method == MUON:
        found += [
            torch.optim.Muon(
                hidden, run.rate, weight_decay=run.decay, adjust_lr_fn="match_rms_adamw"
            )
        ]
    return found


def fall(
    network: nn.Module,
    data: Classification,
    optimizers: Sequence[torch.optim.Optimizer],
    run: AloneRun,
) -> None:
    """Train on smoothed cross-entropy, the rate falling linearly to zero."""
    order, done = torch.Generator().manual_seed(run.seed), 0
    loss = nn.CrossEntropyLoss(label_smoothing=run.smoothing)
    total = run.epochs * -(-len(data.x_train) // run.batch)
    for _ in range(run.epochs):
        for rows in shuffled(len(data.x_train), run.batch, order):
            loss(network(data.x_train[rows]), data.y_train[rows]).backward()
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = run.rate * (1 - done / total)
                optimizer.step()
                optimizer.zero_grad()
            done += 1


def _by_lbfgs(network: nn.Module, data: Classification, run: AloneRun) -> None:
    loss = nn.CrossEntropyLoss(label_smoothing=run.smoothing)
    matrices = [p for p in network.parameters() if p.ndim == 2]
    optimizer = torch.optim.LBFGS(
        network.parameters(), run.rate, max_iter=run.epochs, max_eval=run.epochs,
        history_size=_MEMORY, line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> Tensor:
        optimizer.zero_grad()
        value: Tensor = loss(network(data.x_train), data.y_train)
        value = value + run.decay / 2 * torch.stack([p.square().sum() for p in matrices]).sum()
        value.backward()
        return value

    optimizer.step(closure)


def alone_table(folder: Path, extent: Extent) -> Table:
    """Run what is missing, and return the table.

    Args:
        folder: of the finished runs.
        extent: how much is run.
    """
    run = partial(train, test_samples=extent.test_samples)
    records = partial(extent.records, folder / "alone.jsonl", run=run, title="by themselves")
    lines, known = [], dict[str, AloneRun]()
    for architecture in sorted(extent.architectures, key=lambda a: a not in extent.opponents):
        rows = rows_of(extent.samples, extent.lifted_epochs, architecture)
        for row in rows if architecture in extent.opponents else rows[:2]:
            lines += _line(row, known, records, extent.seeds)
    columns = (
        "hidden layers", "paper", "training", "test accuracy", "worst", "processor seconds",
        "setting (tried)",
    )  # fmt: skip
    epochs = extent.lifted_epochs
    notes = (
        f"{epochs} passes over {extent.samples} samples, L-BFGS {5 * epochs // 2} evaluations on "
        f"all of them or {10 * epochs}, the latter as it is first tried; the test set is read once "
        "by every run, at the end. Mean ± deviation (seeds).",
        "Tuned: along one field after another, on a sixth of the training data with one seed, a "
        f"rate or decay going on by factors of {_FACTOR:g} until its best is inside, and for the "
        "other networks rate and decay from what is best for the first; AdamW's "
        "choices contain decay 0 (Adam), labels as they are, and batches of 50, 100 and 200. Muon "
        "has the matrices below the output, AdamW the rest; labels and start are those that AdamW "
        "chose first, the batch is the smallest at which it takes about as long as the others. The "
        "rate of L-BFGS is the first step of its line searches (strong Wolfe, "
        f"{_MEMORY} pairs), its decay a squared norm in the loss. All other rates fall linearly to "
        "zero; torch networks get centered inputs.",
        f"Decay is rho for the lifted network. {EXACT[0].upper() + EXACT[1:]}: backpropagation in "
        "place of the lifted targets in the network without options.",
    )
    return Table("Networks by themselves, test accuracy", columns, lines, notes)


def _line(
    row: Row,
    known: dict[str, AloneRun],
    records: Callable[[Sequence[AloneRun]], list[Record[AloneRun]]],
    seeds: int,
) -> list[list[str]]:
    """Return the row, where a run of it is there; its setting is known to other architectures."""

    def held(setting: AloneRun) -> float:
        found = records([replace(setting, held_out=True)])
        return found[0].outcome["accuracy"] if found else -1.0

    best, tries = row.first, 0
    if row.search and row.name not in known:
        best, tries = tuned(row.first, row.search, held)
        known[row.name] = best
    elif row.search:
        first = replace(known[row.name], architecture=row.first.architecture)
        best, tries = tuned(first, row.search[:2], held)
    found = [record.outcome for record in records([replace(best, seed=s) for s in range(seeds)])]
    if not found:
        return []
    accuracies = [outcome["accuracy"] for outcome in found]
    printed = PRINTED.get(best.architecture)
    setting = f"rate {best.rate:g}, decay {best.decay:g}, smoothing {best.smoothing:g}, batch "
    setting += f"{best.batch}, {best.start} ({tries})"
    if best.method == LBFGS:
        setting = setting.replace(f"batch {best.batch}, ", "")
    return [[
        best.architecture,
        "none" if printed is None else f"{printed:.3f}",
        row.name,
        mean_and_spread(accuracies, 4),
        f"{min(accuracies):.4f}",
        f"{statistics.fmean(outcome['processor'] for outcome in found):.0f}",
        setting if best.method in (ADAMW, MUON, LBFGS) else "the library's own",
    ]]  # fmt: skip
