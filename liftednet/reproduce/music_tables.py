"""The tables and curves of next-note prediction, and the choice of learning rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from liftednet.reproduce.curves import Curve, Panel, draw
from liftednet.reproduce.music import (
    BATCH,
    CLIP,
    LIFTED_WINDOWS,
    WINDOW,
    EchoRun,
    MusicRun,
    fit_echo,
    train_music,
)
from liftednet.reproduce.runs import Outcome, Record, run_all
from liftednet.reproduce.tables import Table

RATES = (5e-3, 1e-2, 2e-2)
TUNED_HIDDEN, TUNING_SEED, SEED = 100, 1000, 0
JSB_HIDDEN, RESERVOIR, RHOS = 100, 300, (1.0, 10.0, 100.0)
# Train and validation loss as printed (table 4.1), by hidden units.
PRINTED = {50: (6.44, 6.20), 100: (6.53, 6.10), 200: (6.58, 6.03), 300: (6.82, 6.21)}

_MEASURES = (
    "Negative log-likelihood in nats, summed over the 88 notes. Per step: mean over all steps; "
    "per song: mean over songs of the mean over their steps, the average of eq. 4.2.",
    f"Adam, rate falling linearly to 0, windows of {WINDOW} steps, batches of {BATCH}, norm "
    f"clipped at {CLIP:g}; the epoch is the best on the validation songs, and the test songs "
    "decide nothing.",
)


@dataclass(frozen=True)
class MusicExtent:
    """How much is run.

    Attributes:
        sizes: numbers of hidden units on MuseData.
        epochs: of MuseData; the others follow from it.
        trial_epochs: of the choice of a rate on MuseData.
        jsb_epochs: of the chorales.
        songs: training songs to use, or None for all.
    """

    sizes: tuple[int, ...]
    epochs: int
    trial_epochs: int
    jsb_epochs: int
    songs: int | None = None


def muse_report(folder: Path, store: Path, extent: MusicExtent) -> tuple[Table, Path]:
    """Run what is missing on MuseData; return the table and the picture of the curves.

    Args:
        folder: of the picture.
        store: the file of finished runs.
        extent: how much is run.
    """
    rate, songs = _rate(store, extent), extent.songs
    settings = [
        MusicRun("MuseData", "tanh", hidden, rate, extent.epochs, SEED, songs)
        for hidden in extent.sizes
    ]
    lifted = [replace(run, lifted=True) for run in settings if run.hidden == TUNED_HIDDEN]
    records = run_all(store, [*settings, *lifted], train_music, "MuseData")
    picture = _picture(folder / "musedata.png", records)
    return _muse_table(records, extent), picture


def jsb_table(store: Path, extent: MusicExtent) -> Table:
    """Run what is missing on the chorales of Bach: tanh, GRU, LSTM and an echo-state network.

    Args:
        store: the file of finished runs.
        extent: how much is run.
    """
    settings = [
        MusicRun("JSB", network, JSB_HIDDEN, rate, extent.jsb_epochs, SEED)
        for network in ("tanh", "GRU", "LSTM")
        for rate in RATES
    ]
    records = run_all(store, settings, train_music, "JSB chorales")
    echo = [EchoRun("JSB", RESERVOIR, rho, SEED) for rho in RHOS]
    fitted = run_all(store, echo, fit_echo, "echo-state networks")
    return _jsb_table(records, fitted, extent.jsb_epochs)


def _rate(store: Path, extent: MusicExtent) -> float:
    """Return the rate whose short run is best on the validation songs."""
    trial = MusicRun("MuseData", "tanh", TUNED_HIDDEN, 0.0, extent.trial_epochs, TUNING_SEED)
    settings = [replace(trial, rate=rate, songs=extent.songs) for rate in RATES]
    records = run_all(store, settings, train_music, "choosing rates")
    return min(records, key=lambda record: _best(record.outcome)[1][1]).settings.rate


def _best(outcome: Outcome) -> tuple[int, Sequence[float]]:
    """Return the number of the best epoch and its validation losses."""
    valid = outcome["valid"]
    best = min(range(len(valid)), key=lambda epoch: valid[epoch][1])
    return best, valid[best]


def _name(run: MusicRun) -> str:
    return f"{run.network}, {run.hidden} units" + (", lifted start" if run.lifted else "")


def _muse_table(records: Sequence[Record[MusicRun]], extent: MusicExtent) -> Table:
    rows = []
    for record in records:
        run, (best, valid) = record.settings, _best(record.outcome)
        printed = ["", ""] if run.lifted else [f"{loss:.2f}" for loss in PRINTED[run.hidden]]
        rows.append(
            [
                _name(run),
                f"{run.rate:g}",
                printed[0],
                f"{record.outcome['train'][best]:.2f}",
                printed[1],
                f"{valid[1]:.2f}",
                f"{valid[0]:.2f}",
                f"{record.outcome['test'][1]:.2f}",
                f"{record.outcome['test'][0]:.2f}",
                str(best + 1),
                f"{record.seconds:.0f}",
            ]
        )
    columns = (
        "network",
        "rate",
        "paper train",
        "train per step",
        "paper validation",
        "validation per song",
        "validation per step",
        "test per song",
        "test per step",
        "best epoch",
        "seconds",
    )
    notes = (
        *_MEASURES,
        f"{extent.epochs} epochs, one seed. The rate is the best of {len(RATES)} on the validation "
        f"songs after {extent.trial_epochs} epochs with {TUNED_HIDDEN} units and another seed.",
        f"The lifted start is LiftedRNN (tight divergence, gaussian start) after one pass over "
        f"{LIFTED_WINDOWS} windows.",
        "The paper does not say which of the two means it prints. Its plain gradient descent (rate "
        "0.001) is not repeated: its number of epochs is not printed.",
    )
    return Table("MuseData", columns, rows, notes)


def _jsb_table(
    records: Sequence[Record[MusicRun]], fitted: Sequence[Record[EchoRun]], epochs: int
) -> Table:
    rows = []
    for network in dict.fromkeys(record.settings.network for record in records):
        own = [record for record in records if record.settings.network == network]
        record = min(own, key=lambda r: _best(r.outcome)[1][1])
        best, valid = _best(record.outcome)
        rate = f"rate {record.settings.rate:g}, epoch {best + 1}"
        rows.append(_jsb_row(_name(record.settings), rate, valid, record))
    echo = min(fitted, key=lambda record: record.outcome["valid"][1])
    rows.append(
        _jsb_row(
            f"echo state, {RESERVOIR} units",
            f"rho {echo.settings.rho:g}",
            echo.outcome["valid"],
            echo,
        )
    )
    columns = ("network", "chosen", "validation per song", "per step", "test per song", "per step")
    notes = (
        *_MEASURES,
        f"{epochs} epochs, one seed, three settings each, the best on the validation songs. The "
        "readout of the echo-state network is fitted by one convex problem.",
    )
    return Table("JSB chorales", (*columns, "seconds"), rows, notes)


def _jsb_row(
    name: str, chosen: str, valid: Sequence[float], record: Record[MusicRun] | Record[EchoRun]
) -> list[str]:
    test = record.outcome["test"]
    losses = [f"{loss:.2f}" for loss in (valid[1], valid[0], test[1], test[0])]
    return [name, chosen, *losses, f"{record.seconds:.0f}"]


def _picture(path: Path, records: Sequence[Record[MusicRun]]) -> Path:
    curves = []
    for record in records:
        name, losses = _name(record.settings), record.outcome
        epochs = list(range(1, len(losses["train"]) + 1))
        curves.append(Curve(name, epochs, [v[1] for v in losses["valid"]]))
    panel = Panel("MuseData", "epoch", "validation loss per song (nats)", curves)
    return draw(path, [panel])
