"""Where do lifted targets beat exact gradients in the same step? A search on small digits.

LiftedMLP on scikit-learn's digits, in combinations of activation, layers of 50, samples, and share
of labels that are replaced at random, with lifted targets at lam 1 and 10 (the default) and with
backpropagation in their place, five seeds each. rho is the default, 1, or 0.01 where 1 is too
strong: three layers of sigmoids on 200 digits stay at chance with it, whatever the gradients. Where
a lam is ahead by more than the larger deviation, both are run again with ten fresh seeds: of so
many cells some are ahead by chance. On wrong labels rho and the passes are chosen, too, for a lead
there may be no more than a training that overfits later. Run it with `OMP_NUM_THREADS=1 python -m
benchmarks.regimes`, ten minutes; finished runs are kept. Written to benchmarks/results/regimes.md.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

import torch

from benchmarks.depth import ACTIVATIONS
from benchmarks.harness.exact import exact_gradients
from benchmarks.harness.runs import Outcome, run_all
from benchmarks.solvers import machine
from liftednet.data import digits
from liftednet.errors import FitWarning, SolverError
from liftednet.models import LiftedMLP, Minibatch

RESULT = Path(__file__).parent / "results" / "regimes.md"
SEEDS, FRESH = range(5), range(100, 110)
EXACT, LAMS = 0.0, (1.0, 10.0)


@dataclass(frozen=True)
class Run:
    """One training; lam 0 stands for exact gradients."""

    activation: str
    layers: int
    samples: int
    noise: float
    rho: float
    passes: int | None = None
    lam: float = EXACT
    seed: int = 0


DATA = ((200, 0.0, 0.01), (1347, 0.0, 1.0), (1347, 0.4, 0.01))  # samples, noise, rho
CELLS = [
    Run(activation, layers, *data)
    for activation, layers, data in itertools.product(("sigmoid", "ReLU"), (3, 10), DATA)
]
NOISY = [("ReLU", 3, 1347, 0.4, rho) for rho in (0.1, 1.0, 10.0)]
NOISY += [("sigmoid", 10, 1347, 0.4, rho) for rho in (0.1, 1.0)]
CELLS += [Run(*noisy) for noisy in NOISY]  # is a lead on wrong labels one of rho,
CELLS += [Run(*noisy, passes) for noisy in NOISY[1::3] for passes in (5, 10, 20)]  # or of passes?


def train(run: Run) -> Outcome:
    torch.set_num_threads(1)
    data, source = digits(), torch.Generator().manual_seed(run.seed)
    rows = torch.randperm(len(data.x_train), generator=source)[: run.samples]
    x, y = data.x_train[rows], data.y_train[rows]
    wrong = torch.rand(len(y), generator=source) < run.noise
    y = torch.where(wrong, torch.randint(10, y.shape, generator=source), y)
    sizes, activation = (64, *[50] * run.layers, 10), ACTIVATIONS[run.activation][0]
    model = LiftedMLP(
        sizes,
        activation,
        lam=run.lam or 10.0,
        rho=run.rho,
        seed=run.seed,
        method=Minibatch(run.passes),
    )
    started = time.process_time()
    try:
        with nullcontext() if run.lam else exact_gradients(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)  # of units that died: the accuracy tells
            model.fit(x, y)
        accuracy = float((model.predict(data.x_test) == data.y_test).double().mean())
    except SolverError:  # a training that fails is a failed run
        accuracy = 0.1
    return {"accuracy": accuracy, "processor": round(time.process_time() - started, 3)}


def accuracies(cell: Run, seeds: Sequence[int]) -> list[float]:
    runs = [replace(cell, seed=seed) for seed in seeds]
    found = run_all(RESULT.with_suffix(".jsonl"), runs, train)
    return [record.outcome["accuracy"] for record in found]


def lead(lifted: Sequence[float], exact: Sequence[float]) -> tuple[float, float]:
    """Return by how much the mean leads, and the larger deviation."""
    return fmean(lifted) - fmean(exact), max(stdev(lifted), stdev(exact))


def lines(cell: Run) -> Iterator[str]:
    """Yield a line of a cell, and one for every lam that is run again."""
    exact = accuracies(cell, SEEDS)
    shown, again = [], []
    for lam in LAMS:
        found = accuracies(replace(cell, lam=lam), SEEDS)
        ahead, spread = lead(found, exact)
        shown.append(f"{ahead:+.3f}{' *' if ahead > spread else ' -' if -ahead > spread else ''}")
        if ahead > spread:
            again.append(lam)
    passes = cell.passes or "500 steps"
    fields = (cell.activation, cell.layers, cell.samples, cell.noise, cell.rho, passes)
    where = f"| {' | '.join(map(str, fields))} |"
    yield f"{where} {fmean(exact):.3f} ± {stdev(exact):.3f} | {' | '.join(shown)} | |"
    for lam in again:
        exact, found = accuracies(cell, FRESH), accuracies(replace(cell, lam=lam), FRESH)
        ahead, spread = lead(found, exact)
        held = "holds" if ahead > spread else "does not hold"
        told = f"lam {lam:g}: {ahead:+.3f}, deviation {spread:.3f}, {held}"
        empty = " | ".join([""] * len(LAMS))
        yield f"{where} {fmean(exact):.3f} ± {stdev(exact):.3f} | {empty} | {told} |"


def main() -> None:
    """Run what is missing, and write the table."""
    measured = "; ".join(f"{name} {value}" for name, value in machine().items())
    columns = (
        "activation",
        "layers",
        "samples",
        "labels at random",
        "rho",
        "passes",
        "exact gradients",
    )
    head = [*columns, *(f"lam {lam:g}" for lam in LAMS), "ten fresh seeds"]
    text = [
        f"# Lifted targets or exact gradients\n\n{measured}\n",
        "Test accuracy with exact gradients (mean ± deviation of five seeds), and by how much "
        "lifted targets lead in the same step; * by more than the larger deviation, - behind by "
        "more. A lead with * is run again with ten fresh seeds, in a line of its own.\n",
        f"| {' | '.join(head)} |",
        f"| {' | '.join(['---'] * len(head))} |",
    ]
    for cell in CELLS:
        text += lines(cell)
    RESULT.write_text("\n".join([*text, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
