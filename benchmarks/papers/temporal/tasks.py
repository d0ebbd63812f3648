"""Artificial tasks of On Recurrent Neural Networks, and gradients through time before training."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import Optimizer

from benchmarks import data
from benchmarks.harness.report import Table
from benchmarks.harness.runs import Outcome, Record, matching, run_all
from benchmarks.papers.networks import CellRecurrence, PlainRNN, SequenceModel, spectral_start_
from benchmarks.papers.through_time import temporal_norms
from liftednet.solvers.gradient import TemporalSimplexDescent

HIDDEN = 50
THRESHOLD = 1.0  # c of eq. 3.6
BATCH, TEST, CHECK_EVERY = 50, 1000, 100
SUCCESS = 0.99  # share of right answers on the test sequences
RATES = (0.03, 0.1, 0.3, 1.0)
TUNING_SEED = 1000
RADII = (0.8, 1.0, 1.2)
FIGURE_RADII = (0.8, 0.9, 1.0, 1.1, 1.2)

Draw = Callable[[int, int, int, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Task:
    """A generated task with one answer at the end.

    Attributes:
        draw: returns X and y from samples, longest length, seed and lengths.
        features: of X.
        outputs: numbers, or classes.
        loss: of outputs and targets.
    """

    draw: Draw
    features: int
    outputs: int
    loss: Callable[[Tensor, Tensor], Tensor]

    def batch(self, samples: int, minimum: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return X, y and lengths between T and T + T / 10, T = `minimum`."""
        lengths = data.hochreiter_lengths(samples, minimum, seed)
        x, y = self.draw(samples, minimum + minimum // 10, seed, lengths)
        return x, y, lengths


TASKS = {
    "addition": Task(
        lambda n, t, seed, lengths: data.adding(n, t, "hochreiter", seed, lengths), 2, 1, mse_loss
    ),
    "multiplication": Task(data.multiplication, 2, 1, mse_loss),
    "xor": Task(data.xor, 2, 2, cross_entropy),
    "temporal order, 2 symbols": Task(
        lambda n, t, seed, lengths: data.temporal_order(n, t, 2, seed, lengths), 6, 4, cross_entropy
    ),
    "temporal order, 3 symbols": Task(
        lambda n, t, seed, lengths: data.temporal_order(n, t, 3, seed, lengths), 6, 8, cross_entropy
    ),
}


MakeNetwork = Callable[[int, int, float, int], SequenceModel]


def network(features: int, outputs: int, radius: float, seed: int) -> SequenceModel:
    """Return a tanh network whose recurrent weight has the spectral radius (section 3.2)."""
    torch.manual_seed(seed)
    recurrence = PlainRNN(features, HIDDEN)
    spectral_start_(recurrence, radius, torch.Generator().manual_seed(seed))
    return SequenceModel(recurrence, HIDDEN, outputs)


def cell_network(features: int, outputs: int, radius: float, seed: int) -> SequenceModel:
    """Return the same network with its cell as a module, which temporal parts need."""
    torch.manual_seed(seed)
    cell = nn.RNNCell(features, HIDDEN)
    spectral_start_(cell, radius, torch.Generator().manual_seed(seed))
    return SequenceModel(CellRecurrence(cell), HIDDEN, outputs)


def cell_of(model: nn.Module) -> nn.Module:
    """Return the cell that a `cell_network` applies over time."""
    assert isinstance(model.recurrence, CellRecurrence)
    return model.recurrence.cell


def _plain(model: nn.Module, rate: float, seed: int) -> Optimizer:
    return torch.optim.SGD(model.parameters(), rate)


def _nesterov(model: nn.Module, rate: float, seed: int) -> Optimizer:
    # With momentum 0.9 a constant gradient moves ten times as far: the rate is brought down.
    return torch.optim.SGD(model.parameters(), rate / 10, momentum=0.9, nesterov=True)


def _temporal_simplex(model: nn.Module, rate: float, seed: int) -> Optimizer:
    source = torch.Generator().manual_seed(seed)
    return TemporalSimplexDescent(
        model.parameters(), cell_of(model), rate, threshold=THRESHOLD, generator=source
    )


@dataclass(frozen=True)
class TaskMethod:
    """A way of training a network on a task.

    Attributes:
        optimizer: builds it from the network, a learning rate and a seed.
        clip: largest norm of the gradient, or None.
        network: builds it from features, outputs, spectral radius and seed.
    """

    optimizer: Callable[[nn.Module, float, int], Optimizer]
    clip: float | None = None
    network: MakeNetwork = network


METHODS = {
    "plain": TaskMethod(_plain),
    "clipped": TaskMethod(_plain, THRESHOLD),
    "Nesterov, clipped": TaskMethod(_nesterov, THRESHOLD),
    "temporal simplex": TaskMethod(_temporal_simplex, network=cell_network),
}


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
    """Train on fresh batches; return the steps to success, or None, and the shares on the way."""
    task, method = TASKS[run.task], METHODS[run.method]
    model = method.network(task.features, task.outputs, run.radius, run.seed)
    optimizer = method.optimizer(model, run.rate, run.seed)
    test_x, test_y, test_lengths = _sequences(run, TEST, 0)
    shares = []
    for step in range(1, run.steps + 1):
        x, y, lengths = _sequences(run, BATCH, step + 1)

        def closure(x: Tensor = x, y: Tensor = y, lengths: Tensor = lengths) -> Tensor:
            optimizer.zero_grad()
            loss = task.loss(model.at_end(x, lengths), y)
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


def _sequences(run: TaskRun, samples: int, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return X, y and lengths by seeds that runs of other seeds never use; 0 is for the test."""
    return TASKS[run.task].batch(samples, run.length, 1_000_000 * (run.seed + 1) + number)


def success_table(store: Path, length: int, steps: int, seeds: int) -> Table:
    """Run what is missing; return success and steps of each task and method.

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
    tried = run_all(store, list(chain(*trials.values())), train_task, "choosing rates")
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
    records = run_all(store, settings, train_task, "artificial tasks")
    return _table(records, rates, length, steps)


def _best_rate(tried: Sequence[Record[TaskRun]]) -> float:
    best = max(tried, key=lambda r: (-(r.outcome["steps"] or 10**9), max(r.outcome["shares"])))
    return best.settings.rate


def _table(
    records: Sequence[Record[TaskRun]], rates: dict[tuple[str, str], float], length: int, steps: int
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
    from matplotlib.figure import Figure  # without pyplot: it needs no display

    x, y = data.temporal_order(100, length, seed=0)
    figure = Figure(figsize=(5.2, 4.2), layout="constrained")
    axis = figure.subplots()
    for radius in FIGURE_RADII:
        model = cell_network(6, 4, radius, seed=0)

        def closure(model: SequenceModel = model) -> Tensor:
            loss = cross_entropy(model.at_end(x), y)
            loss.backward()
            return loss

        norms = temporal_norms(cell_of(model), closure)
        axis.semilogy(range(1, length + 1), norms.tolist(), label=f"radius {radius:g}")
    axis.set(title="Gradient parts before training", xlabel="time step")
    axis.set_ylabel("norm of the temporal part")
    axis.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path
