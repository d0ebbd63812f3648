"""Run the experiments of On Recurrent Neural Networks: `python -m benchmarks.papers.temporal`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.report import write_report
from benchmarks.papers import main
from benchmarks.papers.temporal.damping import damping_table
from benchmarks.papers.temporal.music import MusicExtent, jsb_table, muse_table
from benchmarks.papers.temporal.tasks import norms_figure, success_table

REMARKS = (
    "What was tried, what it gave and how the protocol came about: [NOTES.md](NOTES.md).",
    "Seconds are wall time, taken while other runs kept the machine busy.",
)


@dataclass(frozen=True)
class _Size:
    figure_length: int
    length: int
    steps: int
    damped: int
    music: MusicExtent


_MUSE = (
    (50, 0.1, 60), (50, 0.03, 60), (50, 0.03, 180),
    (100, 0.1, 60), (100, 0.03, 60), (100, 0.03, 180),
    (200, 0.1, 60), (200, 0.2, 60),
    (300, 0.1, 60), (300, 0.2, 60), (300, 0.3, 60),
)  # fmt: skip
_FULL = _Size(100, 20, 2000, 50, MusicExtent(_MUSE, 15))
_QUICK = _Size(100, 20, 100, 2, MusicExtent(((50, 0.1, 2), (100, 0.1, 2)), 2, songs=60))


def run(folder: Path, quick: bool = False, seeds: int = 3) -> Path:
    """Run what is missing, and write the tables, the pictures and README.md.

    Args:
        folder: of the results; runs that are stored there are not repeated.
        quick: a few minutes instead of about two hours: fewer steps, songs and sizes.
        seeds: of the artificial tasks.

    Returns:
        The path of README.md.

    Raises:
        DataError: MuseData cannot be found.
    """
    size = _QUICK if quick else _FULL
    store = folder / "runs.jsonl"
    figure = norms_figure(folder / "temporal_norms.png", size.figure_length)
    title = "On Recurrent Neural Networks" + (" (quick form)" if quick else "")
    tables = [
        ("tasks", success_table(store, size.length, size.steps, seeds)),
        ("damping", damping_table(store, size.length, size.damped, seeds)),
        ("musedata", muse_table(store, size.music)),
        ("jsb", jsb_table(store, size.music)),
    ]
    return write_report(folder, title, tables, [figure], REMARKS)


if __name__ == "__main__":
    main("temporal", run)
