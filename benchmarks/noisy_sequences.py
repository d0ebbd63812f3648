"""Few noisy sequences: is the noise followed?

Sequences of ten steps of two normal numbers; a label is drawn by a chance that follows from them:
of the sum of the first numbers, of that over the last three steps, or of which of three symbols
came first, a tenth of whose labels are drawn anew. `LiftedSequenceClassifier((10,))` without
options, whose rho is by the evidence; the same with rho 3, its default up to 1.0.1; and what does
not know of steps, scikit-learn's logistic regression on all numbers of a sequence, its C by five
folds. Each is judged by accuracy and log loss on 4,000 new sequences, beside those of the chance
itself.

`python -m benchmarks.noisy_sequences`, some minutes; goes on where it was.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import accuracy_score, log_loss

from benchmarks.harness.report import write
from benchmarks.harness.runs import RESULTS, run_all
from liftednet import LiftedSequenceClassifier

TASKS, ROWS, SEEDS, NEW, STEPS = ("sum", "last three", "first"), (60, 150), range(3), 4_000, 10
METHODS = ("liftednet", "liftednet, rho 3", "logistic regression", "the chance itself")


@dataclass(frozen=True)
class Run:
    """One fit by one method."""

    task: str
    rows: int
    seed: int
    method: str


def drawn(generator: np.random.Generator, task: str, rows: int) -> tuple[Any, Any]:
    """Return sequences, (rows, steps, features), and the chances of their labels."""
    if task == "first":
        symbols = np.eye(3)[generator.integers(3, size=(rows, STEPS))]
        return symbols, 0.9 * symbols[:, 0] + 0.1 / 3
    x = generator.normal(size=(rows, STEPS, 2))
    score = x[:, :, 0].sum(1) / 1.5 if task == "sum" else x[:, -3:, 0].sum(1)
    rising = 1 / (1 + np.exp(-score))
    return x, np.column_stack([1 - rising, rising])


def fitted(run: Run) -> dict[str, float]:
    """Return how well a method does on new sequences, and how long it takes."""
    generator = np.random.default_rng(run.seed)
    (x, chances), (new, of_new) = (drawn(generator, run.task, n) for n in (run.rows, NEW))
    y, answers = (
        (generator.uniform(size=(len(p), 1)) > p.cumsum(1)).sum(1) for p in (chances, of_new)
    )
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if run.method == "the chance itself":
            found = of_new
        elif run.method == "logistic regression":
            model = LogisticRegressionCV(scoring="neg_log_loss", cv=5, max_iter=1000)
            found = model.fit(x.reshape(len(x), -1), y).predict_proba(new.reshape(len(new), -1))
        else:
            rho = 3.0 if "rho" in run.method else None
            ours = LiftedSequenceClassifier((10,), rho=rho, random_state=run.seed)
            found = ours.fit(x, y).predict_proba(new)
    spent = time.process_time() - began
    return {
        "accuracy": float(accuracy_score(answers, found.argmax(1))),
        "log loss": float(log_loss(answers, found)),
        "processor": spent,
    }


def main() -> None:
    """Run what is missing, and write the table."""
    runs = [Run(t, n, seed, m) for t in TASKS for n in ROWS for seed in SEEDS for m in METHODS]
    found = run_all(RESULTS / "noisy_sequences.jsonl", runs, fitted, "noisy sequences")
    lines = ["| task | sequences | method | accuracy | log loss | seconds, median |"]
    lines.append("| --- | ---: | --- | --- | --- | ---: |")
    for task in TASKS:
        for rows in ROWS:
            for method in METHODS:
                some = [
                    record.outcome for record in found
                    if (record.settings.task, record.settings.rows) == (task, rows)
                    and record.settings.method == method
                ]  # fmt: skip
                each = (
                    ", ".join(f"{x[kind]:.3f}" for x in some) for kind in ("accuracy", "log loss")
                )
                spent = median(x["processor"] for x in some)
                lines.append(f"| {task} | {rows} | {method} | {' | '.join(each)} | {spent:.1f} |")
    assert __doc__ is not None
    text = __doc__.split("\n\n")[1].replace("\n", " ") + " Every seed is shown; one thread."
    write("noisy_sequences", "Few noisy sequences", text, lines)


if __name__ == "__main__":
    main()
