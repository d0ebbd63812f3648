"""Forty networks of ReLU by Gauss-Newton, beside the best of twenty starts of L-BFGS.

Run it with `OMP_NUM_THREADS=1 python -m benchmarks.kinks`, an hour of one core; it goes on
where it was interrupted, and `--stored` writes the table of what stands in
benchmarks/results/kinks.jsonl.

Ten networks of one hidden layer, six of two and four of three, drawn by their numbers: 1 to 10
inputs, 50 to 400 rows (200 of several layers), 20, 50 or 100 units a layer (no 100 of several), rho
between .03 and .3 in all layers, waves with noise, each fourth a classification by their median.
Exchanges of units were set with the results of these twenty in view, so that twenty more, drawn
likewise by further numbers, were run once, afterwards.
L-BFGS (SciPy, 3,000 steps) starts from the first weights of twenty seeds; Gauss-Newton, with its
defaults, from that of the first.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.global_optimum import lbfgs
from benchmarks.harness.report import write
from benchmarks.harness.runs import Outcome, Record, matching, records
from liftednet.activations import ReLU
from liftednet.losses import CrossEntropy, SquaredError
from liftednet.models import GaussNewton, LiftedMLP

ONE, TWO, ALL = 10, 16, 20  # networks of one, of at most two, and of at most three hidden layers


@dataclass(frozen=True)
class Run:
    """One network by one method."""

    network: int
    method: str


def drawn(network: int) -> tuple[Tensor, Tensor, tuple[int, ...], float]:
    """Return inputs, targets, sizes and rho of a network."""
    generator, kind = np.random.default_rng(network), network % ALL
    one = kind < ONE
    depth = 1 + (kind >= ONE) + (kind >= TWO)
    inputs = int(generator.integers(1, 11))
    rows = int(generator.integers(50, 401 if one else 201))
    units = int(generator.choice([20, 50, 100] if one else [20, 50]))
    rho = float(10 ** generator.uniform(math.log10(0.03), math.log10(0.3)))
    X = generator.uniform(-1, 1, (rows, inputs))
    signal = np.sin(3 * X[:, 0]) * X[:, 1 % inputs] + X[:, 2 % inputs] ** 2
    y = signal + 0.1 * generator.normal(size=rows)
    X = (X - X.mean(0)) / X.std(0)
    classes = 2 if network % 4 == 3 else 1
    whole = y > np.median(y) if classes == 2 else (y - y.mean())[:, None] / y.std()
    targets = torch.from_numpy(whole)
    targets = targets.long() if classes == 2 else targets
    return torch.from_numpy(X), targets, (inputs, *[units] * depth, classes), rho


def measured(run: Run) -> Outcome:
    X, y, sizes, rho = drawn(run.network)
    loss = SquaredError() if sizes[-1] == 1 else CrossEntropy()

    def model(seed: int) -> LiftedMLP:
        return LiftedMLP(
            sizes, ReLU(), loss, rho=rho, method=GaussNewton(), seed=seed, standardize=False,
            dtype=torch.float64,
        )  # fmt: skip

    started = time.process_time()
    if run.method == "Gauss-Newton":
        found = [model(0).fit(X, y).objective()]
    else:
        found = [value for value, _ in lbfgs(X, y, rho, model, math.inf)]
    return {"objectives": found, "seconds": time.process_time() - started}


TEXT = (
    "Gauss-Newton has one start and its defaults, L-BFGS the best of twenty starts and the seconds "
    "of all of them; processor time of one thread, on a machine that did other work meanwhile. "
    "Objectives of Gauss-Newton are told as what they are above the best and the median start. "
    "The first twenty were in view when the exchanges of units were set (about fourteen settings "
    "were compared on them); further ones were run once, afterwards."
)


def table(found: list[Record[Run]], numbers: range) -> list[str]:
    """Return the lines of those networks that both have trained."""
    best, lines = (
        [],
        [
            "| sizes | rows | rho | L-BFGS, best | Gauss-Newton above it | above the median "
            "| seconds: L-BFGS | Gauss-Newton |",
            f"|{' --- |' * 8}",
        ],
    )
    for number in numbers:
        both = {x.settings.method: x.outcome for x in matching(found, network=number)}
        if len(both) == 2:
            X, _, sizes, rho = drawn(number)
            (ours,), others = (both[x]["objectives"] for x in ("Gauss-Newton", "L-BFGS"))
            best.append(ours / min(others) - 1)
            above = [f"{ours / x - 1:+.2%}" for x in (min(others), float(np.median(others)))]
            told = [f"{both[x]['seconds']:.1f}" for x in ("L-BFGS", "Gauss-Newton")]
            named = "-".join(map(str, sizes))
            cells = [named, str(len(X)), f"{rho:.3f}", f"{min(others):.4f}", *above, *told]
            lines.append(f"| {' | '.join(cells)} |")
    if best:
        near = sum(x <= 0.01 for x in best)
        middle, worst = f"{np.median(best):+.2%}", f"{max(best):+.2%}"
        said = f"{near} of {len(best)} within 1 %; median {middle}, worst {worst}."
        lines = [said, "", *lines, ""]
    return lines


def main() -> None:
    torch.set_num_threads(1)
    order = [*range(ALL), *(ALL + (7 * n) % ALL for n in range(ALL))]  # further ones of all depths
    runs = [Run(n, method) for n in order for method in ("Gauss-Newton", "L-BFGS")]
    found = records("kinks", measured)(runs)
    body = [
        *table(found, range(ALL)),
        "## Drawn afterwards",
        "",
        *table(found, range(ALL, 2 * ALL)),
    ]
    write("kinks", "Networks of ReLU by Gauss-Newton and by L-BFGS", TEXT, body)


if __name__ == "__main__":
    main()
