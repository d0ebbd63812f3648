"""Error bars of thousands of rows: without a setting, after minibatches, and Gaussian processes.

Targets of 20 inputs uniform on [0, 1], of which seven matter, with noise 1 (friedman 1 and a wave):
10 sin(pi x1 x2) + 20 (x3 - 1/2)^2 + 10 x4 + 5 x5 + 5 sin(2 pi x6) x7. Scores are of 3,000 new rows,
likelihoods in units of the targets' deviation; the error is that to the function itself. Processes
have one length scale, or one an input, the two starts of benchmarks.small_sets, and all rows, or
2,000 of them. "one evaluation" is the time of one likelihood of a process with its derivatives, of
which its search takes some dozens. Seconds are of the processor, with predictions.

Run it with `OMP_NUM_THREADS=1 python -m benchmarks.many_rows`, which goes on where it was
interrupted; --stored writes the table alone.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.preprocessing import StandardScaler

from benchmarks.harness.report import write
from benchmarks.harness.runs import Outcome, matching, records
from benchmarks.harness.scores import of_numbers
from benchmarks.small_sets import Array, _process
from liftednet import LiftedRegressor

NEW = 3000
FEW = 2000  # rows of a process that has not all
RUNS = {
    1000: ("no setting", "minibatches", "boosting", "process", "process, many lengths"),
    5000: (
        "no setting", "minibatches", "boosting", "process of 2,000 rows",
        "process of 2,000 rows, many lengths", "one evaluation, many lengths",
    ),
    20_000: ("no setting", "minibatches", "boosting"),
    100_000: ("no setting", "minibatches", "boosting"),
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A fit of one method to so many rows."""

    rows: int
    method: str


def drawn(rows: int) -> tuple[Array, Array, Array]:
    """Return inputs, targets and the function of rows, the new ones last."""
    draw = np.random.default_rng(rows)
    x = draw.uniform(size=(rows + NEW, 20))
    f = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3]
    f += 5 * x[:, 4] + 5 * np.sin(2 * np.pi * x[:, 5]) * x[:, 6]
    return x, f + draw.normal(size=len(x)), f


def answered(method: str, x: Array, y: Array, new: Array) -> tuple[Array, Array | None]:
    """Return means and deviations of new rows; without any of the time of one evaluation."""
    if method == "boosting":
        return HistGradientBoostingRegressor(random_state=0).fit(x, y).predict(new), None
    if "process" not in method:
        by = None if method == "no setting" else "minibatch"
        mean, std = LiftedRegressor(random_state=0, method=by).fit(x, y).predict(new, True)
        return mean, std
    scale = StandardScaler().fit(x)
    few = slice(FEW if "2,000" in method else None)
    process = _process(x.shape[1] if "many" in method else None)
    process.fit(scale.transform(x)[few], y[few])
    mean, std = process.predict(scale.transform(new), return_std=True)
    return mean, std


def measured(run: Run) -> Outcome:
    x, y, f = drawn(run.rows)
    kept, new = slice(run.rows), slice(run.rows, None)
    began = time.process_time()
    if run.method.startswith("one evaluation"):
        process = _process(x.shape[1]).set_params(optimizer=None).fit(x[kept], y[kept])
        began = time.process_time()
        process.log_marginal_likelihood(process.kernel_.theta, eval_gradient=True)
        return {"seconds": time.process_time() - began}
    mean, std = answered(run.method, x[kept], y[kept], x[new])
    seconds = time.process_time() - began
    error = float(np.sqrt(np.mean((mean - f[new]) ** 2)))
    return {**of_numbers(mean, std, y[new], y.std()), "error": error, "seconds": seconds}


def main() -> None:
    """Run what is missing, and write the table."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    runs = [Run(rows, method) for rows, methods in RUNS.items() for method in methods]
    found = records("many_rows", measured)(runs)
    heads = ["score", "error", "likelihood", "holds 0.5", "holds 0.9", "holds 0.99", "seconds"]
    lines = [f"| rows | method | R2 | {' | '.join(heads[1:])} |", f"|{' --- |' * (len(heads) + 2)}"]
    for run in runs:
        for record in matching(found, rows=run.rows, method=run.method):
            told = [f"{record.outcome[x]:.3f}" if x in record.outcome else "" for x in heads]
            lines.append(f"| {run.rows:,} | {run.method} | {' | '.join(told)} |")
    print("\n".join(lines))
    text = " ".join((__doc__ or "").split("\n\n")[1].split())
    write("many_rows", "Error bars of thousands of rows", text, lines)


if __name__ == "__main__":
    main()
