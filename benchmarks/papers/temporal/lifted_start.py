"""The artificial tasks once more: the same network started from lifted weights."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from benchmarks.harness.runs import Outcome, Record, Settings, matching, run_all
from benchmarks.harness.tables import Table
from benchmarks.papers.networks import SequenceModel
from benchmarks.papers.temporal.methods import HIDDEN, TASKS, Task, network
from benchmarks.papers.temporal.tasks import Rates, TaskRun, train_all, train_network
from liftednet import initialize_
from liftednet.activations import Tanh
from liftednet.losses import CrossEntropy, Loss, SquaredError
from liftednet.models import LiftedRNN, Minibatch

SAMPLES, PASSES, BATCH, METHOD = 1000, 3, 50, "clipped"


@dataclass(frozen=True)
class StartRun:
    """A network trained by clipped descent from lifted weights."""

    task: str
    rate: float
    steps: int
    length: int
    seed: int


def start_table(store: Path, rates: Rates, length: int, steps: int, seeds: int) -> Table:
    """Run what is missing and return both starts of every task beside each other.

    Args:
        store: the file of finished runs.
        rates: learning rates by task and method; those of clipped descent are used.
        length: least length of a sequence.
        steps: most steps of a run.
        seeds: of each row.
    """
    lifted = [
        StartRun(task, rates[task, METHOD], steps, length, seed)
        for task in TASKS
        for seed in range(seeds)
    ]
    trained = run_all(store, lifted, train_lifted, "lifted starts")
    others = train_all(store, [_unlifted(run) for run in lifted], "other starts")
    rows = [[task, *_cells(others, task), *_cells(trained, task)] for task in TASKS]
    columns = (
        "task",
        "radius 1: solved, steps",
        "radius 1: best share",
        "lifted: solved, steps",
        "lifted: best share",
    )
    notes = (
        "Clipped descent at the rate of each task, otherwise as above. The lifted start is "
        f"LiftedRNN (tight divergence, tanh, start of radius 1, {PASSES} passes over {SAMPLES} "
        "sequences).",
    )
    return Table("Started from lifted weights", columns, rows, notes)


def train_lifted(run: StartRun) -> Outcome:
    """Train from the weights of a lifted model that begins at the spectral start."""
    task = TASKS[run.task]
    model = network(task.features, task.outputs, 1.0, run.seed)
    lift_(model, task, run.length, run.seed)
    return train_network(model, _unlifted(run))


def _unlifted(run: StartRun) -> TaskRun:
    """Return the same run from the spectral start, which is one of the table of tasks."""
    return TaskRun(run.task, METHOD, 1.0, run.rate, run.steps, run.length, run.seed)


def lift_(model: SequenceModel, task: Task, length: int, seed: int) -> None:
    """Fit a lifted network to a few sequences and write its weights into a torch network.

    Args:
        model: a tanh network of one layer with a readout; changed in place.
        task: what the sequences are drawn from.
        length: least length of a sequence.
        seed: of the sequences and the start.
    """
    # Below the seeds of all runs: these sequences are in no batch and no test.
    x, y, lengths = task.batch(SAMPLES, length, seed)
    loss: Loss = SquaredError() if y.is_floating_point() else CrossEntropy()
    lifted = LiftedRNN(
        task.features,
        HIDDEN,
        task.outputs,
        activation=Tanh(),
        loss=loss,
        rho=0.1,
        start="gaussian",
        spectral_radius=1.0,
        method=Minibatch(PASSES, BATCH, rate=0.1, damping=1.0),
        seed=seed,
    ).fit(x.double(), y.double() if y.is_floating_point() else y, lengths=lengths)
    assert isinstance(model.recurrence, nn.RNN)
    initialize_(model, lifted)


def _cells(records: Sequence[Record[Settings]], task: str) -> list[str]:
    own = matching(records, task=task)
    steps = [r.outcome["steps"] for r in own if r.outcome["steps"] is not None]
    after = f", {statistics.median(steps):.0f}" if steps else ""
    best = statistics.fmean(max(r.outcome["shares"]) for r in own)
    return [f"{len(steps)}/{len(own)}{after}", f"{best:.2f}"]
