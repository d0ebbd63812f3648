"""Two layers to the global optimum of a convex reformulation (scnn), beside ours without a setting.

Binary tables bundled with scikit-learn (diabetes above its median, the second iris, the second
wine, breast cancer), three splits of 70 and 30 %, inputs of mean 0 and variance 1. scnn (Mishkin,
Sahiner, Pilanci, 2022; `pip install pyscnn`) has 100 sampled patterns and a column of ones; its
weight decay is the best of .1, .01, .001 for gated units on a quarter of the training rows, and
the same for ReLU. Run it with `OMP_NUM_THREADS=1 python -m benchmarks.convex_networks`, ten
minutes; written to benchmarks/results/convex_networks.md.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from statistics import fmean

import numpy as np
from sklearn import datasets
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from benchmarks.harness.report import write
from liftednet import LiftedClassifier

Array = np.ndarray
SPLITS, DECAYS, PATTERNS = (0, 1, 2), (0.1, 0.01, 0.001), 100
TEXT = (
    "Test accuracy, mean of three splits, and processor seconds of a training (of scnn without the "
    "choice of its weight decay). scnn's `relu` is at the global optimum for its sampled patterns."
)


def tables() -> Iterator[tuple[str, Array, Array]]:
    """Yield name, inputs, and labels 0 and 1."""
    x, y = datasets.load_diabetes(return_X_y=True)
    yield "diabetes", x, y > np.median(y)
    for name, load in (("iris", datasets.load_iris), ("wine", datasets.load_wine)):
        x, y = load(return_X_y=True)
        yield name, x, y == 1
    x, y = datasets.load_breast_cancer(return_X_y=True)
    yield "breast cancer", x, y == 1


def scnn(kind: str, decay: float, x: Array, y: Array, test: Array, labels: Array) -> float:
    """Return the accuracy of a network of scnn."""
    from scnn.optimize import optimize
    from scnn.regularizers import NeuronGL1

    x, test = (np.c_[rows, np.ones(len(rows))] for rows in (x, test))
    y, labels = 2.0 * y - 1, 2.0 * labels - 1
    model, _ = optimize(kind, PATTERNS, x, y, test, labels, NeuronGL1(decay), verbose=False,
                        device="cpu", seed=0)  # fmt: skip
    return float((np.sign(model(test)).ravel() == labels).mean())


def decay_for(x: Array, y: Array) -> float:
    """Return the best weight decay of gated units on held-out rows."""
    parts = train_test_split(x, y, test_size=0.25, random_state=0, stratify=y)
    some, other, labels, wanted = parts
    return max(DECAYS, key=lambda decay: scnn("gated_relu", decay, some, labels, other, wanted))


METHODS: dict[str, Callable[..., float]] = {
    "ours, no setting": lambda _, x, y, new, right: (
        LiftedClassifier(random_state=0).fit(x, y).score(new, right)
    ),
    "scnn, ReLU": lambda decay, *rows: scnn("relu", decay, *rows),
    "scnn, gated ReLU": lambda decay, *rows: scnn("gated_relu", decay, *rows),
    "logistic regression": lambda _, x, y, new, right: (
        LogisticRegression().fit(x, y).score(new, right)
    ),
}


def main() -> None:
    """Run all, and write the table."""
    warnings.simplefilter("ignore")
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in METHODS}
    for _, x, y in tables():
        for seed in SPLITS:
            rows, test, labels, wanted = train_test_split(
                x, y.astype(int), test_size=0.3, random_state=seed, stratify=y
            )
            scale = StandardScaler().fit(rows)
            rows, test = scale.transform(rows), scale.transform(test)
            decay = decay_for(rows, labels)
            for name, score in METHODS.items():
                began = time.process_time()
                accuracy = score(decay, rows, labels, test, wanted)
                found[name].append((accuracy, time.process_time() - began))
    names = [name for name, *_ in tables()]
    lines = [f"| | {' | '.join(names)} | mean |", "| --- |" + " ---: |" * (len(names) + 1)]
    for name, each in found.items():
        groups = [each[i : i + len(SPLITS)] for i in range(0, len(each), len(SPLITS))]
        cells = [f"{fmean(a for a, _ in g):.3f} ({fmean(s for _, s in g):.1f} s)" for g in groups]
        lines.append(f"| {name} | {' | '.join(cells)} | {fmean(a for a, _ in each):.3f} |")
    write("convex_networks", "Two layers by a convex reformulation", TEXT, lines)


if __name__ == "__main__":
    main()
