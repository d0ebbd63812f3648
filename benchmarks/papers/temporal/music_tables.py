"""The tables and curves of next-note prediction, and the choice of learning rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.curves import Curve, Panel, draw
from benchmarks.harness.runs import Outcome, Record, matching, run_all
from benchmarks.harness.tables import Table
from benchmarks.papers.temporal.music import (
    CLIP,
    LANES,
    WINDOW,
    EchoRun,
    MusicRun,
    fit_echo,
    train_music,
)

RATE, SEED = 1.5e-2, 0
JSB_RATES, RHOS = (5e-3, 1e-2, 2e-2), (1.0, 10.0, 100.0)
JSB_HIDDEN, RESERVOIR = 100, 300
# Train and validation loss as printed (table 4.1), by hidden units.
PRINTED = {50: (6.44, 6.20), 100: (6.53, 6.10), 200: (6.58, 6.03), 300: (6.82, 6.21)}

_MEASURES = (
    "Negative log-likelihood in nats, summed over the 88 notes. Per step: mean over all steps; "
    "per song: mean over songs of the mean over their steps, the average of eq. 4.2.",
    f"{LANES} songs side by side in windows of {WINDOW} steps, the states carried along each; "
    f"rates fall linearly to 0; norm clipped at {CLIP:g}; a step weighs one over the root of its "
    "song's length. The epoch is the best on the validation songs, and the test songs decide "
    "nothing.",
)


@dataclass(frozen=True)
class MusicExtent:
    """How much is run.

    Attributes:
        muse: hidden units, decay of the weights and epochs of each row of MuseData.
        jsb_epochs: of the chorales.
        songs: training songs to use, or None for all.
    """

    muse: Sequence[tuple[int, float, int]]
    jsb_epochs: int
    songs: int | None = None


def muse_report(folder: Path, store: Path, extent: MusicExtent) -> tuple[Table, Path]:
    """Run what is missing on MuseData; return the table and the picture of the curves.

    Args:
        folder: of the picture.
        store: the file of finished runs.
        extent: how much is run.
    """
    settings = [
        MusicRun("MuseData", "tanh", hidden, RATE, decay, epochs, SEED, extent.songs)
        for hidden, decay, epochs in extent.muse
    ]
    records = run_all(store, settings, train_music, "MuseData")
    return _muse_table(records), _picture(folder / "musedata.png", records)


def jsb_table(store: Path, extent: MusicExtent) -> Table:
    """Run what is missing on the chorales of Bach: tanh, GRU, LSTM and an echo-state network.

    Args:
        store: the file of finished runs.
        extent: how much is run.
    """
    settings = [
        MusicRun("JSB", network, JSB_HIDDEN, rate, 0.0, extent.jsb_epochs, SEED)
        for network in ("tanh", "GRU", "LSTM")
        for rate in JSB_RATES
    ]
    records = run_all(store, settings, train_music, "JSB chorales")
    echo = [EchoRun("JSB", RESERVOIR, rho, SEED) for rho in RHOS]
    fitted = run_all(store, echo, fit_echo, "echo-state networks")
    return _jsb_table(records, fitted, extent.jsb_epochs)


def _best(outcome: Outcome) -> int:
    """Return the position of the best look at the validation songs."""
    valid = outcome["valid"]
    return min(range(len(valid)), key=lambda look: valid[look][1])


def _valid(outcome: Outcome) -> Sequence[float]:
    """Return the best validation losses, per step and per song."""
    losses: Sequence[float] = outcome["valid"][_best(outcome)]
    return losses


def _name(run: MusicRun) -> str:
    return f"{run.network}, {run.hidden} units"


def _muse_table(records: Sequence[Record[MusicRun]]) -> Table:
    rows = [_muse_row(record) for record in records]
    columns = (
        "network",
        "decay",
        "epochs",
        "paper train, taken as per step",
        "train per step, best epoch",
        "last epoch",
        "paper validation, taken as per song",
        "validation per song, best epoch",
        "last epoch",
        "validation per step",
        "test per song",
        "test per step",
        "best epoch",
        "seconds",
    )
    notes = (
        *_MEASURES,
        f"Muon at {RATE:g} for the matrices, which decay, and Adam at a third of it for the "
        "vectors. One seed; the decays and numbers of epochs tried for a size are all shown.",
        "The paper does not say which of the two means it prints; its curves mark the best epoch "
        "on the validation songs. Its training losses lie above its validation losses, which here, "
        "with 50 and 100 units, is so where the first are per step and the second per song: long "
        "songs are the harder ones. So its columns are taken. Its plain gradient descent (rate "
        "0.001) is not repeated: its number of epochs is not printed. Training losses are means "
        "over an epoch under way.",
    )
    return Table("MuseData", columns, rows, notes)


def _muse_row(record: Record[MusicRun]) -> list[str]:
    run, outcome = record.settings, record.outcome
    printed = [f"{loss:.2f}" for loss in PRINTED[run.hidden]]
    best, valid, test = _best(outcome), _valid(outcome), outcome["test"]
    return [
        _name(run),
        f"{run.decay:g}",
        str(run.epochs),
        printed[0],
        *(f"{outcome['train'][epoch]:.2f}" for epoch in (best, -1)),
        printed[1],
        *(f"{loss:.2f}" for loss in (valid[1], outcome["valid"][-1][1], valid[0], *test[::-1])),
        str(outcome["epochs"][best]),
        f"{record.seconds:.0f}",
    ]


def _jsb_table(
    records: Sequence[Record[MusicRun]], fitted: Sequence[Record[EchoRun]], epochs: int
) -> Table:
    rows = []
    for network in dict.fromkeys(record.settings.network for record in records):
        own = matching(records, network=network)
        record = min(own, key=lambda r: _valid(r.outcome)[1])
        epoch = record.outcome["epochs"][_best(record.outcome)]
        chosen = f"rate {record.settings.rate:g}, epoch {epoch}"
        rows.append(_jsb_row(_name(record.settings), chosen, _valid(record.outcome), record))
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
        f"Adam. {epochs} epochs, one seed, three settings each, the best on the validation songs. "
        "The readout of the echo-state network is fitted by one convex problem.",
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
        run, outcome = record.settings, record.outcome
        losses = [per_song for _, per_song in outcome["valid"]]
        label = f"{_name(run)}, decay {run.decay:g}, {run.epochs} epochs"
        curves.append(Curve(label, outcome["epochs"], losses))
    panel = Panel("MuseData", "epoch", "validation loss per song (nats)", curves)
    return draw(path, [panel])
