"""Success on the artificial tasks, and gradients through time before training."""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks import data
from benchmarks.harness.curves import Curve, Panel, draw
from benchmarks.harness.runs import Outcome, Record, finished, matching, run_groups
from benchmarks.harness.tables import Table
from benchmarks.papers.networks import SequenceModel
from benchmarks.papers.temporal.methods import (
    HIDDEN,
    METHODS,
    OPPONENTS,
    TASKS,
    TaskMethod,
    cell_network,
    cell_of,
    network,
)
from benchmarks.papers.temporal.stacks import NetworkStack, network_losses
from liftednet.solvers.gradient import temporal_norms

BATCH, TEST, CHECK_EVERY = 50, 1000, 100
SUCCESS = 0.99  # share of right answers on the test sequences
RATES = (0.03, 0.1, 0.3, 1.0)
TUNING_SEED = 1000
RADII = (0.8, 1.0, 1.2)
FIGURE_RADII = (0.8, 0.9, 1.0, 1.1, 1.2)

Rates = dict[tuple[str, str], float]
"""Learning rates by task and method."""


@dataclass(frozen=True)
class TaskRun:
    """One network trained until it succeeds or its steps are used up."""

    task: str
    method: str
    radius: float
    rate: float
    steps: int
    length: int
    seed: int


def train_task(run: TaskRun) -> Outcome:
    """Train from the spectral start; see `train_network`."""
    task, make = TASKS[run.task], _method(run).network
    return train_network(make(task.features, task.outputs, run.radius, run.seed), run)


def train_network(model: SequenceModel, run: TaskRun) -> Outcome:
    """Train on fresh batches; return the steps to success, or None, and the shares on the way."""
    task, method = TASKS[run.task], _method(run)
    optimizer = method.optimizer(model, run.rate, run.seed)
    test_x, test_y, test_lengths = _sequences(run, TEST, 0)
    shares = []
    for step in range(1, run.steps + 1):
        x, y, lengths = _sequences(run, BATCH, step + 1)

        def closure(x: Tensor = x, y: Tensor = y, lengths: Tensor = lengths) -> Tensor:
            optimizer.zero_grad()
            loss = method.loss(model, task, x, y, lengths)
            loss.backward()
            if method.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), method.clip)
            return loss.detach()

        optimizer.step(closure)  # type: ignore[arg-type]
        if step % CHECK_EVERY == 0:
            with torch.no_grad():
                right = data.correct(model.at_end(test_x, test_lengths), test_y)
            shares.append(float(right.double().mean()))
            if shares[-1] >= SUCCESS:
                return {"steps": step, "shares": shares}
    return {"steps": None, "shares": shares}


def train_together(runs: Sequence[TaskRun]) -> list[Outcome]:
    """Train stacked networks of one task and method; as `train_task` of each, but for rounding."""
    task, method, steps = TASKS[runs[0].task], _method(runs[0]), runs[0].steps
    models = [network(task.features, task.outputs, run.radius, run.seed) for run in runs]
    stack, rates = NetworkStack(models), torch.tensor([run.rate for run in runs])
    optimizer = method.optimizer(stack, 1.0, 0)
    test_x, test_y, test_lengths = _stacked_sequences(runs, TEST, 0)
    checks: list[list[float]] = []
    for step in range(1, steps + 1):
        x, y, lengths = _stacked_sequences(runs, BATCH, step + 1)
        losses = network_losses(task.loss, stack.at_end(x, lengths), y)
        stack.backward(losses, method.clip, rates)
        optimizer.step()
        if step % CHECK_EVERY == 0:
            with torch.no_grad():
                right = data.correct(stack.at_end(test_x, test_lengths), test_y)
            checks.append(right.flatten(1).double().mean(1).tolist())
            if all(max(shares) >= SUCCESS for shares in zip(*checks, strict=True)):
                break
    return [_outcome(shares) for shares in zip(*checks, strict=True)]


def _outcome(shares: Sequence[float]) -> Outcome:
    """Return a run's outcome up to its success, from all its checks."""
    solved = next((count for count, share in enumerate(shares, 1) if share >= SUCCESS), None)
    return {"steps": solved and solved * CHECK_EVERY, "shares": list(shares[:solved])}


def _sequences(run: TaskRun, samples: int, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return X, y and lengths by seeds that runs of other seeds never use; 0 is for the test."""
    return TASKS[run.task].batch(samples, run.length, 1_000_000 * (run.seed + 1) + number)


def _stacked_sequences(
    runs: Sequence[TaskRun], samples: int, number: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return X, y and lengths of all runs, those of a seed drawn once."""
    drawn = {run.seed: run for run in runs}
    found = {seed: _sequences(run, samples, number) for seed, run in drawn.items()}
    x, y, lengths = zip(*(found[run.seed] for run in runs), strict=True)
    return torch.stack(x), torch.stack(y), torch.stack(lengths)


def train_all(store: Path, settings: Sequence[TaskRun], title: str) -> list[Record[TaskRun]]:
    """Run what is missing, stacked where the method allows it; return all records in order.

    Args:
        store: the file of finished runs.
        settings: of one length and number of steps.
        title: shown beside the progress bar.
    """
    groups: dict[Hashable, list[TaskRun]] = {}
    for run in settings:
        together = (run.task, run.method) if _method(run).stacks else run
        groups.setdefault(together, []).append(run)
    run_groups(store, list(groups.values()), _train_group, title)
    return finished(store, settings)


def _train_group(runs: Sequence[TaskRun]) -> Sequence[Outcome]:
    return train_together(runs) if _method(runs[0]).stacks else [train_task(run) for run in runs]


def _method(run: TaskRun) -> TaskMethod:
    return {**METHODS, **OPPONENTS}[run.method]


def success_table(store: Path, length: int, steps: int, seeds: int) -> tuple[Table, Rates]:
    """Run what is missing; return success and steps, and the rate of each task and method.

    A rate is the best of `RATES` on its task, at radius 1 and with a seed that the table does not
    use.

    Args:
        store: the file of finished runs.
        length: least length of a sequence.
        steps: most steps of a run.
        seeds: of each cell of the table.
    """
    trials = {
        (task, method): [
            TaskRun(task, method, 1.0, rate, steps, length, TUNING_SEED) for rate in RATES
        ]
        for task in TASKS
        for method in METHODS
    }
    tried = train_all(store, list(chain(*trials.values())), "choosing rates")
    rates = {
        cell: _best_rate([r for r in tried if r.settings in own]) for cell, own in trials.items()
    }
    settings = [
        TaskRun(task, method, radius, rates[task, method], steps, length, seed)
        for seed in range(seeds)
        for task in TASKS
        for method in METHODS
        for radius in RADII
    ]
    records = train_all(store, settings, "artificial tasks")
    return _table(records, rates, length, steps), rates


def _best_rate(tried: Sequence[Record[TaskRun]]) -> float:
    best = max(tried, key=lambda r: (-(r.outcome["steps"] or 10**9), max(r.outcome["shares"])))
    return best.settings.rate


def _table(
    records: Sequence[Record[TaskRun]],
    rates: Rates,
    length: int,
    steps: int,
) -> Table:
    rows = []
    for task, method in rates:
        cells = []
        for radius in RADII:
            own = matching(records, task=task, method=method, radius=radius)
            cells.append(cell_text([record.outcome for record in own]))
        rows.append([task, method, f"{rates[task, method]:g}", *cells])
    columns = ("task", "method", "rate", *(f"radius {radius:g}" for radius in RADII))
    notes = (
        f"Success is {SUCCESS:.0%} right answers on {TEST} test sequences of {length} to "
        f"{length + length // 10} steps, looked at every {CHECK_EVERY} steps, within {steps} steps "
        f"of {BATCH} fresh sequences; tanh, {HIDDEN} units.",
        f"Every rate is the best of {', '.join(f'{rate:g}' for rate in RATES)} on its task at "
        "radius 1 with another seed.",
        "Nesterov's momentum is 0.9 and its rate a tenth of the one shown.",
        "A cell gives runs that succeeded, their median steps, and the mean over seeds of the best "
        "share of right answers.",
    )
    return Table("Success on the artificial tasks", columns, rows, notes)


def cell_text(outcomes: Sequence[Outcome]) -> str:
    """Return runs that succeeded, their median steps, and the mean of the best shares."""
    solved = [outcome["steps"] for outcome in outcomes if outcome["steps"] is not None]
    share = statistics.fmean(max(outcome["shares"]) for outcome in outcomes)
    after = f", {statistics.median(solved):.0f} steps" if solved else ""
    return f"{len(solved)}/{len(outcomes)}{after}, {share:.2f}"


def norms_figure(path: Path, length: int) -> Path:
    """Draw the norms of the temporal parts against the spectral radius of the start (fig. 3.1).

    Temporal order with two symbols, a hundred samples, before any training.

    Args:
        path: of the picture.
        length: steps of the sequences.
    """
    x, y = data.temporal_order(100, length, seed=0)
    curves = []
    for radius in FIGURE_RADII:
        model = cell_network(6, 4, radius, seed=0)

        def closure(model: SequenceModel = model) -> Tensor:
            loss = cross_entropy(model.at_end(x), y)
            loss.backward()
            return loss

        norms = temporal_norms(cell_of(model), closure)
        curves.append(Curve(f"radius {radius:g}", list(range(1, length + 1)), norms.tolist()))
    panel = Panel(
        "Gradient parts before training",
        "time step",
        "norm of the temporal part",
        curves,
        log_y=True,
    )
    return draw(path, [panel])
