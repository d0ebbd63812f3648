"""`python -m benchmarks.papers.temporal`: the experiments of On Recurrent Neural Networks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.tables import write_report
from benchmarks.papers.temporal.lifted_start import start_table
from benchmarks.papers.temporal.music_tables import MusicExtent, jsb_table, muse_report
from benchmarks.papers.temporal.opponents import opponents_table
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
    music: MusicExtent


_MUSE = (
    (50, 0.1, 60), (50, 0.03, 60), (50, 0.03, 180),
    (100, 0.1, 60), (100, 0.03, 60), (100, 0.03, 180),
    (200, 0.1, 60), (200, 0.2, 60),
    (300, 0.1, 60), (300, 0.2, 60), (300, 0.3, 60),
)  # fmt: skip
_FULL = _Size(100, 20, 2000, MusicExtent(_MUSE, 15))
_QUICK = _Size(100, 20, 100, MusicExtent(((50, 0.1, 2), (100, 0.1, 2)), 2, songs=60))


def run(folder: Path, quick: bool = False, seeds: int = 3) -> Path:
    """Run what is missing, and write the tables, the pictures and README.md.

    Args:
        folder: of the results; runs that are stored there are not repeated.
        quick: a few minutes instead of about two hours: fewer steps, songs and sizes.
        seeds: of the artificial tasks; of the further opponents there is one.

    Returns:
        The path of README.md.

    Raises:
        DataError: MuseData cannot be found.
    """
    size = _QUICK if quick else _FULL
    store = folder / "runs.jsonl"
    figure = norms_figure(folder / "temporal_norms.png", size.figure_length)
    tasks, rates = success_table(store, size.length, size.steps, seeds)
    lifted = start_table(store, rates, size.length, size.steps, seeds)
    opponents = opponents_table(store, rates, size.length, size.steps, seeds=1)
    music, curves = muse_report(folder, store, size.music)
    jsb = jsb_table(store, size.music)
    title = "On Recurrent Neural Networks" + (" (quick form)" if quick else "")
    tables = [
        ("tasks", tasks),
        ("lifted_start", lifted),
        ("opponents", opponents),
        ("musedata", music),
        ("jsb", jsb),
    ]
    return write_report(folder, title, tables, [figure, curves], REMARKS)
