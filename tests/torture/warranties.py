"""Warranties on new rows, drawn a thousand times: broken at most as often as they say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.progress import track
from scipy import stats

from liftednet import LiftedClassifier
from liftednet.constraints import GroupRates, Rate

from .report import Finding

CASES, CONFIDENCE, SURE = 1_000, 0.9, 1e-3
ROWS, NEW = 700, 200_000
WITHIN, MOST = 0.22, 0.62  # near what such networks reach, so that half of the claims are close


def findings(share: float) -> Iterator[Finding]:
    """Yield how many warranties were broken: more than the binomial law allows is wrong."""
    cases = max(1, round(share * CASES))
    told = [broken(seed) for seed in track(range(cases), "warranties", transient=True)]
    wrong = sum(one for one, _ in told)
    allowed = int(stats.binom.isf(SURE, cases, 1 - CONFIDENCE))
    shown = sum(some for _, some in told)
    yield Finding(
        "warranties",
        cases,
        0 if wrong <= allowed else wrong,
        f"what {shown:,} of them claim, and their bounds, hold on {NEW:,} new rows: {wrong:,} are "
        f"broken, at confidence {CONFIDENCE:g} at most {allowed:,} may be",
        "" if wrong <= allowed else f"broken({[one for one, _ in told].index(True)})",
    )


def broken(seed: int) -> tuple[bool, bool]:
    """Return whether a warranty is broken, a claim or a bound, and whether it claims all."""
    generator = np.random.default_rng(seed)
    x, y, group = _drawn(generator, ROWS)
    model = LiftedClassifier((5,), max_iter=2, random_state=seed)
    asked = [GroupRates(group, WITHIN), Rate(at_most=MOST)]
    model.fit(x, y, constraints=asked, confidence=CONFIDENCE, held_out=0.5)
    report = model.model_.constraint_report()
    assert report.held_out is not None
    x, y, group = _drawn(generator, NEW)
    found = model.predict(x)
    rates = abs(found[group == 0].mean() - found[group == 1].mean()), found.mean()
    pairs = list(zip(rates, report.held_out.verdicts, strict=True))
    past = any(rate > one.bound or (one.holds and rate > one.limit) for rate, one in pairs)
    return past, all(one.holds for _, one in pairs)


def _drawn(generator: np.random.Generator, rows: int) -> tuple[Any, Any, Any]:
    group = generator.integers(0, 2, rows)
    x = generator.standard_normal((rows, 3)) + 0.8 * group[:, None]
    score = x[:, 0] + x[:, 1] * x[:, 2] + generator.standard_normal(rows)
    return np.column_stack([group, x]), (score > 1.0).astype(int), group
