"""Data that nobody may move: accuracy against rounds and bytes, ours, averaging, and other sums.

6,000 digits of MNIST with 10 or 100 clients of one or two classes each, 784-50-10, where 2,000
other digits choose settings and the 10,000 test digits judge; and the 30 persons of HAR, each a
client, 180 features of a window, 180-50-6, where later windows of the same persons choose and
judge. A round is a message from all clients and its answer; ours are counted by
`liftednet.processes` in two processes that have half of the clients each, an opponent's as its
algorithm asks for them. Bytes are what one client sends. Ten and fifty rounds are tuned apart:
every method has twelve settings, of which the one that is best on held-out samples of seed 0 is
judged on other seeds; one at the end of its grid is marked. Whatever sends sums over samples alone
does not depend on who has which, and is run once for the same digits. Run it with
`OMP_NUM_THREADS=1 python -m benchmarks.federated [--minutes 4]`, in all half an hour; it stops
after so many minutes and goes on from what is finished. Written to benchmarks/results/federated.md.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from benchmarks.data import har, har_subjects
from benchmarks.federated_opponents import (
    Clients,
    adam,
    averaging,
    gauss_newton,
    head,
    lbfgs,
)
from benchmarks.group import in_group
from benchmarks.harness.report import machine
from benchmarks.harness.runs import finished, run_all
from liftednet.data import mnist
from liftednet.losses import SquaredError
from liftednet.models import FullBatch, LiftedMLP, Minibatch

RESULT = Path(__file__).parent / "results" / "federated.md"
SEEDS = (1, 2, 3)
BUDGETS = (10, 50)
FOLDER = os.environ.get("LIFTEDNET_DATA")


@dataclass(frozen=True)
class Run:
    """One training; settings are those of its method's grid."""

    data: str
    method: str
    rounds: int
    settings: dict[str, Any]
    seed: int


@dataclass(frozen=True)
class Data:
    """Clients, and what settings are chosen and judged on."""

    clients: Clients
    held: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def digits(clients: int, classes: int, seed: int) -> Data:
    """Return digits of clients that have so many classes each, sorted by class."""
    data, source = mnist(FOLDER), torch.Generator().manual_seed(seed)
    order = torch.randperm(len(data.x_train), generator=source)
    own, held = order[:6_000], order[6_000:8_000]
    x, y = data.x_train[own], data.y_train[own]
    shards = clients * classes // 10  # of every class
    parts = [part for c in range(10) for part in (y == c).nonzero()[:, 0].tensor_split(shards)]
    drawn = torch.arange(clients * classes)
    if classes > 1:  # one client has shards of two classes
        drawn = drawn.view(classes, clients).T.flatten()
    rows = [
        torch.cat([parts[int(i)] for i in some]) for some in drawn.view(clients, classes)
    ]  # fmt: skip
    held_out = data.x_train[held], data.y_train[held]
    return Data(_padded(x, y, rows, (784, 50, 10)), held_out, (data.x_test, data.y_test))


def persons(seed: int) -> Data:
    """Return the 30 persons of HAR, each a client, and what it did last for all to be judged by.

    Of the windows of every person and activity, in time, the first seven tenths train, the next
    chooses and the last two judge; windows overlap by half, and one is left out at each border.
    """
    data = har(FOLDER)
    who = torch.cat([har_subjects(FOLDER), har_subjects(FOLDER, test=True)])
    x, y = _features(torch.cat([data.x_train, data.x_test])), torch.cat([data.y_train, data.y_test])
    rows: list[Tensor] = []
    held: list[Tensor] = []
    test: list[Tensor] = []
    for person in who.unique():
        parts = [((who == person) & (y == c)).nonzero()[:, 0] for c in y.unique()]
        ends = [(7 * len(part) // 10, 8 * len(part) // 10) for part in parts]
        rows.append(torch.cat([part[:a] for part, (a, _) in zip(parts, ends, strict=True)]))
        held += [part[a + 1 : b] for part, (a, b) in zip(parts, ends, strict=True)]
        test += [part[b + 1 :] for part, (_, b) in zip(parts, ends, strict=True)]
    every = torch.cat(rows)
    x = (x - x[every].mean(0)) / x[every].std(0)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    clients = _padded(x, y, [rows[int(i)] for i in order], (180, 50, 6))
    return Data(clients, *((x[some], y[some]) for some in map(torch.cat, (held, test))))


def _features(windows: Tensor) -> Tensor:
    """Return mean, deviation, ends and the first 16 magnitudes of the spectrum of every channel."""
    about = windows - windows.mean(1, keepdim=True)
    spectrum = torch.fft.rfft(about, dim=1).abs()[:, 1:17].log1p()
    parts = [windows.mean(1), windows.std(1), windows.amin(1), windows.amax(1)]
    return torch.cat([torch.stack(parts, 1), spectrum], 1).flatten(1)


def _padded(x: Tensor, y: Tensor, rows: list[Tensor], units: tuple[int, int, int]) -> Clients:
    most = max(map(len, rows))
    places = torch.stack([torch.cat([r, r.new_zeros(most - len(r))]) for r in rows])
    counts = torch.stack([(torch.arange(most) < len(r)).float() for r in rows])
    return Clients(x[places], y[places] * counts.long(), counts, units)


DATA: dict[str, Callable[[int], Data]] = {
    "MNIST, 10 clients of one class": lambda seed: digits(10, 1, seed),
    "HAR, 30 persons": persons,
    "MNIST, 100 clients of two classes": lambda seed: digits(100, 2, seed),
    "MNIST, 100 clients of one class": lambda seed: digits(100, 1, seed),
    "MNIST, 10 clients of two classes": lambda seed: digits(10, 2, seed),
}


# Ours: the samples of two processes, half of the clients with each.


class _EnoughError(Exception):
    """The rounds are used up."""


def _trained(rank: int, data: Data, rounds: int, make: Callable[[], LiftedMLP]) -> Any:
    """Return by budgeted messages what a fit predicts: right shares, bytes and rounds."""
    clients, half = data.clients, len(data.clients.x) // 2
    own = slice(0, half) if rank == 0 else slice(half, None)
    there = clients.counts[own].flatten() > 0
    x, y = clients.x[own].flatten(0, 1)[there], clients.y[own].flatten()[there]
    model = make()
    if isinstance(model.loss, SquaredError):
        y = one_hot(y, clients.units[2]).float()
    reached: list[Any] = []

    def on_step(step: Any) -> None:
        if step.messages > rounds:
            raise _EnoughError
        reached[:] = model.weights, step.bytes, step.messages, time.process_time()

    with warnings.catch_warnings(), suppress(_EnoughError):
        warnings.simplefilter("ignore")
        model.fit(x, y, on_step=on_step)
    weights, *sent = reached
    judge = make().with_weights(weights)
    right = [
        float((judge.scores(a).argmax(1) == b).float().mean()) for a, b in (data.held, data.test)
    ]
    return [*right, *sent]


def _minibatch(units: Any, rounds: int, seed: int, count: int, s: dict[str, Any]) -> LiftedMLP:
    """Return one whose every batch is a message, and one before the first."""
    batches = s.get("batches", 1)
    method = Minibatch(
        (rounds - 1) // batches, -(-count // batches), rate=s["rate"], rank=s.get("rank", 16)
    )
    return LiftedMLP(units, method=method, seed=seed, standardize=False)


def _descent(units: Any, rounds: int, seed: int, count: int, s: dict[str, Any]) -> LiftedMLP:
    return LiftedMLP(
        units, loss=SquaredError(), lam=s["lam"], rho=s["rho"],
        divergence="joint", method=FullBatch(rounds), seed=seed, standardize=False,
    )  # fmt: skip


def grid(**values: list[Any]) -> list[dict[str, Any]]:
    return [dict(zip(values, one, strict=True)) for one in itertools.product(*values.values())]


# Twelve settings for each, of numbers whose best should lie inside; on HAR some need others.
OURS: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "ours, minibatches": (_minibatch, grid(rate=[10.0, 30.0, 100.0, 300.0], rank=[16, 48, 96])),
    "ours, block descent": (_descent, grid(lam=[0.01, 0.1, 1.0], rho=[0.01, 0.1, 1.0, 10.0])),
}
OTHERS: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "FedAvg": (averaging, grid(rate=[0.3, 1.0, 3.0], steps=[1, 2, 5, 10], falls=[True])),
    "FedProx": (
        averaging,
        grid(rate=[0.3, 1.0, 3.0], steps=[3], falls=[True], pull=[0.003, 0.03, 0.3, 3.0]),
    ),
    "SCAFFOLD": (
        averaging,
        grid(rate=[0.03, 0.1, 0.3, 1.0], steps=[2, 5, 10], controls=[True]),
    ),
    "Adam on sums": (
        adam,
        grid(rate=[0.003, 0.01, 0.03, 0.1], second=[0.9, 0.99, 0.999], falls=[True]),
    ),
    "L-BFGS on sums": (
        lbfgs,
        grid(history=[5, 10, 50], decay=[0.0, 1e-4, 1e-3, 1e-2], wolfe=[True]),
    ),
    "Gauss-Newton-CG on sums": (
        gauss_newton,
        grid(damping=[0.003, 0.03, 0.3, 3.0], products=[2, 4, 8]),
    ),
    "head, as many features": (
        head,
        grid(scale=[0.1, 0.3, 1.0, 3.0], ridge=[1e-5, 1e-4, 1e-3]),
    ),
    "head, 2,000 features": (head, grid(scale=[0.1, 0.3, 1.0], ridge=[1e-5, 1e-4, 1e-3, 1e-2])),
}
HAR_GRIDS = {
    "ours, minibatches": grid(rate=[0.3, 1.0, 3.0, 10.0, 30.0, 100.0], batches=[1, 3]),
}
METHODS = {**OURS, **OTHERS}


def source(data: str, method: str) -> str:
    """Return of which data the runs of a method are: sums are those of any division."""
    first = next(iter(DATA))
    same = data.startswith("MNIST") and METHODS[method][0] is not averaging
    return first if same else data


def train(run: Run) -> dict[str, Any]:
    """Return shares that are right, held out and of the test, and what one client has sent."""
    torch.set_num_threads(1)
    data, began = DATA[run.data](run.seed), time.process_time()
    how = METHODS[run.method][0]
    if run.method in OURS:
        units, count = data.clients.units, int(data.clients.counts.sum())
        found, other = in_group(
            2, _trained, data, run.rounds,
            lambda: how(units, run.rounds, run.seed, count, run.settings),
        )  # fmt: skip
        held, test, sent, rounds, spent = found
        spent += other[-1]
    else:
        given = dict(run.settings)
        if how is head:
            given["width"] = data.clients.units[1] if "many" in run.method else 2_000
        predict, sent = how(data.clients, run.rounds, run.seed, **given)
        held, test = (float((predict(a) == b).float().mean()) for a, b in (data.held, data.test))
        rounds, spent = 1 if how is head else run.rounds, time.process_time() - began
    outcome = {"held": held, "test": test, "bytes": sent, "rounds": rounds}
    return {**outcome, "processor": round(spent, 2)}


def tuning(data: str, method: str, rounds: int) -> list[Run]:
    if METHODS[method][0] is head:
        rounds = 1
    return [Run(source(data, method), method, rounds, one, 0) for one in settings(data, method)]


def settings(data: str, method: str) -> list[dict[str, Any]]:
    found = METHODS[method][1]
    return HAR_GRIDS.get(method, found) if data.startswith("HAR") else found


def judged(data: str, method: str, rounds: int, best: dict[str, Any]) -> list[Run]:
    rounds = 1 if METHODS[method][0] is head else rounds
    return [Run(source(data, method), method, rounds, best, seed) for seed in SEEDS]


def chosen(store: Path, data: str, method: str, rounds: int) -> dict[str, Any] | None:
    """Return the best setting on held-out clients, where all of its grid are finished."""
    runs = tuning(data, method, rounds)
    found = finished(store, runs)
    if len(found) < len(runs):
        return None
    return max(found, key=lambda record: record.outcome["held"]).settings.settings


def _ends(data: str, method: str, best: dict[str, Any]) -> str:
    """Return which settings stand at an end of a grid of three or more numbers."""
    every = settings(data, method)
    found = []
    for name, value in best.items():
        values = sorted({one[name] for one in every})
        if len(values) > 2 and value in (values[0], values[-1]) and name not in _BOUNDED:
            found.append(name)
    return ", ".join(found)


_BOUNDED = ("history", "second")  # whose ends are those of what is possible, or of no matter


def table(store: Path) -> str:
    lines = []
    for data, rounds in itertools.product(DATA, BUDGETS):
        rows = []
        for method in METHODS:
            best = chosen(store, data, method, rounds)
            if best is None:
                continue
            found = finished(store, judged(data, method, rounds, best))
            if not found:
                continue
            test = [record.outcome["test"] for record in found]
            spread = f" ± {stdev(test):.3f}" if len(test) > 1 else ""
            said = ", ".join(f"{name} {value:g}" for name, value in best.items())
            ends = _ends(data, method, best)
            ends = f" (end of the grid: {ends})" if ends else ""
            rows.append((
                -fmean(test),
                f"| {method} | {fmean(test):.3f}{spread} | {min(test):.3f} | {len(test)} | "
                f"{fmean(x.outcome['rounds'] for x in found):.0f} | "
                f"{fmean(x.outcome['bytes'] for x in found) / 1e6:.2f} | "
                f"{fmean(x.outcome['processor'] for x in found):.1f} | {said}"
                f"{ends} | "
                f"{len(tuning(data, method, rounds))} |",
            ))  # fmt: skip
        if rows:
            lines += [
                "", f"## {data}, {rounds} rounds", "",
                "| method | test accuracy | worst | seeds | rounds used | MB sent by a client | "
                "processor s | setting chosen | tries |",
                "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
                *(row for _, row in sorted(rows)),
            ]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    """Run what is missing for some minutes, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--data", type=int, nargs="*", default=list(range(len(DATA))))
    given = parser.parse_args()
    end, store = time.monotonic() + 60 * given.minutes, RESULT.with_suffix(".jsonl")
    names = [list(DATA)[number] for number in given.data]
    for data, rounds, method in itertools.product(names, BUDGETS[::-1], given.methods):
        for run in tuning(data, method, rounds):
            if time.monotonic() < end:
                run_all(store, [run], train, method)
        best = chosen(store, data, method, rounds)
        for run in [] if best is None else judged(data, method, rounds, best):
            if time.monotonic() < end:
                run_all(store, [run], train, method)
    about = ", ".join(f"{name}: {value}" for name, value in machine().items())
    load = os.getloadavg()[0]
    first = f"# Data that nobody may move\n\n{NOTE}\n\n{about}, load {load:.1f}."
    RESULT.write_text(f"{first}\n{table(store)}\n", encoding="utf-8")


NOTE = """`python -m benchmarks.federated`, whose first lines say what is measured. Ours does not
depend on who has which rows; a setting that the grid does not name is that of the library. A head
of 2,000 features takes one round, and as many bytes as ours in a hundred. Our Gauss-Newton steps
are left out: conjugate gradients of the first alone take 45 messages, after which .52 of the digits
are right (rho .001 to .1, seed 0). A method whose twelve settings are not finished has no row."""


if __name__ == "__main__":
    main()
