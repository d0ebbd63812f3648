"""The artificial tasks once more: opponents that the thesis reviews but does not run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import data
from benchmarks.harness.runs import Outcome, Record, matching, run_all
from benchmarks.harness.tables import Table
from benchmarks.papers.networks import EchoStateNetwork
from benchmarks.papers.temporal.methods import HIDDEN, OMEGA, OPPONENTS, TASKS
from benchmarks.papers.temporal.tasks import TEST, Rates, TaskRun, cell_text, train_task
from liftednet.activations import Tanh
from liftednet.models import GaussNewton, LiftedRNN, Trace

RESERVOIR, SEQUENCES, RADII = 300, 5000, (0.8, 0.95, 1.1)
FITTED = 1000  # sequences that Gauss-Newton steps are taken on
COMPARED = ("temporal order, 2 symbols", "temporal order, 3 symbols")


@dataclass(frozen=True)
class EchoTask:
    """An echo-state network with a ridge readout, fitted to one task.

    Attributes:
        task: a key of `TASKS`.
        radius: spectral radius of the reservoir.
        length: least length of a sequence.
        seed: of the reservoir and the sequences.
    """

    task: str
    radius: float
    length: int
    seed: int


@dataclass(frozen=True)
class NewtonTask:
    """A lifted network by Gauss-Newton steps on one fixed set of sequences.

    Attributes:
        task: a key of `TASKS`.
        most: the most steps.
        length: least length of a sequence.
        seed: of the start and the sequences.
    """

    task: str
    most: int
    length: int
    seed: int


def opponents_table(store: Path, rates: Rates, length: int, steps: int, seeds: int) -> Table:
    """Run what is missing and return Omega, a GRU and echo-state networks on two tasks.

    Args:
        store: the file of finished runs.
        rates: learning rates by task and method; the opponents take over those of clipped descent.
        length: least length of a sequence.
        steps: most steps of a run.
        seeds: of each cell.
    """
    settings = [
        TaskRun(task, method, 1.0, rates[task, "clipped"], steps, length, seed)
        for seed in range(seeds)
        for task in COMPARED
        for method in OPPONENTS
    ]
    trained = run_all(store, settings, train_task, "opponents")
    fitted = [
        EchoTask(task, radius, length, seed)
        for task in COMPARED
        for radius in RADII
        for seed in range(seeds)
    ]
    stepped = [NewtonTask(task, 30, length, seed) for task in COMPARED for seed in range(seeds)]
    return _table(
        trained,
        run_all(store, stepped, newton_task, "Gauss-Newton"),
        run_all(store, fitted, fit_task, "echo-state networks"),
    )


def newton_task(run: NewtonTask) -> Outcome:
    """Take Gauss-Newton steps from an orthogonal start; return the share of right answers."""
    task = TASKS[run.task]
    model = LiftedRNN(
        task.features, HIDDEN, task.outputs, Tanh(), rho=1e-3, start="orthogonal", seed=run.seed,
        method=GaussNewton(steps=run.most),
    )  # fmt: skip
    x, y, lengths = task.batch(FITTED, run.length, 3 * run.seed)
    model.fit(x, y, lengths=lengths)
    x, y, lengths = task.batch(TEST, run.length, 3 * run.seed + 2)
    right = data.correct(model.forward(x, lengths=lengths), y)
    return {"steps": len(_trace(model).steps), "test": float(right.double().mean())}


def _trace(model: LiftedRNN) -> Trace:
    assert model.trace is not None  # it has been fitted
    return model.trace


def fit_task(run: EchoTask) -> Outcome:
    """Fit the readout to sequences; return the share of right answers on validation and test."""
    task = TASKS[run.task]
    network = EchoStateNetwork(
        task.features, RESERVOIR, task.outputs, radius=run.radius, seed=run.seed
    )
    # Below the seeds of all trained runs: no sequence of a test is fitted to.
    network.fit(*task.batch(SEQUENCES, run.length, 3 * run.seed))
    shares = {}
    for offset, name in ((1, "valid"), (2, "test")):
        x, y, lengths = task.batch(TEST, run.length, 3 * run.seed + offset)
        right = data.correct(network.outputs_at_end(x, lengths), y)
        shares[name] = float(right.double().mean())
    return shares


def _table(
    trained: Sequence[Record[TaskRun]],
    stepped: Sequence[Record[NewtonTask]],
    fitted: Sequence[Record[EchoTask]],
) -> Table:
    rows = []
    for task in COMPARED:
        cells = [_trained_cell(trained, task, method) for method in OPPONENTS]
        rows.append([task, *cells, _stepped_cell(stepped, task), _fitted_cell(fitted, task)])
    columns = ("task", *OPPONENTS, "Gauss-Newton")
    notes = (
        "Radius 1, the rates of clipped descent, otherwise as above. Omega (eq. 2.18) has weight "
        f"{OMEGA:g}. The context (eq. 2.15) is a fifth of {HIDDEN} units; gated feedback "
        f"(eq. 2.16) has two layers of {HIDDEN // 2}.",
        f"Gauss-Newton: LiftedRNN of {HIDDEN} units from an orthogonal start, on {FITTED} "
        f"sequences that stay: its steps, and the mean share of right answers on {TEST} others.",
        f"Echo-state networks of {RESERVOIR} units, a ridge readout fitted to {SEQUENCES} "
        f"sequences: mean share of right answers, the radius of the reservoir (in brackets) the "
        f"best of {', '.join(f'{radius:g}' for radius in RADII)} on {TEST} other sequences.",
    )
    return Table("Further opponents", (*columns, "echo state"), rows, notes)


def _trained_cell(trained: Sequence[Record[TaskRun]], task: str, method: str) -> str:
    return cell_text([r.outcome for r in matching(trained, task=task, method=method)])


def _stepped_cell(stepped: Sequence[Record[NewtonTask]], task: str) -> str:
    own = [r.outcome for r in matching(stepped, task=task)]
    steps = statistics.median(outcome["steps"] for outcome in own)
    return f"{steps:.0f} steps, {statistics.fmean(outcome['test'] for outcome in own):.2f}"


def _fitted_cell(fitted: Sequence[Record[EchoTask]], task: str) -> str:
    def mean(radius: float, part: str) -> float:
        own = matching(fitted, task=task, radius=radius)
        return statistics.fmean(r.outcome[part] for r in own)

    best = max(RADII, key=lambda radius: mean(radius, "valid"))
    return f"{mean(best, 'test'):.2f} ({best:g})"
