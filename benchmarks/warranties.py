"""Warranties on new rows: how often they are broken, and how many rows they need.

A thousand times 700 rows are drawn, of two groups, labels beyond what a linear network can tell.
`LiftedClassifier(())` is fitted under `GroupRates` within .14 and `Rate(at_most=.5)` at confidence
.95, half of the rows set aside. 200,000 new rows say what the rates are. A warranty is broken where
it says "holds" and one of its limits is passed, a bound where a rate lies beyond it; each may be
in at most 5 % of all cases.

Then rows a group, set aside, with which a difference of rates is shown to lie within a limit with
probability .8, at 95 %: ours (300 draws, to a twentieth), and the least number with which any bound
could do it. This is the most powerful test of the case itself against the case beyond the limit
that is nearest by the divergence of Kullback and Leibler (Neyman and Pearson, 1933), summed
exactly.

`python -m benchmarks.warranties`, five minutes; goes on where it was (results/warranties.jsonl).
"""

from __future__ import annotations

import time
import warnings
from dataclasses import astuple, dataclass
from statistics import fmean
from typing import Any

import numpy as np
from scipy import optimize, stats

from benchmarks.harness.report import write
from benchmarks.harness.runs import records
from liftednet import LiftedClassifier
from liftednet.confidence import difference_bound
from liftednet.constraints import GroupRates, Rate

CASES, CONFIDENCE, POWER, DRAWS = 1_000, 0.95, 0.8, 300
ROWS, NEW = 700, 200_000
WITHIN, MOST = 0.14, 0.5
STEPS = np.arange(1.0, 3.0, 0.05)  # of the rows that the best bound needs
NEEDS = (
    (0.5, 0.0, 0.1), (0.5, 0.02, 0.1), (0.2, 0.0, 0.05), (0.1, 0.0, 0.05),
    (0.3, 0.05, 0.15),
)  # fmt: skip


@dataclass(frozen=True)
class Simulation:
    """One fit with a warranty."""

    seed: int


@dataclass(frozen=True)
class Needed:
    """Rows that show a rate to be within a limit of another, from which it differs by `gap`."""

    rate: float
    gap: float
    limit: float


def drawn(generator: np.random.Generator, rows: int) -> tuple[Any, Any, Any]:
    """Return inputs, the group among them, labels and groups."""
    group = generator.integers(0, 2, rows)
    x = generator.standard_normal((rows, 3)) + 0.8 * group[:, None]
    score = x[:, 0] + x[:, 1] * x[:, 2] + generator.standard_normal(rows)
    return np.column_stack([group, x]), (score > 1.0).astype(int), group


def simulated(seed: int) -> dict[str, float]:
    """Return whether both limits are claimed, whether a claim is broken, and a bound."""
    generator = np.random.default_rng(seed)
    x, y, group = drawn(generator, ROWS)
    model = LiftedClassifier((), max_iter=5, random_state=seed)
    asked = [GroupRates(group, WITHIN), Rate(at_most=MOST)]
    began = time.process_time()
    with warnings.catch_warnings(action="ignore"):
        model.fit(x, y, constraints=asked, confidence=CONFIDENCE, held_out=0.5)
    spent = time.process_time() - began
    held = model.model_.constraint_report().held_out
    assert held is not None
    x, y, group = drawn(generator, NEW)
    d = model.predict(x)
    rates = abs(d[group == 0].mean() - d[group == 1].mean()), d.mean()
    pairs = list(zip(rates, held.verdicts, strict=True))
    return {
        "claimed": float(all(one.holds for one in held.verdicts)),
        "broken": float(any(one.holds and rate > one.limit for rate, one in pairs)),
        "passed": float(any(rate > one.bound for rate, one in pairs)),
        "processor": spent,
    }


def ours(case: Needed, least: int) -> int:
    """Return the rows a group that `difference_bound` needs."""

    def shown(a: int, b: int, rows: int) -> bool:
        return difference_bound((a, rows), (b, rows), 1 - CONFIDENCE) <= case.limit

    def power(rows: int) -> float:
        uniform = np.random.default_rng(0).uniform(size=(2, DRAWS))
        p, q = case.rate + case.gap, case.rate
        hits = stats.binom.ppf(uniform, rows, np.array([[p], [q]])).astype(int).T
        return fmean(shown(int(a), int(b), rows) for a, b in hits)

    return next(n for n in (round(least * step) for step in STEPS) if power(n) >= POWER)


def best(case: Needed) -> int:
    """Return the rows a group with which a most powerful test could do."""
    p, q = case.rate + case.gap, case.rate

    def apart(other: float) -> float:
        pairs = (p, other + case.limit), (q, other)
        return sum(stats.entropy([a, 1 - a], [b, 1 - b]) for a, b in pairs)

    nearest = optimize.minimize_scalar(
        apart, bounds=(1e-6, 1 - case.limit - 1e-6), method="bounded", options={"xatol": 1e-9}
    ).x

    def power(rows: int) -> float:
        k = np.arange(rows + 1)

        def law(first: float, second: float) -> Any:
            return np.outer(stats.binom.pmf(k, rows, first), stats.binom.pmf(k, rows, second))

        is_so, null = law(p, q).ravel(), law(nearest + case.limit, nearest).ravel()
        order = np.argsort(-(is_so / np.maximum(null, 1e-300)))
        size, gain = null[order].cumsum(), is_so[order].cumsum()
        return float(np.interp(1 - CONFIDENCE, size, gain))  # a coin decides on the last

    low, high = 8, 16
    while power(high) < POWER:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle) >= POWER else (middle, high)
    return high


def train(run: Simulation | Needed) -> dict[str, float]:
    """Return the outcome of one."""
    if isinstance(run, Simulation):
        return simulated(run.seed)
    least = best(run)
    return {"ours": ours(run, least), "best": least}


def main() -> None:
    """Run everything and write the tables."""
    runs: list[Any] = [Simulation(seed) for seed in range(CASES)]
    runs += [Needed(*case) for case in NEEDS]
    found = records("warranties", train)(runs)
    told = [r.outcome for r in found if isinstance(r.settings, Simulation)]
    lines = ["| cases | claim both | claims broken | bounds passed | allowed | seconds a fit |",
             "| --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    share = {key: fmean(x[key] for x in told) for key in told[0]}
    lines.append(
        f"| {len(told):,} | {share['claimed']:.1%} | {share['broken']:.1%} | "
        f"{share['passed']:.1%} | {1 - CONFIDENCE:.0%} | {share['processor']:.1f} |"
    )
    lines += [
        "", "| rate | difference | limit | rows a group, ours | the least that any bound needs | "
        "ratio |", "| --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for r in found:
        if isinstance(r.settings, Needed):
            a, b = r.outcome["ours"], r.outcome["best"]
            case = " | ".join(f"{x:g}" for x in astuple(r.settings))
            lines.append(f"| {case} | {a:,} | {b:,} | {a / b:.2f} |")
    write("warranties", "Warranties on new rows", str(__doc__), lines)


if __name__ == "__main__":
    main()
