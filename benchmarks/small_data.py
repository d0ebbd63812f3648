"""LiftedMLP without options on fourteen small data sets, beside scikit-learn's defaults.

Three folds; balanced accuracy of classifications, R2 of regressions; features are given unscaled to
every model. Each fold runs from five seeds of the start (a linear model has one), and the table has
the mean over folds and seeds, and the worst seed. Run it with
`OMP_NUM_THREADS=1 python -m benchmarks.small_data`, ten minutes; with --quick it takes one seed and
writes nothing. Written to benchmarks/results/small_data.md.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from rich.progress import track
from sklearn import datasets
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import balanced_accuracy_score, r2_score
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.neural_network import MLPClassifier, MLPRegressor

from benchmarks.harness.report import write
from liftednet.losses import SquaredError
from liftednet.models import LiftedMLP

SEEDS = (0, 1, 2, 3, 4)
HIDDEN = 100  # units, as scikit-learn's MLP has by default
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Table:
    """One data set.

    Attributes:
        name: of the row.
        x: (samples, features).
        y: labels or targets, (samples,).
        classes: whether y is labels.
    """

    name: str
    x: Array
    y: Array
    classes: bool


def tables() -> Iterator[Table]:
    """Yield the fourteen sets, drawn ones from seeds that were fixed before any was run."""
    for name in ("iris", "wine", "breast_cancer", "digits"):
        yield Table(
            name.replace("_", " "), *getattr(datasets, f"load_{name}")(return_X_y=True), True
        )
    draw = datasets.make_classification
    yield Table("imbalanced 95:5", *draw(2000, 20, n_informative=6, weights=[0.95], random_state=0),
                True)  # fmt: skip
    yield Table("50 x 10", *draw(50, 10, n_informative=5, random_state=1), True)
    yield Table("80 x 2,000", *draw(80, 2000, n_informative=20, random_state=2), True)
    generator = np.random.default_rng(0)
    x = generator.uniform(-3, 3, (400, 1))
    yield Table("one-feature bands", x, (np.sin(2 * x[:, 0]) > 0).astype(int), True)
    yield Table("moons", *datasets.make_moons(500, noise=0.2, random_state=0), True)
    yield Table("diabetes", *datasets.load_diabetes(return_X_y=True), False)
    yield Table("friedman 1", *datasets.make_friedman1(2000, noise=1.0, random_state=0), False)
    yield Table("friedman 2", *datasets.make_friedman2(1000, noise=50, random_state=0), False)
    yield Table("housing-like", *_housing(3000, generator), False)
    yield Table(
        "one-feature sine", x, np.sin(2 * x[:, 0]) + 0.1 * generator.normal(size=400), False
    )


def _housing(houses: int, generator: np.random.Generator) -> tuple[Array, Array]:
    """Return skewed features of scales from 1 to 1,000, and prices that are cut at both ends."""
    income, people = (generator.lognormal(*of, houses) for of in ((1.2, 0.5), (7, 0.7)))
    age, north, west = (generator.uniform(*of, houses) for of in ((1, 52), (32, 42), (-124, -114)))
    place = np.exp(-((north - 34) ** 2 + (west + 118) ** 2) / 4)
    price = 0.45 * income + 0.01 * age + place - 1e-4 * people
    noise = 0.3 * generator.normal(size=houses)
    return np.c_[income, age, people, north, west], np.clip(price + noise, 0.1, 5)


Fit = Callable[[Table, Array, Array, Array, int], Array]


def lifted(table: Table, x: Array, y: Array, unseen: Array, seed: int) -> Array:
    """Return what LiftedMLP answers, with no option but its sizes and seed."""
    if table.classes:
        model = LiftedMLP((x.shape[1], HIDDEN, len(np.unique(table.y))), seed=seed)
    else:
        model = LiftedMLP((x.shape[1], HIDDEN, 1), loss=SquaredError(), seed=seed)
    found: Array = model.fit(x, y).predict(unseen).numpy()
    return found.reshape(len(unseen))


def of_scikit(classifier: Callable[..., Any], regressor: Callable[..., Any], drawn: bool) -> Fit:
    def fit(table: Table, x: Array, y: Array, unseen: Array, seed: int) -> Array:
        make = classifier if table.classes else regressor
        model = make(random_state=seed) if drawn else make()
        found: Array = model.fit(x, y).predict(unseen)
        return found

    return fit


MODELS: dict[str, Fit] = {
    "LiftedMLP": lifted,
    "scikit-learn's MLP": of_scikit(MLPClassifier, MLPRegressor, True),
    "linear": of_scikit(LogisticRegression, Ridge, False),
    "gradient boosting": of_scikit(
        HistGradientBoostingClassifier, HistGradientBoostingRegressor, True
    ),
}


def scores(table: Table, fit: Fit, seeds: tuple[int, ...]) -> tuple[list[float], float]:
    """Return the mean over the folds for every seed, and processor seconds of a fit."""
    folds = (StratifiedKFold if table.classes else KFold)(3, shuffle=True, random_state=0)
    judge = balanced_accuracy_score if table.classes else r2_score
    started, found = time.process_time(), []
    for seed in seeds:
        each = [
            judge(table.y[test], fit(table, table.x[kept], table.y[kept], table.x[test], seed))
            for kept, test in folds.split(table.x, table.y)
        ]
        found.append(fmean(each))
    return found, (time.process_time() - started) / (3 * len(seeds))


def main() -> None:
    """Run all models on all sets, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, nothing is written")
    quick = parser.parse_args().quick
    warnings.simplefilter("ignore", ConvergenceWarning)
    lines = ["| data | " + " | ".join(MODELS) + " |", "| --- |" + " ---: |" * len(MODELS)]
    means: dict[str, list[float]] = {name: [] for name in MODELS}
    short = []
    for table in track(list(tables()), "data sets"):
        cells = []
        for name, fit in MODELS.items():
            found, seconds = scores(table, fit, SEEDS[:1] if quick else SEEDS)
            means[name].append(fmean(found))
            cells.append(f"{fmean(found):.3f} (worst {min(found):.3f}; {seconds:.1f} s)")
        lines.append(f"| {table.name} | " + " | ".join(cells) + " |")
        ours, mlp, linear = (means[name][-1] for name in list(MODELS)[:3])
        if ours < max(mlp, linear) - 0.02:
            short.append(f"{table.name} by {max(mlp, linear) - 0.02 - ours:.3f}")
    lines.append("| mean | " + " | ".join(f"{fmean(x):.3f}" for x in means.values()) + " |")
    verdict = (
        "The defaults were chosen on these sets with the first seeds, so that a set of yours may "
        "fare worse. Rows more than .02 below the better of scikit-learn's MLP and the linear "
        "model: "
        f"{', '.join(short) or 'none'}."
    )
    print("\n".join(lines))
    if not quick:
        write("small_data", "Fourteen small data sets, no option set", verdict, lines)


if __name__ == "__main__":
    main()
