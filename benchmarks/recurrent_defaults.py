"""LiftedRNN without options beside Adam that was tuned, and beside what the defaults were before.

Run it with `OMP_NUM_THREADS=1 python -m benchmarks.recurrent_defaults`: an hour and a half, which
goes on where it was interrupted. Finished runs are kept in benchmarks/results/
recurrent_defaults.jsonl, the table in recurrent_defaults.md; --stored writes it and runs nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.solvers import machine
from liftednet import starts
from liftednet.data import echo, har, running_sum, timer
from liftednet.models import LiftedRNN
from liftednet.models.networks import PlainRNN
from liftednet.reproduce.runs import Outcome, Record, finished, run_all

RESULTS = Path(__file__).parent / "results"
TEST, TRIAL, SEEDS, VALIDATION = 1000, 1000, (1, 2, 3), 10**6
BATCH, CLIP = 50, 1.0
RATES, STARTS = (3e-3, 1e-2, 3e-2), ("orthogonal", "identity")
LIFTED, BEFORE, ADAM = "LiftedRNN", "LiftedRNN before", "Adam"
OLD: dict[str, Any] = {
    "method": "full", "divergence": "joint", "start": "identity", "rho": 0.1, "standardize": False,
}  # fmt: skip
FAILED = 0.05  # below the best mean of a task

TEXT = (
    "Accuracy on unseen sequences of every seed. LiftedRNN has no options, only its sizes; before "
    '("full", joint, identity, rho 0.1, raw inputs) is what it did without options until now. Adam '
    "trains the same ReLU network on batches of 50 with its rate falling linearly to zero and "
    "gradients clipped to norm 1; rate and start (orthogonal or the identity) are the best of six "
    "on validation sequences of another seed. Inputs are standardized. Failed: seeds that are more "
    "than 0.05 below the best mean of a task. Seconds are processor time of one training, Adam's "
    "without its six trials."
)


@dataclass(frozen=True)
class Task:
    """Where sequences come from, and how long Adam trains on them."""

    name: str
    hidden: int
    classes: int
    samples: int
    passes: int
    aim: float

    def data(self, samples: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return sequences; of HAR, odd seeds are the test windows, trials other training ones."""
        kind, number = self.name.split()[:2]
        if kind == "echo":
            return echo(samples, 20 if self.samples == 100 else 10, int(number), 10, seed)
        if kind == "sum":
            return running_sum(samples, int(number), seed)
        if kind == "timer":
            return timer(samples, int(number), 20, seed=seed)
        windows, trial = har(), seed >= VALIDATION
        if seed % 2 and not trial:
            return windows.x_test, windows.y_test
        source = torch.Generator().manual_seed(2 * (seed - VALIDATION) if trial else seed)
        order = torch.randperm(len(windows.x_train), generator=source)
        order = order[-samples:] if trial else order[:samples]  # apart from one another
        return windows.x_train[order], windows.y_train[order]


TASKS = (
    Task("echo 3 back", 20, 10, 200, 400, 0.71),
    Task("echo 4 back", 20, 10, 200, 400, 0.62),
    Task("echo 3 back, 100 of 20 steps", 20, 10, 100, 400, 0.80),
    Task("sum 100 steps", 10, 2, 200, 100, 0.97),
    Task("timer 200 steps", 10, 2, 200, 100, 0.98),
    Task("HAR 1,000 windows", 32, 6, 1000, 30, 0.0),
)


@dataclass(frozen=True)
class Run:
    """One training; rate and start are Adam's, and a trial is judged on validation sequences."""

    task: str
    method: str
    seed: int
    rate: float = 0.0
    start: str = ""
    trial: bool = False


class Network(nn.Module):
    """The same ReLU network in torch."""

    def __init__(self, features: int, task: Task, start: str) -> None:
        """Start the recurrent weights orthogonal or as the identity, all else as torch does."""
        super().__init__()
        self.recurrence = PlainRNN(features, task.hidden, "relu")
        self.readout = nn.Linear(task.hidden, task.classes)
        generator = torch.Generator().manual_seed(torch.initial_seed())
        square = starts.identity(task.hidden)
        if start == "orthogonal":
            square = starts.orthogonal(task.hidden, generator)
        with torch.no_grad():
            self.recurrence.get_parameter("weight_hh_l0").copy_(square)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, (samples, steps, classes)."""
        return self.readout(self.recurrence(x)[0])  # type: ignore[no-any-return]


def train(run: Run) -> Outcome:
    torch.set_num_threads(1)
    task = next(task for task in TASKS if task.name == run.task)
    x, y = task.data(task.samples, 2 * run.seed)
    unseen, answers = task.data(TEST, VALIDATION + run.seed if run.trial else 2 * run.seed + 1)
    if run.method != BEFORE:
        mean, spread = x.mean((0, 1)), x.std((0, 1))
        x, unseen = (x - mean) / spread, (unseen - mean) / spread
    started = time.process_time()
    if run.method == ADAM:
        found = adam(task, run, x, y)
        seconds = time.process_time() - started
        with torch.no_grad():
            labels = found(unseen).argmax(-1)
            labels = labels if answers.ndim == 2 else labels[:, -1]
    else:
        options = OLD if run.method == BEFORE else {}
        sizes = x.shape[2], task.hidden, task.classes
        model = LiftedRNN(*sizes, seed=run.seed, **options).fit(x, y)
        seconds = time.process_time() - started
        labels = model.predict(unseen)
    accuracy = float((labels == answers).double().mean())
    return {"accuracy": accuracy, "processor": seconds}


def adam(task: Task, run: Run, x: Tensor, y: Tensor) -> Network:
    torch.manual_seed(run.seed)
    network = Network(x.shape[2], task, run.start)
    optimizer = torch.optim.Adam(network.parameters(), run.rate)
    order = torch.Generator().manual_seed(run.seed)
    total = task.passes * -(-len(x) // BATCH)
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 - n / total)
    for _ in range(task.passes):
        for part in torch.randperm(len(x), generator=order).split(BATCH):
            logits, labels = network(x[part]), y[part]
            logits = logits if labels.ndim == 2 else logits[:, -1:]
            loss = cross_entropy(logits.flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), CLIP)
            optimizer.step()
            falling.step()
    return network


def rows(task: Task, runs: Callable[[Path, Sequence[Run]], list[Record[Run]]]) -> list[str]:
    """Return the lines of a task, of what has been run."""
    outcomes = partial(runs, RESULTS / "recurrent_defaults.jsonl")
    found = {
        method: outcomes([Run(task.name, method, seed) for seed in SEEDS])
        for method in (LIFTED, BEFORE)
    }
    trials = [
        Run(task.name, ADAM, TRIAL, rate, start, trial=True) for rate in RATES for start in STARTS
    ]
    if tried := outcomes(trials):
        best = max(tried, key=lambda record: record.outcome["accuracy"]).settings
        name = f"{ADAM}, {best.rate:g}, {best.start}"
        if len(tried) < len(trials):
            name += f" (of {len(tried)} tried)"
        found[name] = outcomes([Run(task.name, ADAM, s, best.rate, best.start) for s in SEEDS])
    by_method = {method: [record.outcome for record in own] for method, own in found.items() if own}
    means = {method: fmean(one["accuracy"] for one in own) for method, own in by_method.items()}
    lines = []
    for method, own in by_method.items():
        accuracies = [one["accuracy"] for one in own]
        each = ", ".join(f"{accuracy:.3f}" for accuracy in accuracies)
        short = [accuracy < max(means.values()) - FAILED for accuracy in accuracies]
        aim = f"{task.aim:g}" if task.aim else ""
        lines.append(
            f"| {task.name} | {aim} | {method} | {each} | {means[method]:.3f} | "
            f"{fmean(short):.0%} | {fmean(one['processor'] for one in own):.0f} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stored", action="store_true", help="the table of what has been run")
    runs = finished if parser.parse_args().stored else run_all
    where = ", ".join(f"{name}: {value}" for name, value in machine().items())
    lines = ["# Recurrent networks without options", "", f"{where}.", "", TEXT, ""]
    lines += ["| task | aim | method | seeds | mean | failed | seconds |"]
    lines += ["| --- | ---: | --- | --- | ---: | ---: | ---: |"]
    for task in TASKS:
        lines += rows(task, runs)
    (RESULTS / "recurrent_defaults.md").write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
