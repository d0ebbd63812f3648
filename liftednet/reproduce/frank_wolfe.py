"""`liftednet reproduce frank-wolfe`: the experiments of the Frank-Wolfe paper."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from liftednet.reproduce.activity import Extent, activity_table
from liftednet.reproduce.adding_curve import adding_report
from liftednet.reproduce.pixel_digits import pixel_table
from liftednet.reproduce.tables import write_report

REMARKS = (
    "RNN training along locally optimal trajectories via Frank-Wolfe algorithm (2020), tables II "
    "and III and figures 3 to 5. Plain networks have ReLU units and start as the identity; the "
    "paper's activation is not legible in the copy at hand.",
    "Test figures of an earlier protocol (6 passes, a random validation part, two seeds) had been "
    "seen when the present one was fixed. It was fixed on windows of held-out persons alone, and "
    "its seeds are new.",
    "Seconds are wall time on a machine that did other work at the same time: compare them only "
    "roughly.",
)


@dataclass(frozen=True)
class _Size:
    epochs: int
    trial_epochs: int
    windows: int | None
    lengths: tuple[int, ...]
    adding_gradients: int
    adding_seeds: int
    rnn_gradients: int
    indrnn_gradients: int


_FULL = _Size(15, 3, None, (50, 100, 200), 1000, 1, 1000, 300)
_QUICK = _Size(1, 1, 600, (20, 30, 40), 100, 1, 5, 5)


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
    extent = Extent(seeds, size.epochs, size.trial_epochs, size.windows)
    adding, curves = adding_report(
        folder, store, size.lengths, size.adding_gradients, size.adding_seeds
    )
    tables = [
        ("har2", activity_table(store, extent, noisy=False)),
        ("noisy_har2", activity_table(store, extent, noisy=True)),
        ("adding", adding),
        (
            "pixels",
            pixel_table(store, {"RNN": size.rnn_gradients, "IndRNN": size.indrnn_gradients}),
        ),
    ]
    title = "Frank-Wolfe" + (" (quick form)" if quick else "")
    return write_report(folder, title, tables, [curves], REMARKS)
