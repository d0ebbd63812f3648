"""Monotone regressions: ours, Adam with a clip, monotonic networks, calibrated lattices, trees.

Run it with `OMP_NUM_THREADS=1 python -m benchmarks.monotone`, minutes of one core;
monotonicnetworks and pytorch-lattice must be on the path. It goes on where it was interrupted:
runs that stand in benchmarks/results/monotone.jsonl are not repeated. --stored writes the table
alone.

70 % of diabetes, friedman1 and friedman2 to train on, two layers of 50, five splits; R2 on the
rest. Adam clips the same signs from the same start, its rate chosen on a fifth of the training
samples of split 0. monotonicnetworks 1.5.1 (from PyPI, with its sorting units and a start of its
own) is trained by the same Adam, at two bounds of its slopes as well; pytorch-lattice 0.2.0
(calibrated lattices of 2^inputs corners) likewise, with 5 or 20 keypoints of its calibrators.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from statistics import fmean
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_diabetes, make_friedman1, make_friedman2
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.metrics import r2_score
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from benchmarks.harness.report import write
from benchmarks.harness.runs import Outcome, Records, records
from liftednet import certify
from liftednet.losses import SquaredError
from liftednet.models import LiftedMLP, Minibatch

OURS, PACKAGE, LATTICE = "ours", "monotonicnetworks", "pytorch-lattice"
TREES = "HistGradientBoosting, monotone"
RATES = {"ours": (0.03, 0.1, 0.3, 1.0, 3.0), "Adam": (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)}
OF_LATTICES = (1e-4, 3e-4, 0.3)  # rates that lattices have beside them
SEEDS, TUNED_AT, FAILED = (1, 2, 3, 4, 5), 0, 0.8
DIRECTIONS = {
    "diabetes": [0, 0, 1, 1, 0, 0, 0, 0, 1, 0],
    "friedman1": [0, 0, 0, 1, 1, 0, 0, 0, 0, 0],
    "friedman2": [1, 1, 1, 0],
}
OWN = {PACKAGE: ("bound 1", "bound 3"), LATTICE: ("5 keypoints", "20 keypoints")}
HIDDEN, BATCH, ADAM_STEPS = (50, 50), 100, 1500

Done = dict["Run", Outcome]


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        task: a regression.
        method: who trains.
        seed: of the split.
        start: of a package, its own setting.
        rate: of the method; None for the library's own.
    """

    task: str
    method: str
    seed: int
    start: str = "passing"
    rate: float | None = None


def forward(layers: Sequence[tuple[Tensor, Tensor]]) -> Callable[[Tensor], Tensor]:
    def passed(x: Tensor) -> Tensor:
        for number, (w, b) in enumerate(layers):
            x = x @ w + b
            x = x.relu() if number < len(layers) - 1 else x
        return x

    return passed


def samples(run: Run) -> list[np.ndarray]:
    """Return X, X_test, y, y_test."""
    if run.task == "diabetes":
        x, y = load_diabetes(return_X_y=True)
    elif run.task == "friedman1":
        x, y = make_friedman1(1000, noise=1.0, random_state=0)
    else:
        x, y = make_friedman2(1000, noise=50.0, random_state=0)
    pair = x.astype(np.float32), y.astype(np.float32)
    found: list[np.ndarray] = train_test_split(*pair, test_size=0.3, random_state=run.seed)
    return found


def regression(run: Run, monotone: bool) -> LiftedMLP:
    x, _, _, _ = samples(run)
    directions = DIRECTIONS[run.task] if monotone else None
    return LiftedMLP(
        (x.shape[1], *HIDDEN, 1), loss=SquaredError(), seed=run.seed, monotonic_cst=directions,
        method="auto" if run.rate is None else Minibatch(rate=run.rate),
    )  # fmt: skip


def regressed(run: Run) -> dict[str, float]:
    x, x_test, y, y_test = samples(run)
    began = time.process_time()
    if run.method == TREES:
        boosted = HistGradientBoostingRegressor(monotonic_cst=DIRECTIONS[run.task]).fit(x, y)
        return {"test": boosted.score(x_test, y_test), "seconds": time.process_time() - began}
    if run.seed == TUNED_AT:
        x, x_test, y, y_test = train_test_split(x, y, test_size=0.2, random_state=0)
    by = {PACKAGE: by_monotonic_networks, LATTICE: by_calibrated_lattice,
          "Adam, clip": clipped_by_adam, "Adam, free": clipped_by_adam}  # fmt: skip
    if run.method in by:
        predicted, violation = by[run.method](run, x, y, x_test)
        seconds = time.process_time() - began
        return {"test": r2_score(y_test, predicted), "violation": violation, "seconds": seconds}
    model = regression(run, run.method == OURS).fit(x, y[:, None])
    seconds = time.process_time() - began
    found = {"test": r2_score(y_test, model.predict(x_test)[:, 0]), "seconds": seconds}
    if run.method == OURS:
        facts, wanted = certify(model), torch.tensor(DIRECTIONS[run.task])
        right = {1: facts.increasing, -1: facts.decreasing}
        found["certified"] = float(all(i in right[int(s)] for i, s in enumerate(wanted) if s))
        found["violation"] = max(
            model.structure.penalties[p].violation(w.matrix)
            for p, w in zip(model.structure.parameters, model.weights, strict=True)
        )
    return found


def clipped_by_adam(
    run: Run, x: np.ndarray, y: np.ndarray, x_test: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return predictions, and by how much signs are missed."""
    model = regression(run, monotone=run.method != "Adam, free")
    raw = [(w.matrix.clone(), w.bias.clone()) for w in model._first_weights()]
    layers = [(w.requires_grad_(), b.requires_grad_()) for w, b in raw]
    penalties = [model.structure.penalties[p] for p in model.network.parameters]

    def clip() -> None:
        for (w, _), penalty in zip(layers, penalties, strict=True):
            w.copy_(penalty.project(w))

    after = (lambda: None) if run.method == "Adam, free" else clip
    found = by_steps_of_adam(
        run, [p for pair in layers for p in pair], forward(layers), x, y, x_test, after
    )
    missed = max(p.violation(w) for (w, _), p in zip(layers, penalties, strict=True))
    return found, missed


def by_monotonic_networks(
    run: Run, x: np.ndarray, y: np.ndarray, x_test: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return predictions of a Lipschitz Monotonic Network (Kitouni, Nolte, Williams, 2023)."""
    import monotonicnetworks as package

    torch.manual_seed(run.seed)
    bound = float(run.start.split()[1])  # of the slopes in each input
    sizes = (x.shape[1], *HIDDEN, 1)
    parts: list[nn.Module] = []
    for number, (inputs, units) in enumerate(pairwise(sizes)):
        kind = "inf" if number else "one-inf"
        share = bound ** (1 / (len(sizes) - 1))
        parts.append(package.LipschitzLinear(inputs, units, lipschitz_const=share, kind=kind))
        parts.append(package.GroupSort(units // 2) if units > 1 else nn.Identity())
    network = package.MonotonicWrapper(nn.Sequential(*parts), bound, DIRECTIONS[run.task])
    weights = list(network.parameters())

    def scores(rows: Tensor) -> Tensor:
        found: Tensor = network(rows)
        return found

    return by_steps_of_adam(run, weights, scores, x, y, x_test, lambda: None), 0.0


def by_calibrated_lattice(
    run: Run, x: np.ndarray, y: np.ndarray, x_test: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return predictions, and by how much heights and corners of the lattice miss their order."""
    keypoints = int(run.start.split()[0])
    lattice: Any = calibrated_lattice(
        (x - x.mean(0)) / x.std(0), DIRECTIONS[run.task], keypoints, run.seed
    )

    def scores(rows: Tensor) -> Tensor:
        found: Tensor = lattice(rows.double()).float()
        return found

    found = by_steps_of_adam(
        run, list(lattice.parameters()), scores, x, y, x_test, lattice.apply_constraints
    )
    return found, of_lattice(lattice)


def by_steps_of_adam(
    run: Run,
    parameters: list[Tensor],
    scores: Callable[[Tensor], Tensor],
    x: np.ndarray,
    y: np.ndarray,
    x_test: np.ndarray,
    after: Callable[[], None],
) -> np.ndarray:
    """Return predictions after steps of Adam, each followed by another one's."""
    center, scale, middle, size = x.mean(0), x.std(0), y.mean(), y.std()
    given, wanted = torch.from_numpy((x - center) / scale), torch.from_numpy((y - middle) / size)
    generator = torch.Generator().manual_seed(run.seed)
    optimizer = torch.optim.Adam(parameters, lr=run.rate)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, ADAM_STEPS)
    for _ in range(ADAM_STEPS):
        rows = torch.randint(len(given), (BATCH,), generator=generator)
        loss = nn.functional.mse_loss(scores(given[rows])[:, 0], wanted[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        falling.step()
        with torch.no_grad():
            after()
    with torch.no_grad():
        found: np.ndarray = scores(torch.from_numpy((x_test - center) / scale))[:, 0].numpy()
    return found * size + middle


def calibrated_lattice(
    x: np.ndarray, directions: Sequence[int], keypoints: int, seed: int
) -> nn.Module:
    """Return a calibrated lattice (Gupta et al., 2016), which starts as a linear map."""
    from pytorch_lattice.models import CalibratedLattice
    from pytorch_lattice.models.features import NumericalFeature

    torch.manual_seed(seed)
    kinds = {1: "increasing", -1: "decreasing", 0: None}
    features = [
        NumericalFeature(f"x{i}", column, keypoints, monotonicity=kinds[direction])
        for i, (column, direction) in enumerate(zip(x.T, directions, strict=True))
    ]
    found: nn.Module = CalibratedLattice(features)
    return found


@torch.no_grad()
def of_lattice(lattice: Any) -> float:
    """Return by how much its own differences, which are to be 0 or more, fall short of it."""
    falls = [0.0]
    for feature, calibrator in zip(lattice.features, lattice.calibrators.values(), strict=True):
        if feature.monotonicity is not None:
            sign = -1.0 if feature.monotonicity == "decreasing" else 1.0
            falls.append(-float((sign * calibrator.kernel[1:]).min()))
    corners = lattice.lattice.kernel.view(*lattice.lattice.lattice_sizes)
    for dimension, direction in enumerate(lattice.monotonicities):
        if direction is not None:
            falls.append(-float(corners.diff(dim=dimension).min()))
    return max(falls)


def all_runs(made: Records) -> Done:
    """Return what came of all runs: a grid at split 0, then the best of it at five others."""
    done: Done = {}

    def run(settings: Sequence[Run]) -> None:
        done.update({record.settings: record.outcome for record in made(settings)})

    for task in DIRECTIONS:
        for method in (OURS, "ours, free", TREES):
            run([Run(task, method, seed) for seed in SEEDS])
        run([Run(task, OURS, TUNED_AT, rate=rate) for rate in RATES["ours"]])
        for method in ("Adam, clip", "Adam, free", PACKAGE, LATTICE):
            rates = RATES["Adam"] + (OF_LATTICES if method == LATTICE else ())
            starts = OWN.get(method, ("passing",))
            grid = [Run(task, method, TUNED_AT, *pair) for pair in product(starts, rates)]
            run(grid)
            best = max(grid, key=lambda tried: done[tried]["test"])
            run([replace(best, seed=seed) for seed in SEEDS])
    return done


TEXT = (
    "Monotone regressions, two layers of 50, R2 on 30 % of the samples, five splits; ours has no "
    "option, Adam five tries, monotonicnetworks ten, pytorch-lattice 16 (its violation is that of "
    f"its own heights and corners). Failed are tries with an R2 below {FAILED} of the best, on "
    "held-out samples of split 0; ours are minibatches at five rates there, and Gauss-Newton in "
    "the other columns. `python -m benchmarks.monotone`."
)


def table(done: Done) -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| data | method | mean | worst | failed | largest violation | certified | seconds |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for task in DIRECTIONS:
        methods = dict.fromkeys(r.method for r in done if r.task == task)
        held = {r: v["test"] for r, v in done.items() if (r.task, r.seed) == (task, TUNED_AT)}
        least = FAILED * max(held.values())
        for method in methods:
            mine = {r: v for r, v in done.items() if (r.task, r.method) == (task, method)}
            seeds = [v for r, v in mine.items() if r.seed != TUNED_AT]
            tests, tries = [v["test"] for v in seeds], [held[r] for r in held if r.method == method]
            failed = f"{fmean(found < least for found in tries):.0%}" if tries else ""
            certified = "yes" if all(v.get("certified") for v in seeds) else ""
            violation = f"{max(v['violation'] for v in seeds):g}" if "violation" in seeds[0] else ""
            yield (
                f"| {task} | {method} | {fmean(tests):.3f} | {min(tests):.3f} | {failed} "
                f"| {violation} | {certified} | {fmean(v['seconds'] for v in seeds):.2f} |"
            )


def main() -> None:
    torch.set_num_threads(1)
    done = all_runs(records("monotone", regressed))
    write("monotone", "Monotone regressions", TEXT, table(done))


if __name__ == "__main__":
    main()
