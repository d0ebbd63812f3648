"""Does it pay to smooth the labels of LiftedMLP by default?

The nine classifications of `benchmarks.small_data`, three folds from each of two seeds, no other
option: balanced accuracy, and the log loss of the probabilities, by the share of a label that is
spread over all classes. Run it with `OMP_NUM_THREADS=1 python -m benchmarks.smoothing`, two
minutes. Written to benchmarks/results/smoothing.md.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch
from rich.progress import track
from sklearn.metrics import balanced_accuracy_score, log_loss
from sklearn.model_selection import StratifiedKFold

from benchmarks.small_data import HIDDEN, Table, tables
from benchmarks.solvers import machine
from liftednet.losses import CrossEntropy
from liftednet.models import LiftedMLP

RESULT = Path(__file__).parent / "results" / "smoothing.md"
SHARES, SEEDS = (0.0, 0.02, 0.05, 0.1, 0.2), (0, 1)
LEAST = 1e-7  # probability, of which the log loss takes the logarithm


def score(table: Table, share: float) -> tuple[float, float]:
    """Return balanced accuracy and log loss, each the mean over folds and seeds."""
    classes, found = len(np.unique(table.y)), []
    for seed in SEEDS:
        folds = StratifiedKFold(3, shuffle=True, random_state=seed)
        for train, test in folds.split(table.x, table.y):
            sizes, loss = (table.x.shape[1], HIDDEN, classes), CrossEntropy(smoothing=share)
            model = LiftedMLP(sizes, loss=loss, seed=seed).fit(table.x[train], table.y[train])
            likely = model.forward(torch.as_tensor(table.x[test], dtype=torch.float32)).numpy()
            clipped = np.clip(likely.astype(float), LEAST, 1)
            clipped /= clipped.sum(1, keepdims=True)
            found.append(
                (
                    balanced_accuracy_score(table.y[test], likely.argmax(1)),
                    log_loss(table.y[test], clipped, labels=np.arange(classes)),
                )
            )
    accuracy, loss = np.mean(found, axis=0)
    return float(accuracy), float(loss)


def main() -> None:
    """Measure, and write the table."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    measured = "; ".join(f"{name} {value}" for name, value in machine().items())
    sets = [table for table in tables() if table.classes]
    rows = {t.name: [score(t, share) for share in SHARES] for t in track(sets)}
    mean = np.mean(list(rows.values()), axis=0)
    rows["mean"] = [(float(accuracy), float(loss)) for accuracy, loss in mean]
    about = " ".join((__doc__ or "").split("\n\n")[1].split(" Run it with")[0].split())
    text = [
        f"# Labels smoothed, on small data\n\n{measured}\n\n{about}\n",
        "| data | " + " | ".join(f"{share:g}" for share in SHARES) + " |",
        "| --- |" + " --- |" * len(SHARES),
    ]
    for name, cells in rows.items():
        shown = " | ".join(f"{accuracy:.3f}, {loss:.3f}" for accuracy, loss in cells)
        text.append(f"| {name} | {shown} |")
    RESULT.write_text("\n".join([*text, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
