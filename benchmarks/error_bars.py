"""Error bars without options: are they as wide as errors are, and chances as often right?

Twenty small sets, bundled with scikit-learn or drawn from seeds by which nothing was chosen; five
splits of 70 and 30 %. Regressions by R2, the negative log density of what was held out and how much
of it intervals of 90 % hold, classes by accuracy, log loss and calibration error. And noise whose
size follows X, drawn, so that it is known: three draws of 300 and of 1,000 rows, 3,000 new ones,
with `noise="varying"` and NGBoost (`pip install ngboost`, by its defaults) beside one noise. Run it
with `OMP_NUM_THREADS=1 python -m benchmarks.error_bars`, fifteen minutes, which goes on where it
was interrupted; --stored writes the tables alone. Finished runs are kept in benchmarks/results/
error_bars.jsonl, the tables in error_bars.md.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from scipy.stats import norm
from sklearn import datasets
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import BayesianRidge, LogisticRegressionCV
from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.harness.opponents import by_ngboost
from benchmarks.harness.report import write
from benchmarks.harness.runs import Outcome, Record, Records, records
from benchmarks.harness.scores import of_chances, of_numbers
from liftednet import LiftedClassifier, LiftedRegressor

Array = np.ndarray[Any, Any]
Table = dict[str, tuple[Array, Array]]
SPLITS = 5


def process() -> Any:
    kernel = ConstantKernel() * RBF() + WhiteKernel()
    return make_pipeline(StandardScaler(), GaussianProcessRegressor(kernel, normalize_y=True))


REGRESSIONS: dict[str, Callable[[], Any]] = {
    "liftednet": lambda: LiftedRegressor(random_state=0),
    "100 ReLU": lambda: LiftedRegressor((100,), "relu", random_state=0),
    "Gaussian process": process,
    "Bayesian ridge": lambda: make_pipeline(StandardScaler(), BayesianRidge()),
}
CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "liftednet": lambda: LiftedClassifier(random_state=0),
    "100 ReLU": lambda: LiftedClassifier((100,), "relu", random_state=0),
    "logistic regression": lambda: make_pipeline(
        StandardScaler(), LogisticRegressionCV(max_iter=1000)
    ),
    "MLP": lambda: make_pipeline(StandardScaler(), MLPClassifier(max_iter=1000, random_state=0)),
}


def ours(noise: str | None) -> Callable[[Array, Array, Array], tuple[Array, Array]]:
    return lambda x, y, new: (
        LiftedRegressor(noise=noise, random_state=0).fit(x, y).predict(new, return_std=True)
    )


VARYING: dict[str, Callable[[Array, Array, Array], tuple[Array, Array]]] = {
    "one noise": ours(None), "varying": ours("varying"), "NGBoost": by_ngboost,
}  # fmt: skip
TRUTHS: dict[str, tuple[int, Callable[[Array], Array], Callable[[Array], Array]]] = {
    "exponential": (
        2, lambda x: x[:, 1] + np.sin(x[:, 0]), lambda x: 0.15 * np.exp(0.8 * x[:, 0]),
    ),
    "funnel": (1, lambda x: np.sin(2 * x[:, 0]), lambda x: 0.1 + 0.4 * abs(x[:, 0])),
    "step": (
        5, lambda x: x[:, 0] * x[:, 1] + x[:, 2], lambda x: np.where(x[:, 3] > 0, 0.8, 0.2),
    ),
}  # fmt: skip
TEXT = (
    "Means of five splits, 70 % for training; no options but those in the names. The Gaussian "
    "process has a constant times an RBF kernel and a white one, logistic regression chooses its "
    "penalty by cross-validation; both, the MLP and Bayesian ridge see standardized inputs. NLL is "
    "the negative log density of a held-out answer over the standard deviation of y in training, "
    "or the log loss; held is the share of held-out answers within the intervals of 90 % (mean +- "
    "1.645 std); error of calibration is the mean distance, over ten bins of the largest "
    "probability, of that from the share that is right. Seconds are processor time of a fit and "
    "its predictions, on a machine that others used at the same time."
)


@dataclass(frozen=True)
class Run:
    """All splits of one set.

    Attributes:
        data: name of the set.
        method: of `REGRESSIONS` or `CLASSIFIERS`.
    """

    data: str
    method: str


@dataclass(frozen=True)
class Drawn:
    """A fit to drawn rows whose noise follows X.

    Attributes:
        truth: of `TRUTHS`.
        rows: to fit.
        draw: the seed.
        method: of `VARYING`.
    """

    truth: str
    rows: int
    draw: int
    method: str


def train_drawn(run: Drawn) -> Outcome:
    size, answer, noise = TRUTHS[run.truth]
    source = np.random.default_rng([run.draw, run.rows])
    x = source.uniform(-2, 2, (run.rows + 3000, size))
    y = answer(x) + noise(x) * source.normal(size=len(x))
    began = time.process_time()
    mean, std = VARYING[run.method](x[: run.rows], y[: run.rows], x[run.rows :])
    spent, y, size_there = time.process_time() - began, y[run.rows :], noise(x[run.rows :])
    inside = abs(y - mean) < norm.ppf(0.95) * std
    thirds = np.array_split(inside[np.argsort(size_there, kind="stable")], 3)
    far = float(np.sqrt(np.mean((mean - answer(x[run.rows :])) ** 2)))
    density = -float(norm.logpdf(y, mean, std).mean())
    return {"held": [float(x.mean()) for x in thirds], "nll": density, "off": far, "s": spent}


def varying(done: Callable[[Sequence[Drawn]], list[Record[Drawn]]]) -> Iterator[str]:
    yield (
        "Noise that follows X, known since it is drawn; mean of three draws (worst): what "
        "intervals of 90 % hold on the thirds of new rows with least, middling and most noise, the "
        "negative log density, root mean square error of the mean, seconds."
    )
    yield ""
    yield "| noise, rows | method | least | middling | most | NLL | error | seconds |"
    yield "| --- | --- |" + " ---: |" * 6
    for truth in TRUTHS:
        for rows in (300, 1000):
            for method in VARYING:
                each = [x.outcome for x in done([Drawn(truth, rows, k, method) for k in range(3)])]
                if len(each) < 3:
                    continue
                held = np.array([x["held"] for x in each])
                worst = held[abs(held - 0.9).argmax(0), range(3)]
                cells = [f"{a:.3f} ({b:.3f})" for a, b in zip(held.mean(0), worst, strict=True)]
                cells += [f"{fmean(x[name] for x in each):.3f}" for name in ("nll", "off", "s")]
                yield f"| {truth}, {rows:,} | {method} | {' | '.join(cells)} |"
    yield ""


@cache
def regressions() -> Table:
    """Return (samples, features) and (samples,) of every regression."""
    draw = np.random.default_rng(34)
    x, y = datasets.load_diabetes(return_X_y=True)
    exercise, body = datasets.load_linnerud(return_X_y=True)

    def drawn(samples: int, features: int, f: Callable[[Array], Array], noise: float) -> Any:
        x = draw.uniform(-2, 2, (samples, features))
        return x, f(x) + noise * draw.normal(size=samples)

    heavy = drawn(200, 3, lambda x: x[:, 0] ** 2 - x[:, 1], 0.0)
    return {
        "diabetes, 442": (x, y),
        "diabetes, 80": (x[:80], y[:80]),
        "linnerud, 20": (exercise, body[:, 0]),
        "friedman 1, 100": datasets.make_friedman1(100, noise=1.0, random_state=341),
        "friedman 1, 400": datasets.make_friedman1(400, noise=1.0, random_state=342),
        "friedman 2, 200": datasets.make_friedman2(200, noise=100.0, random_state=343),
        "friedman 3, 200": datasets.make_friedman3(200, noise=0.1, random_state=344),
        "linear, 60 x 20": datasets.make_regression(60, 20, noise=20, random_state=345),
        "sine, 100": drawn(100, 1, lambda x: np.sin(3 * x[:, 0]), 0.2),
        "bumps, 300": drawn(300, 1, lambda x: np.exp(-20 * (x[:, 0] - 1) ** 2) + x[:, 0] / 4, 0.1),
        "product, 200": drawn(200, 4, lambda x: x[:, 0] * x[:, 1] + x[:, 2], 0.5),
        "kinks, 200": drawn(200, 3, lambda x: abs(x[:, 0]) - np.maximum(x[:, 1], 0), 0.2),
        "heavy tails, 200": (heavy[0], heavy[1] + 0.3 * draw.standard_t(3, 200)),
        "noise alone, 100": (draw.normal(size=(100, 5)), draw.normal(size=100)),
    }  # fmt: skip


@cache
def classes() -> Table:
    """Return (samples, features) and labels of every set of classes."""
    draw = np.random.default_rng(35)
    x = draw.uniform(-1, 1, (200, 4))
    signs = (x[:, 0] * x[:, 1] > 0) ^ (draw.random(200) < 0.1)
    make = datasets.make_classification
    digits = datasets.load_digits(return_X_y=True)
    return {
        "iris, 150": datasets.load_iris(return_X_y=True),
        "wine, 178": datasets.load_wine(return_X_y=True),
        "breast cancer, 569": datasets.load_breast_cancer(return_X_y=True),
        "digits, 300": (digits[0][:300], digits[1][:300]),
        "moons, 200": datasets.make_moons(200, noise=0.3, random_state=351),
        "circles, 200": datasets.make_circles(200, noise=0.2, factor=0.5, random_state=352),
        "signs, 200": (x, signs.astype(int)),
        "four classes, 300": make(
            300, 10, n_informative=5, n_classes=4, n_clusters_per_class=1, flip_y=0.1,
            random_state=353,
        ),
        "rare class, 300": make(300, 6, weights=[0.9], flip_y=0.05, random_state=354),
        "noise alone, 150": (draw.normal(size=(150, 6)), draw.integers(0, 2, 150)),
    }  # fmt: skip


def train(run: Run) -> Outcome:
    of_classes = run.data in classes()
    x, y = (classes() if of_classes else regressions())[run.data]
    split = StratifiedShuffleSplit if of_classes else ShuffleSplit
    found: dict[str, list[float]] = {}
    for kept, unseen in split(SPLITS, test_size=0.3, random_state=0).split(x, y):
        began = time.process_time()
        if of_classes:
            model = CLASSIFIERS[run.method]().fit(x[kept], y[kept])
            one = of_chances(model.predict_proba(x[unseen]), y[unseen])
        else:
            model = REGRESSIONS[run.method]().fit(x[kept], y[kept])
            mean, std = model.predict(x[unseen], return_std=True)
            one = of_numbers(mean, std, y[unseen], y[kept].std())
        one["processor"] = time.process_time() - began
        for name, value in one.items():
            found.setdefault(name, []).append(float(value))
    return found


def table(
    done: dict[Run, Outcome], sets: Table, methods: dict[str, Any], heads: dict[str, str]
) -> Iterator[str]:
    names = [f"{head}, {method}" for head in heads.values() for method in methods]
    yield f"| data | {' | '.join(names)} |"
    yield "| --- |" + " ---: |" * len(names)
    for data in sets:
        cells = (fmean(done[Run(data, m)][key]) for key in heads for m in methods)
        yield f"| {data} | {' | '.join(f'{cell:.3f}' for cell in cells)} |"
    for name, mean in (("mean", fmean), ("median", median)):
        columns = ([fmean(done[Run(d, m)][key]) for d in sets] for key in heads for m in methods)
        yield f"| {name} | {' | '.join(f'{mean(column):.3f}' for column in columns)} |"
    yield ""
    seconds = (
        f"{m} {fmean(fmean(done[Run(d, m)]['processor']) for d in sets):.2f}" for m in methods
    )
    yield f"Seconds of a fit in the mean: {', '.join(seconds)}."
    yield ""


CHANCES = {
    "score": "accuracy", "likelihood": "log loss", "calibration": "error of calibration",
}  # fmt: skip


def main() -> None:
    """Run what is missing, and write the tables."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of optimizers that end at their limits
    of: Records[Run] = records("error_bars", train)
    kinds = ((regressions(), REGRESSIONS), (classes(), CLASSIFIERS))
    runs = [Run(data, method) for sets, methods in kinds for data in sets for method in methods]
    done = {record.settings: record.outcome for record in of(runs)}
    lines = [
        *table(done, *kinds[0], {"score": "R2", "likelihood": "NLL", "holds 0.9": "held"}),
        *table(done, *kinds[1], CHANCES),
    ]
    own: Records[Drawn] = records("error_bars", train_drawn)
    lines += varying(own)
    write("error_bars", "Error bars without options", TEXT, lines)


if __name__ == "__main__":
    main()
