"""The default of a regression and minibatches, by the number of samples: no cliff between methods.

Three laws, drawn from seeds by which nothing was chosen, a network of 100 ReLU, R2 on 2,000 other
samples. Run it with `OMP_NUM_THREADS=1 python -m benchmarks.method_sizes`, ten minutes; finished
runs are kept in benchmarks/results/method_sizes.jsonl, the table in method_sizes.md.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import torch
from sklearn.datasets import make_friedman1
from sklearn.metrics import r2_score

from benchmarks.harness.report import write
from benchmarks.harness.runs import Outcome, Records, records
from liftednet.activations import ReLU
from liftednet.errors import FitWarning
from liftednet.losses import SquaredError
from liftednet.models import LiftedMLP

Array = np.ndarray[Any, Any]
SIZES, SEEDS, TEST = (300, 500, 600, 1000, 2000, 3000), (11, 12), 2000
DEFAULT, BATCHES = "auto", "minibatch"
TEXT = (
    "R2 on 2,000 other samples, the mean of two draws; processor seconds of a fit in brackets. The "
    "default is Gauss-Newton with rho by the evidence from what minibatches have reached, with as "
    "many steps as take some seconds, where these are five at least; else it is minibatches."
)


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        law: of `LAWS`.
        samples: to train on.
        seed: of the samples and of the start.
        method: the default, or minibatches.
    """

    law: str
    samples: int
    seed: int
    method: str


def _correlated(samples: int, seed: int) -> tuple[Array, Array]:
    """Ten inputs that move together, and more noise than signal, as in diabetes."""
    draw = np.random.default_rng(seed)
    mixed = np.linalg.cholesky(0.35 + 0.65 * np.eye(10))
    x = draw.normal(size=(samples, 10)) @ mixed.T
    f = x[:, 2] + 0.7 * x[:, 8] + 0.5 * x[:, 3] + 0.3 * x[:, 2] * x[:, 8]
    f -= 0.4 * np.maximum(x[:, 4], 0)
    return x, f / f.std() + 0.9 * draw.normal(size=samples)


def _kinked(samples: int, seed: int) -> tuple[Array, Array]:
    """Eight inputs, kinks, jumps and products, and heavy tails."""
    draw = np.random.default_rng(seed)
    x = draw.uniform(-1, 1, (samples, 8))
    f = np.sin(4 * x[:, 0]) * x[:, 1] + np.abs(x[:, 2]) + (x[:, 3] > 0) * x[:, 4] + np.exp(x[:, 5])
    return x, f + 0.3 * draw.standard_t(4, size=samples)


LAWS: dict[str, Callable[[int, int], tuple[Array, Array]]] = {
    "friedman 1, noise 1": lambda n, seed: make_friedman1(n, noise=1.0, random_state=seed),
    "correlated": _correlated,
    "kinked": _kinked,
}


def train(run: Run) -> Outcome:
    x, y = LAWS[run.law](run.samples + TEST, run.seed)
    x, y, unseen, expected = x[TEST:], y[TEST:, None], x[:TEST], y[:TEST]
    began = time.process_time()
    model = LiftedMLP(
        (x.shape[1], 100, 1), ReLU(), SquaredError(), method=run.method, seed=run.seed
    ).fit(x, y)
    seconds = time.process_time() - began
    found = r2_score(expected, model.predict(unseen).numpy()[:, 0])
    assert model.trace is not None
    return {"R2": found, "seconds": seconds, "steps": model.trace.n_iter}


def table(done: dict[Run, Outcome]) -> Iterator[str]:
    columns = [(law, method) for law in LAWS for method in (DEFAULT, BATCHES)]
    names = {DEFAULT: "default", BATCHES: "minibatches"}
    yield f"| samples | {' | '.join(f'{law}, {names[method]}' for law, method in columns)} |"
    yield "| ---: |" + " ---: |" * len(columns)
    for samples in SIZES:
        cells = []
        for law, method in columns:
            each = [done[Run(law, samples, seed, method)] for seed in SEEDS]
            cells.append(
                f"{fmean(x['R2'] for x in each):.3f} ({fmean(x['seconds'] for x in each):.1f})"
            )
        yield f"| {samples:,} | {' | '.join(cells)} |"


def main() -> None:
    """Run what is missing, and write the table."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FitWarning)
    of: Records[Run] = records("method_sizes", train)
    runs = [
        Run(law, samples, seed, method)
        for samples in SIZES for law in LAWS for seed in SEEDS for method in (DEFAULT, BATCHES)
    ]  # fmt: skip
    done = {record.settings: record.outcome for record in of(runs)}
    write("method_sizes", "Regressions by the number of samples", TEXT, table(done))


if __name__ == "__main__":
    main()
