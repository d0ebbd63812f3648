"""Networks on data with holes: inputs as states against imputation before Adam and before ours.

Of every feature three tenths of the entries are missing, at random, or large ones rather.
`missing=True` has no option set, and so has our network on imputed data; where rho is chosen, it is
out of eight on a held-out fifth. AdamW on the same network, for as many steps with a rate that
falls to zero, has rate and decay chosen likewise, out of eight pairs.
Run it with `OMP_NUM_THREADS=1 python -m benchmarks.missing`; finished runs are kept, and --stored
writes the table of those that are there, benchmarks/results/missing.md.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import train_test_split
from torch import nn

from benchmarks.harness.report import write
from benchmarks.harness.runs import Outcome, records
from liftednet import LiftedClassifier, LiftedRegressor

SEEDS = range(5)
HOLES = (("at random", 0.3), ("large ones", 0.3))
RATES, DECAYS = (1e-4, 3e-4, 1e-3, 3e-3), (1e-2, 1.0)
RHOS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
STEPS, BATCH, HIDDEN, MOST = 500, 100, 100, 1_000
TEXT = (
    f"{(__doc__ or '').split('Run it with')[0].strip()}\n\n"
    "R2 of regressions, accuracy of classes, 30 % of the samples held out: mean over "
    f"{len(SEEDS)} seeds of holes, split and start (and the worst). Bold is the best mean of a row."
)
Array = np.ndarray[Any, Any]
Split = tuple[Array, Array, Array, Array]  # training and test inputs, training and test answers


def tables() -> dict[str, tuple[Array, Array, bool]]:
    friedman = datasets.make_friedman1(MOST, noise=1.0, random_state=0)
    return {
        "diabetes": (*datasets.load_diabetes(return_X_y=True), False),
        "friedman 1": (*friedman, False),
        "breast cancer": (*datasets.load_breast_cancer(return_X_y=True), True),
        "digits": (*datasets.load_digits(return_X_y=True), True),
    }


def with_holes(x: Array, kind: str, share: float, generator: np.random.Generator) -> Array:
    """Return x with NaN; where large ones are missing rather, by a logistic chance."""
    chance = np.full(x.shape, share)
    if kind == "large ones":
        deviation = x.std(0)
        away = (x - x.mean(0)) / np.where(deviation > 0, deviation, 1)
        chance = 1 / (1 + np.exp(-2 * away))
        chance = np.clip(chance * share / chance.mean(0), 0, 0.95)
    return np.where(generator.random(x.shape) < chance, np.nan, x)


def split(name: str, kind: str, share: float, seed: int) -> Split:
    x, y, classes = tables()[name]
    generator = np.random.default_rng(seed)
    some = generator.permutation(len(x))[:MOST]
    x, y = x[some], y[some]
    gaps = with_holes(x, kind, share, generator)
    parts = train_test_split(
        gaps, y, test_size=0.3, random_state=seed, stratify=y if classes else None
    )
    seen = ~np.isnan(parts[0]).all(0)
    return parts[0][:, seen], parts[1][:, seen], parts[2], parts[3]


def imputers(features: int) -> dict[str, Any]:
    wide = features > 50  # where all features would take minutes
    return {
        "mean": SimpleImputer(),
        "mean, indicators": SimpleImputer(add_indicator=True),
        "k nearest": KNNImputer(n_neighbors=10),
        "iterative": IterativeImputer(
            max_iter=3 if wide else 10, n_nearest_features=10 if wide else None, random_state=0
        ),
    }


def standardized(x: Array, unseen: Array) -> tuple[Array, Array]:
    center, deviation = x.mean(0), x.std(0)
    deviation = np.where(deviation > 0, deviation, 1)
    return (x - center) / deviation, (unseen - center) / deviation


def adam(parts: Split, classes: bool, seed: int, rate: float, decay: float) -> float:
    """Return the score of AdamW on standardized data."""
    x, unseen, y, wanted = parts
    x, unseen = standardized(x, unseen)
    outputs = int(max(y.max(), wanted.max())) + 1 if classes else 1
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(x.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, outputs))
    rows = torch.tensor(x, dtype=torch.float32)
    if classes:
        target, loss = torch.tensor(y), nn.functional.cross_entropy
    else:
        center, deviation = y.mean(), y.std()
        target = torch.tensor((y - center) / deviation, dtype=torch.float32)[:, None]
        loss = nn.functional.mse_loss
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=decay)
    batches = [
        b for _ in range(STEPS) for b in torch.randperm(len(x), generator=generator).split(BATCH)
    ]
    for number, batch in enumerate(batches[:STEPS]):
        optimizer.param_groups[0]["lr"] = rate * (1 - number / STEPS)
        optimizer.zero_grad()
        loss(network(rows[batch]), target[batch]).backward()
        optimizer.step()
    with torch.no_grad():
        found = network(torch.tensor(unseen, dtype=torch.float32)).numpy()
    if classes:
        return float(accuracy_score(wanted, found.argmax(1)))
    return float(r2_score(wanted, center + deviation * found[:, 0]))


Score = Callable[..., float]


def tuned(
    score: Score, tries: Sequence[dict[str, float]], parts: Split, classes: bool, seed: int
) -> tuple[float, dict[str, float]]:
    """Return the score with what is best on a fifth of the training samples, and what that is."""
    x, _, y, _ = parts
    held = train_test_split(x, y, test_size=0.2, random_state=seed, stratify=y if classes else None)
    scores = [score(held, classes, seed, **one) for one in tries]
    best = tries[int(np.argmax(scores))]
    return score(parts, classes, seed, **best), best


def lifted(parts: Split, classes: bool, seed: int, rho: float | None = None) -> float:
    """Return the score of our network, to which NaN is missing."""
    x, unseen, y, wanted = parts
    kind = LiftedClassifier if classes else LiftedRegressor
    model = kind((HIDDEN,), missing=bool(np.isnan(x).any()), rho=rho, random_state=seed)
    return float(model.fit(x, y).score(unseen, wanted))


@dataclass(frozen=True)
class Run:
    """All methods on one set with holes."""

    set: str
    holes: str
    share: float
    seed: int


def train(run: Run) -> Outcome:
    """Return every method's score, its processor seconds, and what it chose."""
    parts, classes = split(run.set, run.holes, run.share, run.seed), tables()[run.set][2]
    pairs = [{"rate": rate, "decay": decay} for rate, decay in product(RATES, DECAYS)]
    found, begun = {}, time.process_time()

    def keep(method: str, score: float, chosen: Mapping[str, float] = {}) -> None:
        nonlocal begun
        spent, begun = time.process_time() - begun, time.process_time()
        found[method] = {"score": score, "seconds": spent, **chosen}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        keep("missing=True", lifted(parts, classes, run.seed))
        rhos = [{"rho": rho} for rho in RHOS]
        keep("missing=True, rho chosen", *tuned(lifted, rhos, parts, classes, run.seed))
        for imputed, imputer in imputers(parts[0].shape[1]).items():
            filled = (imputer.fit_transform(parts[0]), imputer.transform(parts[1]), *parts[2:])
            keep(f"{imputed}; ours", lifted(filled, classes, run.seed))
            keep(f"{imputed}; AdamW", *tuned(adam, pairs, filled, classes, run.seed))
    return found


def row(name: str, kind: str, share: float, outcomes: Sequence[Outcome]) -> str:
    """Return the line of a set and kind of holes, with a column for every method."""
    found = {method: [one[method]["score"] for one in outcomes] for method in outcomes[0]}
    best = max(map(fmean, found.values()))
    shown = []
    for scores in found.values():
        text = f"{fmean(scores):.3f} ({min(scores):.3f})"
        shown.append(f"**{text}**" if fmean(scores) == best else text)
    return f"| {name}, {share:.0%} {kind} | {' | '.join(shown)} |"


def main() -> None:
    records_of, lines = records("missing", train), []
    for name, (kind, share) in product(tables(), HOLES):
        done = [one.outcome for one in records_of([Run(name, kind, share, s) for s in SEEDS])]
        if done:
            heads = f"| set, missing | {' | '.join(done[0])} |"
            lines += [row(name, kind, share, done)]
    if lines:
        rule = "|" + " --- |" * (heads.count("|") - 1)
        write("missing", "Data with holes", TEXT, [heads, rule, *lines])


if __name__ == "__main__":
    main()
