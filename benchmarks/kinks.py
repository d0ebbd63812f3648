"""Seventy networks of ReLU by Gauss-Newton, beside the best of many starts of L-BFGS.

Run it with `OMP_NUM_THREADS=1 python -m benchmarks.kinks`, an hour and a half of one core; it goes
on where it was interrupted, and `--stored` writes the table of what stands in
benchmarks/results/kinks.jsonl.

Of each twenty ten have one hidden layer, six two and four three, drawn by their numbers: 1 to 10
inputs, 50 to 400 rows (200 of several layers), 20, 50 or 100 units a layer (no 100 of several), rho
between .03 and .3 in all layers, waves with noise, each fourth a classification by their median.
The noise on weights (of .1, .2, .3 and .5) was chosen on seven recurrent networks that are not
among these. On the first forty it was compared with exchanges of units, whose settings had been
chosen on the first twenty, and with both by turns, which stayed; the last twenty and the recurrent
ones were run once, afterwards.
Ten recurrent ones with an answer at each step: 1 to 3 inputs, 4 to 15 steps, 40 to 160 sequences,
8 to 32 units of ReLU or, each second, a leaky one, rho as above.
L-BFGS (SciPy, 3,000 steps) starts from the first weights of twenty seeds, of recurrent networks
ten; Gauss-Newton, with its defaults, from that of the first.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.global_optimum import lbfgs, objective
from benchmarks.harness.report import write
from benchmarks.harness.runs import Outcome, Record, matching, records
from liftednet.activations import LeakyReLU, ReLU
from liftednet.losses import CrossEntropy, SquaredError
from liftednet.models import GaussNewton, LiftedMLP, LiftedRNN

RECURRENT, SEQUENCES = range(1000, 1010), 10  # their numbers, and starts
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


@dataclass(frozen=True)
class Recurrent:
    """A recurrent network, and the sequences that it learns."""

    X: Tensor
    y: Tensor
    sizes: tuple[int, int, int]
    slope: float
    rho: float

    @staticmethod
    def drawn(network: int) -> Recurrent:
        """Return a network and (samples, steps, features), by its number."""
        generator = np.random.default_rng(network)
        steps, rows = int(generator.integers(4, 16)), int(generator.integers(40, 161))
        inputs, units = int(generator.integers(1, 4)), int(generator.choice([8, 12, 20, 32]))
        rho = float(10 ** generator.uniform(math.log10(0.03), math.log10(0.3)))
        slope = float(generator.choice([0.01, 0.1, 0.2])) if network % 2 else 0.0
        X, h, answers = generator.normal(size=(rows, steps, inputs)), np.zeros((rows, 3)), []
        inner, outer = generator.normal(size=(3, 3)) / 2, generator.normal(size=(inputs, 3))
        for step in range(steps):
            h = np.tanh(h @ inner + X[:, step] @ outer)
            answers.append(h[:, 0] * h[:, 1] + h[:, 2] / 2 + 0.1 * generator.normal(size=rows))
        y, classes = np.stack(answers, 1), 2 if network % 4 == 3 else 1
        whole = y > np.median(y) if classes == 2 else ((y - y.mean()) / y.std())[..., None]
        targets = torch.from_numpy(whole)
        targets = targets.long() if classes == 2 else targets
        return Recurrent(torch.from_numpy(X), targets, (inputs, units, classes), slope, rho)

    def model(self, seed: int) -> LiftedRNN:
        """Return the network before a fit."""
        loss = SquaredError() if self.sizes[-1] == 1 else CrossEntropy()
        phi = LeakyReLU(self.slope) if self.slope else ReLU()
        return LiftedRNN(
            *self.sizes, phi, loss, rho=self.rho, method=GaussNewton(), seed=seed,
            standardize=False, dtype=torch.float64,
        )  # fmt: skip

    def objective(self, parts: list[Tensor]) -> Tensor:
        """Return loss + rho |weights|^2, by a loop of torch."""
        W, b, A, c = parts
        h, answers = self.X.new_zeros(len(self.X), len(b)), []
        for x in self.X.unbind(1):
            u = torch.cat([h, x], 1) @ W + b
            h = u.clamp(min=0) + self.slope * u.clamp(max=0)
            answers.append(h @ A + c)
        f, paid = torch.stack(answers, 1), self.rho * (W.square().sum() + A.square().sum())
        if self.sizes[-1] == 1:
            return (self.y - f).square().sum() / 2 + paid
        entropy = torch.nn.functional.cross_entropy
        return entropy(f.flatten(0, 1), self.y.flatten(), reduction="sum") + paid


def measured(run: Run) -> Outcome:
    if run.network in RECURRENT:
        recurrent, started = Recurrent.drawn(run.network), time.process_time()
        if run.method == "Gauss-Newton":
            found = [recurrent.model(0).fit(recurrent.X, recurrent.y).objective()]
        else:
            starts = lbfgs(recurrent.objective, recurrent.model, math.inf, SEQUENCES)
            found = [value for value, _ in starts]
        return {"objectives": found, "seconds": time.process_time() - started}
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
        found = [
            value for value, _ in lbfgs(lambda parts: objective(X, y, parts, rho), model, math.inf)
        ]
    return {"objectives": found, "seconds": time.process_time() - started}


TEXT = (
    "Gauss-Newton has one start and its defaults, L-BFGS the best of twenty starts, of recurrent "
    f"networks {SEQUENCES}, and the seconds of all of them; processor time of one thread, on a "
    "machine that did other work meanwhile. Objectives of Gauss-Newton are told as what they are "
    "above the best and the median start. The first forty were in view when exchanges of units and "
    "noise on weights were set; the last twenty and the recurrent ones were run once, afterwards."
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
            one = Recurrent.drawn(number)
            X, sizes, rho = one.X, [*one.sizes], one.rho
            if number not in RECURRENT:
                X, _, layers, rho = drawn(number)
                sizes = [*layers]
            (ours,), others = (both[x]["objectives"] for x in ("Gauss-Newton", "L-BFGS"))
            best.append(ours / min(others) - 1)
            above = [f"{ours / x - 1:+.2%}" for x in (min(others), float(np.median(others)))]
            told = [f"{both[x]['seconds']:.1f}" for x in ("L-BFGS", "Gauss-Newton")]
            named = "-".join(map(str, sizes))
            cells = [named, str(len(X)), f"{rho:.3f}", f"{min(others):.4f}", *above, *told]
            lines.append(f"| {' | '.join(cells)} |")
    if not best:
        lines = ["Not run with both.", ""]
    else:
        near = sum(x <= 0.01 for x in best)
        middle, worst = f"{np.median(best):+.2%}", f"{max(best):+.2%}"
        said = f"{near} of {len(best)} within 1 %; median {middle}, worst {worst}."
        lines = [said, "", *lines, ""]
    return lines


def main() -> None:
    torch.set_num_threads(1)
    order = [*RECURRENT, *range(3 * ALL)]
    runs = [Run(n, method) for n in order for method in ("Gauss-Newton", "L-BFGS")]
    found = records("kinks", measured)(runs)
    body = [
        *table(found, range(2 * ALL)),
        "## Drawn afterwards",
        "",
        *table(found, range(2 * ALL, 3 * ALL)),
        "## Recurrent",
        "",
        *table(found, RECURRENT),
    ]
    write("kinks", "Networks of ReLU by Gauss-Newton and by L-BFGS", TEXT, body)


if __name__ == "__main__":
    main()
