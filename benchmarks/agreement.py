"""What brings states and forward pass together on all samples, and at what cost.

64-50-30-10 on scikit-learn's digits: penalties (tight and joint divergences) at several lam, and
multipliers, each with as many sweeps. Judged are the gap between states and forward pass, the
objective of the network itself (loss at the forward pass plus penalties), held-out accuracy, and
CPU seconds.

    python -m benchmarks.agreement [folder]
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness.report import Table, mean_and_spread, write_report
from liftednet.data import Classification, digits
from liftednet.models import FullBatch, LiftedMLP
from liftednet.problems import Weights

SIZES, RHO, SEEDS, SWEEPS = (64, 50, 30, 10), 0.1, (0, 1, 2), 30


@dataclass(frozen=True)
class Row:
    """A way of training on all samples."""

    name: str
    options: dict[str, Any]
    method: FullBatch


WAYS = (
    *(Row(f"tight, lam {lam:g}", {"lam": lam}, FullBatch(SWEEPS)) for lam in (0.1, 1.0, 10.0)),
    Row(f"tight, lam 1, {2 * SWEEPS} sweeps", {"lam": 1.0}, FullBatch(2 * SWEEPS)),
    *(
        Row(f"joint, lam {lam:g}", {"lam": lam, "divergence": "joint"}, FullBatch(SWEEPS))
        for lam in (0.1, 1.0, 10.0)
    ),
    *(
        Row(
            f"multipliers, from lam {lam:g}",
            {"lam": lam, "divergence": "multipliers"},
            FullBatch(SWEEPS),
        )
        for lam in (0.1, 1.0, 10.0)
    ),
    *(
        Row(
            f"multipliers, from lam 1, {times * SWEEPS} sweeps",
            {"lam": 1.0, "divergence": "multipliers"},
            FullBatch(times * SWEEPS),
        )
        for times in (2, 4)
    ),
)


def network_objective(weights: tuple[Weights, ...], x: Tensor, y: Tensor) -> float:
    """Return the loss at the forward pass of a ReLU network, plus the penalties."""
    for layer in weights[:-1]:
        x = layer.apply(x).clamp(min=0)
    loss = torch.nn.functional.cross_entropy(weights[-1].apply(x), y, reduction="sum")
    return float(loss + RHO * sum(layer.matrix.square().sum() for layer in weights))


def judged(row: Row, data: Classification, seed: int) -> tuple[float, float, float, float]:
    """Return gap, objective of the network, accuracy and CPU seconds."""
    x, y = data.x_train.double(), data.y_train
    started = time.process_time()
    model = LiftedMLP(SIZES, rho=RHO, seed=seed, method=row.method, **row.options).fit(x, y)
    seconds = time.process_time() - started
    right = model.predict(data.x_test.double()) == data.y_test
    objective = network_objective(model.weights, x, y)
    return max(model.gap()), objective, float(right.double().mean()), seconds


def main(folder: Path) -> None:
    """Train in every way, and write the table."""
    torch.set_num_threads(1)
    data, rows = digits(), []
    for row in WAYS:
        found = list(zip(*(judged(row, data, seed) for seed in SEEDS), strict=True))
        gap = f"{statistics.fmean(found[0]):.1e}"
        cells = [mean_and_spread(column, d) for column, d in zip(found[1:], (1, 3, 1), strict=True)]
        rows.append([row.name, gap, *cells])
        print(rows[-1], flush=True)
    columns = ("coupling", "gap", "objective of the network", "test accuracy", "CPU seconds")
    notes = (
        f"ReLU, rho = {RHO:g}, {len(data.x_train)} digits, float64, {SWEEPS} sweeps unless it says "
        "so; gap: |states - forward pass| / |forward pass| of the worse layer, mean of seeds.",
    )
    table = Table("States and forward pass", columns, rows, notes)
    write_report(folder, "What brings states and forward pass together", [("agreement", table)])


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "results/training/agreement"))
