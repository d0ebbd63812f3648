"""Small tables that nobody has tuned for: the estimators without a setting, and what others use.

51 tables that come with packages of statistics (benchmarks/data/packages.py names them and what to
install), five splits of 70 and 30 %. Every second table by name was open while defaults were
chosen; the others are run once, with --once, after that. Regressions of ours were changed once
more after their half was run, which is no test of them any more (its row of ours is of the settings
before): 13 further tables, drawn before, are run once with --fresh. Rows of a method stand here
once all of its splits have run; two thirds of ours on those 13, and all of classes, ran before the
evidence went on for gains of .01 in log p(y) instead of .1, which moved none of four tables tried;
classes also before chances were averaged over a least share of H^-1.
Opponents have their usual scaling, kinds as columns of zeros and ones, and their own defaults, or
the search that their documentation recommends. Densities of regressions are of those that have one,
and ours is that of `posterior`, which is skewed where targets are. CatBoost has the loss that gives
one (RMSEWithUncertainty), and squares. Rows of ours on
the open half are of today's code, those that are run once of that day's.

Run it with `OMP_NUM_THREADS=1 python -m benchmarks.small_sets`, hours with all opponents, which
goes on where it was interrupted; --stored writes the tables alone, --methods A B runs only these.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from scipy.stats import norm, rankdata
from sklearn.compose import (
    TransformedTargetRegressor,
    make_column_selector,
    make_column_transformer,
)
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import BayesianRidge, LogisticRegressionCV, RidgeCV
from sklearn.model_selection import GridSearchCV, ShuffleSplit, StratifiedShuffleSplit
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, PowerTransformer, StandardScaler
from sklearn.svm import SVC, SVR

from benchmarks.data.packages import CLASSIFICATIONS, FRESH, REGRESSIONS, PackagedTable, halves
from benchmarks.harness.opponents import by_ngboost, dense_network
from benchmarks.harness.report import write
from benchmarks.harness.runs import RESULTS, Outcome, finished, run_all
from benchmarks.harness.scores import LEVELS, of_chances, of_numbers
from liftednet import LiftedClassifier, LiftedRegressor, posterior
from liftednet.models.results import Prediction

Array = np.ndarray[Any, Any]
SPLITS = 5
STORE = RESULTS / "small_sets.jsonl"
OURS = "liftednet"
FLAGS = {"open": None, "run once": "--once", "fresh, run once": "--fresh"}
TABLES = {table.name: table for table in (*REGRESSIONS, *FRESH, *CLASSIFICATIONS)}


@dataclass(frozen=True)
class Run:
    """A fit of one method on one split of one table."""

    data: str
    method: str
    split: int


@dataclass(frozen=True)
class Answer:
    """What a method says of new rows.

    Attributes:
        mean: of a regression, (samples,).
        deviation: of it, (samples,); None where the method has no density.
        probabilities: of a classification, (samples, classes).
        own: a density and intervals that are not normal, see `of_numbers`.
    """

    mean: Array | None = None
    deviation: Array | None = None
    probabilities: Array | None = None
    own: Any = None


Fit = Callable[[Array, Array, Array], Answer]


def _plain(make: Callable[[], Any]) -> Fit:
    """Return a method that has answers and no density."""

    def fit(x: Array, y: Array, new: Array) -> Answer:
        return Answer(mean=make().fit(x, y).predict(new))

    return fit


def _scaled(make: Callable[[], Any]) -> Fit:
    """Return one whose targets are on a common scale, too."""
    return _plain(lambda: TransformedTargetRegressor(make(), transformer=StandardScaler()))


def _with_deviation(make: Callable[[], Any]) -> Fit:
    def fit(x: Array, y: Array, new: Array) -> Answer:
        return Answer(*make().fit(x, y).predict(new, return_std=True))

    return fit


def _classifier(make: Callable[[], Any]) -> Fit:
    def fit(x: Array, y: Array, new: Array) -> Answer:
        return Answer(probabilities=make().fit(x, y).predict_proba(new))

    return fit


@dataclass(frozen=True)
class _Density:
    """What `posterior` says of new rows, of numpy's arrays."""

    found: Prediction

    def log_density(self, y: Array) -> Array:
        return self.found.log_density(torch.from_numpy(y)[:, None]).numpy()[:, 0]

    def interval(self, level: float) -> tuple[Array, Array]:
        low, high = self.found.interval(level)
        return low.numpy()[:, 0], high.numpy()[:, 0]


def _ours(x: Array, y: Array, new: Array) -> Answer:
    found = posterior(LiftedRegressor(random_state=0).fit(x, y)).predict(torch.from_numpy(new))
    return Answer(found.mean.numpy()[:, 0], found.std.numpy()[:, 0], own=_Density(found))


def _process(inputs: int | None) -> Any:
    """Return a Gaussian process with one length scale, or one for every input."""
    lengths = 1.0 if inputs is None else np.ones(inputs)
    kernel = ConstantKernel() * RBF(lengths, (1e-2, 1e4)) + WhiteKernel(0.1, (1e-6, 1e2))
    return GaussianProcessRegressor(
        kernel, normalize_y=True, n_restarts_optimizer=1, random_state=0
    )


def _many_lengths(x: Array, y: Array, new: Array) -> Answer:
    return _with_deviation(lambda: _process(x.shape[1]))(x, y, new)


@dataclass(frozen=True)
class _Transformed:
    """Normal answers on the scale of scikit-learn's PowerTransformer, by change of variables."""

    scale: PowerTransformer
    mean: Array
    deviation: Array

    def log_density(self, y: Array) -> Array:
        t = self.scale.transform(y[:, None])[:, 0]
        slopes = (self.scale.lambdas_[0] - 1) * np.sign(y) * np.log1p(abs(y))
        slopes -= np.log(self.scale._scaler.scale_[0])
        return np.asarray(norm.logpdf(t, self.mean, self.deviation) + slopes)

    def interval(self, level: float) -> tuple[Array, Array]:
        reach = norm.ppf((1 + level) / 2) * self.deviation
        low, high = (self.back(end) for end in (self.mean - reach, self.mean + reach))
        return np.nan_to_num(low, nan=-np.inf), np.nan_to_num(high, nan=np.inf)

    def back(self, t: Array) -> Array:
        """Return y of t, NaN beyond all that y can be."""
        return np.asarray(self.scale.inverse_transform(t[:, None])[:, 0])


def _process_of_powers(x: Array, y: Array, new: Array) -> Answer:
    """Return medians, as TransformedTargetRegressor does; no y beyond the largest of training."""
    scale = PowerTransformer().fit(y[:, None])
    t = scale.transform(y[:, None])[:, 0]
    found = _Transformed(scale, *_process(None).fit(x, t).predict(new, return_std=True))
    median = np.where(np.isnan(found.back(found.mean)), y.max(), found.back(found.mean))
    return Answer(median, found.deviation, own=found)


def _catboost(x: Array, y: Array, new: Array) -> Answer:
    from catboost import CatBoostRegressor  # type: ignore[import-not-found,unused-ignore]

    model = CatBoostRegressor(
        loss_function="RMSEWithUncertainty", verbose=0, random_seed=0, thread_count=1,
        allow_writing_files=False,
    )  # fmt: skip
    mean, variance = model.fit(x, y).predict(new).T
    return Answer(mean, np.sqrt(variance))


def _catboost_means(x: Array, y: Array, new: Array) -> Answer:
    """Return the means of its default loss, which has no density."""
    from catboost import CatBoostRegressor

    model = CatBoostRegressor(verbose=0, random_seed=0, thread_count=1, allow_writing_files=False)
    return Answer(mean=model.fit(x, y).predict(new))


def _catboost_classes(x: Array, y: Array, new: Array) -> Answer:
    from catboost import CatBoostClassifier

    model = CatBoostClassifier(verbose=0, random_seed=0, thread_count=1, allow_writing_files=False)
    return Answer(probabilities=model.fit(x, y).predict_proba(new))


def _laplace(x: Array, y: Array, new: Array) -> Answer:
    """Return the answer of laplace-torch after its own example: a network, then its evidence."""
    from laplace import Laplace  # type: ignore[import-not-found,unused-ignore]

    torch.manual_seed(0)
    classes = y.dtype.kind in "iu"
    outputs = int(y.max()) + 1 if classes else 1
    center, scale = (0.0, 1.0) if classes else (y.mean(), y.std())
    inputs = torch.tensor(x, dtype=torch.float32)
    targets = torch.tensor(y) if classes else torch.tensor((y - center) / scale).float()[:, None]
    network = dense_network(x.shape[1], 50, outputs, activation=torch.nn.Tanh)
    loss = torch.nn.CrossEntropyLoss() if classes else torch.nn.MSELoss()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2, weight_decay=1e-4)
    rows = torch.utils.data.TensorDataset(inputs, targets)
    loader = torch.utils.data.DataLoader(rows, 150, shuffle=True)
    for _ in range(500):
        for batch, answers in loader:
            optimizer.zero_grad()
            loss(network(batch), answers).backward()
            optimizer.step()
    posterior = Laplace(
        network, "classification" if classes else "regression", subset_of_weights="all",
        hessian_structure="full" if len(next(iter(network.parameters()))) * x.shape[1] < 3000
        else "kron",
    )  # fmt: skip
    posterior.fit(loader)
    logs = [torch.ones(1, requires_grad=True) for _ in range(1 if classes else 2)]
    search = torch.optim.Adam(logs, lr=1e-1)
    for _ in range(100):
        search.zero_grad()
        (-posterior.log_marginal_likelihood(*(log.exp() for log in logs))).backward()
        search.step()
    seen = torch.tensor(new, dtype=torch.float32)
    if classes:
        found = posterior(seen, link_approx="mc", n_samples=500).detach().numpy()
        return Answer(probabilities=found)
    mean, variance = (part.detach().double().numpy().reshape(-1) for part in posterior(seen))
    deviation = np.sqrt(variance + float(posterior.sigma_noise.detach()) ** 2)
    return Answer(mean * scale + center, deviation * scale)


def _real_mlp(x: Array, y: Array, new: Array) -> Answer:
    from pytabkit import RealMLP_TD_Classifier, RealMLP_TD_Regressor  # type: ignore[import-not-found,unused-ignore]

    options = {"device": "cpu", "random_state": 0, "n_threads": 1, "verbosity": 0}
    if y.dtype.kind in "iu":
        return _classifier(lambda: RealMLP_TD_Classifier(**options))(x, y, new)
    return _plain(lambda: RealMLP_TD_Regressor(**options))(x, y, new)


REGRESSORS: dict[str, Fit] = {
    OURS: _ours,
    "Gaussian process": _with_deviation(lambda: _process(None)),
    "Gaussian process, many lengths": _many_lengths,
    "Gaussian process, powers": _process_of_powers,
    "Bayesian ridge": _with_deviation(BayesianRidge),
    "ridge": _plain(lambda: RidgeCV(np.logspace(-3, 4, 15))),
    "boosting": _plain(lambda: HistGradientBoostingRegressor(random_state=0)),
    "CatBoost": _catboost,
    "CatBoost, squares": _catboost_means,
    "NGBoost": lambda *rows: Answer(*by_ngboost(*rows)),
    "extra trees": _plain(lambda: ExtraTreesRegressor(random_state=0)),
    "SVM": _scaled(lambda: GridSearchCV(SVR(), {"C": np.logspace(-2, 4, 7)})),
    "scaled MLP": _scaled(lambda: MLPRegressor(max_iter=1000, random_state=0)),
    "laplace-torch": _laplace,
    "RealMLP": _real_mlp,
}
CLASSIFIERS: dict[str, Fit] = {
    OURS: _classifier(lambda: LiftedClassifier(random_state=0)),
    "logistic": _classifier(
        lambda: LogisticRegressionCV(
            Cs=10,
            max_iter=2000,
            scoring="neg_log_loss",
            use_legacy_attributes=False,
            l1_ratios=(0,),
        )
    ),
    "Gaussian process": _classifier(
        lambda: GaussianProcessClassifier(ConstantKernel() * RBF(1.0), random_state=0)
    ),
    "boosting": _classifier(lambda: HistGradientBoostingClassifier(random_state=0)),
    "CatBoost": _catboost_classes,
    "extra trees": _classifier(lambda: ExtraTreesClassifier(random_state=0)),
    "SVM": _classifier(
        lambda: GridSearchCV(SVC(probability=True, random_state=0), {"C": np.logspace(-1, 3, 5)})
    ),
    "scaled MLP": _classifier(lambda: MLPClassifier(max_iter=1000, random_state=0)),
    "laplace-torch": _laplace,
    "RealMLP": _real_mlp,
}


def split(table: PackagedTable, number: int) -> tuple[Any, Any, Array, Array, int]:
    """Return training and new inputs, their targets, and the number of classes (0: none)."""
    x, y = table.load()
    if table.classes:
        names, y = np.unique(y, return_inverse=True)
    kind = StratifiedShuffleSplit if table.classes else ShuffleSplit
    rows = list(kind(SPLITS, test_size=0.3, random_state=0).split(x, y))[number]
    kept, new = rows
    count = len(names) if table.classes else 0
    return x.iloc[kept], x.iloc[new], y[kept], y[new], count


def columns() -> Any:
    """Return what makes numbers of a table: kinds as zeros and ones, all on a common scale."""
    kinds = OneHotEncoder(handle_unknown="ignore", sparse_output=False, drop="if_binary")
    return make_pipeline(
        make_column_transformer(
            (kinds, make_column_selector(dtype_include="category")), remainder="passthrough"
        ),
        StandardScaler(),
    )


def run(item: Run) -> Outcome:
    """Fit a method on one split, and return its scores there."""
    table = TABLES[item.data]
    kept, new, y, truth, classes = split(table, item.split)
    fit = (CLASSIFIERS if classes else REGRESSORS)[item.method]
    began = time.process_time()
    prepared = columns().fit(kept)
    answer = fit(prepared.transform(kept), y, prepared.transform(new))
    seconds = time.process_time() - began
    if classes:
        assert answer.probabilities is not None  # of a classifier
        found = of_chances(answer.probabilities, truth)
    else:
        assert answer.mean is not None  # of a regression
        found = of_numbers(answer.mean, answer.deviation, truth, y.std(), answer.own)
    return {**found, "seconds": seconds, "rows": len(y)}


def table(
    methods: list[str], tables: list[PackagedTable], done: dict[Run, Outcome]
) -> Iterator[str]:
    """Yield the lines of one table: a row for each method."""
    complete = [
        method for method in methods
        if all(Run(t.name, method, s) in done for t in tables for s in range(SPLITS))
    ]  # fmt: skip
    if not complete:
        yield "(not run yet)"
        return

    def means(method: str, what: str) -> list[float]:
        return [
            fmean(done[Run(t.name, method, s)].get(what, math.nan) for s in range(SPLITS))
            for t in tables
        ]

    scores = {method: means(method, "score") for method in complete}
    ranks = rankdata(-np.array(list(scores.values())), axis=0).mean(1)
    classes = tables[0].classes
    others = ["calibration"] if classes else [f"holds {level}" for level in LEVELS]
    heads = ["accuracy" if classes else "R2", "rank", "likelihood", "its median", *others]
    yield f"| method | {' | '.join(heads)} | seconds |"
    yield "| --- |" + " ---: |" * (len(heads) + 1)
    for method, rank in zip(complete, ranks, strict=True):
        likelihood = means(method, "likelihood")
        cells = [fmean(scores[method]), rank, fmean(likelihood), median(likelihood)]
        cells += [fmean(means(method, what)) for what in others]
        cells += [median(means(method, "seconds"))]
        texts = ["" if math.isnan(cell) else f"{cell:.3f}" for cell in cells]
        yield f"| {method} | {' | '.join(texts)} |"


def thirds(methods: list[str], tables: list[PackagedTable], done: dict[Run, Outcome]) -> list[str]:
    """Return the lines of a table: what 90 % intervals hold on small, middling and large sets."""
    lines = ["| method | a third of the sets: fewest rows | middling | most |", "|" + " --- |" * 4]
    for method in methods:
        runs = [[done.get(Run(t.name, method, s), {}) for s in range(SPLITS)] for t in tables]
        if all("holds 0.9" in one for each in runs for one in each):
            runs.sort(key=lambda each: each[0]["rows"])
            held = [fmean(one["holds 0.9"] for one in each) for each in runs]
            cells = [f"{fmean(part):.3f}" for part in np.array_split(held, 3)]
            lines.append(f"| {method} | {' | '.join(cells)} |")
    return [*lines, ""]


def main() -> None:
    """Run what is missing, and write the tables."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    given = sys.argv[1:]
    wanted = given[given.index("--methods") + 1 :] if "--methods" in given else None
    done: dict[Run, Outcome] = {}
    lines: list[str] = []
    for kind, methods in ((REGRESSIONS, REGRESSORS), (CLASSIFICATIONS, CLASSIFIERS)):
        open_ones, once = halves(kind)
        groups = [("open", open_ones), ("run once", once)]
        if kind is REGRESSIONS:
            groups.append(("fresh, run once", [*FRESH]))
        for title, tables in groups:
            runs = [
                Run(t.name, method, s)
                for method in methods for t in tables for s in range(SPLITS)
            ]  # fmt: skip
            now = [r for r in runs if wanted is None or r.method in wanted]
            if "--stored" not in given and FLAGS[title] in (None, *given):
                run_all(STORE, now, run, title)
            done |= {record.settings: record.outcome for record in finished(STORE, runs)}
            what = "classifications" if kind is CLASSIFICATIONS else "regressions"
            lines += [f"## {len(tables)} {what}, {title}", "", *table([*methods], tables, done), ""]
            if what == "regressions":
                lines += thirds([*methods], tables, done)
    print("\n".join(lines))
    text = " ".join((__doc__ or "").split("\n\n")[1].split())
    write("small_sets", "Small tables, no setting", text, lines)


if __name__ == "__main__":
    main()
