"""`liftednet reproduce frank-wolfe`: the experiments of the Frank-Wolfe paper."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from liftednet.reproduce.activity import Extent
from liftednet.reproduce.activity_tables import activity_tables
from liftednet.reproduce.adding_curve import adding_report
from liftednet.reproduce.pixel_digits import pixel_table
from liftednet.reproduce.tables import write_report

REMARKS = (
    "RNN training along locally optimal trajectories via Frank-Wolfe algorithm (2020), tables II "
    "and III and figures 3 to 5. Plain networks have ReLU units and start as the identity; the "
    "paper's activation is not legible in the copy at hand.",
    "Test figures of two earlier protocols had been seen when the present one was fixed. The first "
    "had 6 passes, no noise, rates up to 0.01 and a random validation part; its tables, of two "
    "seeds, are in the history (commit 2942cfc): its IndRNN rows were better (94.3 and 94.1 on "
    "HAR-2), its LSTM with Adam was worse (91.0), and the plain rows were as now. The second chose "
    "rates after 3 passes, used them for 15, and was given up after eight rows (the LSTM with Adam "
    "fell from 96.7 on validation to 91.9 on test, Frank-Wolfe with K = 5 from 94.6 to 93.0).",
    "Rates, noise and forget bias of the present protocol were chosen on held-out persons alone, "
    "the noise with plain networks only, and its seeds are new.",
    "Seconds are wall time on a machine that did other work at the same time: compare them only "
    "roughly.",
)


@dataclass(frozen=True)
class _Size:
    epochs: int
    windows: int | None
    lengths: tuple[int, ...]
    adding_gradients: int
    adding_seeds: int
    rnn_gradients: int
    indrnn_gradients: int


_FULL = _Size(8, None, (50, 100, 200), 1000, 1, 300, 80)
_QUICK = _Size(1, 600, (20, 30, 40), 100, 1, 5, 5)


def run(folder: Path, quick: bool = False, seeds: int = 3) -> Path:
    """Run what is missing, and write the tables, the picture and README.md.

    Args:
        folder: of the results; runs that are stored there are not repeated.
        quick: a few minutes instead of about an hour: less data, fewer gradients.
        seeds: of the rows of the HAR-2 tables.

    Returns:
        The path of README.md.

    Raises:
        DataError: the HAR data or MNIST cannot be found.
    """
    size = _QUICK if quick else _FULL
    store = folder / "runs.jsonl"
    extent = Extent(seeds, size.epochs, size.windows)
    adding, curves = adding_report(
        folder, store, size.lengths, size.adding_gradients, size.adding_seeds
    )
    tables = [
        *activity_tables(store, extent),
        ("adding", adding),
        (
            "pixels",
            pixel_table(store, {"RNN": size.rnn_gradients, "IndRNN": size.indrnn_gradients}),
        ),
    ]
    title = "Frank-Wolfe" + (" (quick form)" if quick else "")
    return write_report(folder, title, tables, [curves], REMARKS)
