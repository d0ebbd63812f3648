"""Run the experiments of the Frank-Wolfe paper: `python -m benchmarks.papers.frank_wolfe`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.report import write_report
from benchmarks.papers import main
from benchmarks.papers.frank_wolfe.activity import Extent, activity_tables
from benchmarks.papers.frank_wolfe.adding import adding_table

REMARKS = (
    "RNN training along locally optimal trajectories via Frank-Wolfe algorithm (2020), table III "
    "and figure 3. Plain networks have ReLU units and start as the identity; the "
    "paper's activation is not legible in the copy at hand.",
    "What was tried on held-out persons of the training part, which chose what the rows of HAR-2 "
    "have, and what was seen of the test windows before: [NOTES.md](NOTES.md).",
    "Seconds are wall time on a machine that did other work at the same time: compare them only "
    "roughly. On HAR-2 and Noisy-HAR-2 they are processor time of runs that were made again, to "
    "the same bits, for the best over training (of SGD + clipping, Adam + clipping and Frank-Wolfe "
    "alone on HAR-2 wall time with little beside). Not to the same bits from a lifted start, whose "
    "code is in the history: the notes say what it had.",
)


@dataclass(frozen=True)
class _Size:
    epochs: int
    windows: int | None
    lengths: tuple[int, ...]
    adding_gradients: int
    adding_seeds: int


_FULL = _Size(8, None, (50, 100, 200), 1000, 3)
_QUICK = _Size(1, 600, (20, 30, 40), 100, 1)


def run(folder: Path, quick: bool = False, seeds: int = 5) -> Path:
    """Run what is missing, and write the tables and README.md.

    Args:
        folder: of the results; runs that are stored there are not repeated.
        quick: a few minutes instead of about an hour: less data, fewer gradients.
        seeds: of the rows of the HAR-2 tables.

    Returns:
        The path of README.md.

    Raises:
        DataError: the HAR data cannot be found.
    """
    size = _QUICK if quick else _FULL
    store = folder / "runs.jsonl"
    extent = Extent(seeds, size.epochs, size.windows)
    adding = adding_table(store, size.lengths, size.adding_gradients, size.adding_seeds)
    tables = [*activity_tables(store, extent), ("adding", adding)]
    title = "Frank-Wolfe" + (" (quick form)" if quick else "")
    return write_report(folder, title, tables, remarks=REMARKS)


if __name__ == "__main__":
    main("frank-wolfe", run)
