"""The tables and curves of next-note prediction, and the choice of learning rates."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from liftednet.reproduce.curves import Curve, Panel, draw
from liftednet.reproduce.music import (
    CLIP,
    DECAY,
    LANES,
    LIFTED_WINDOWS,
    WINDOW,
    EchoRun,
    MusicRun,
    fit_echo,
    train_music,
)
from liftednet.reproduce.runs import Outcome, Record, run_all
from liftednet.reproduce.tables import Table, mean_and_spread

RATES = (7.5e-3, 1.5e-2, 3e-2, 6e-2)
LIFTED_HIDDEN, TUNING_SEED, SEED = 100, 1000, 0
JSB_HIDDEN, RESERVOIR, RHOS = 100, 300, (1.0, 10.0, 100.0)
# Train and validation loss as printed (table 4.1), by hidden units.
PRINTED = {50: (6.44, 6.20), 100: (6.53, 6.10), 200: (6.58, 6.03), 300: (6.82, 6.21)}

_MEASURES = (
    "Negative log-likelihood in nats, summed over the 88 notes. Per step: mean over all steps; "
    "per song: mean over songs of the mean over their steps, the average of eq. 4.2.",
    f"Muon for the matrices, with decay {DECAY:g} of the weights, and Adam at a third of the rate "
    f"for the vectors; rates fall linearly to 0; {LANES} songs side by side in windows of {WINDOW} "
    f"steps, the states carried along each; norm clipped at {CLIP:g}; a step weighs one over the "
    "root of its song's length. The epoch is the best on the validation songs, and the test songs "
    "decide nothing.",
)


@dataclass(frozen=True)
class MusicExtent:
    """How much is run.

    Attributes:
        sizes: seeds for each number of hidden units on MuseData.
        epochs: of MuseData.
        trial_epochs: of the choice of each size's rate on MuseData.
        jsb_epochs: of the chorales.
        songs: training songs to use, or None for all.
    """

    sizes: Mapping[int, int]
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
    rates = {hidden: _rate(store, extent, hidden) for hidden in extent.sizes}
    settings = [
        MusicRun("MuseData", "tanh", hidden, rates[hidden], extent.epochs, seed, extent.songs)
        for seed in range(max(extent.sizes.values()))
        for hidden, seeds in extent.sizes.items()
        if seed < seeds
    ]
    own = replace(settings[0], hidden=LIFTED_HIDDEN, rate=rates[LIFTED_HIDDEN], lifted=True)
    first, more = settings[: len(extent.sizes)], settings[len(extent.sizes) :]
    records = run_all(store, [*first, own, *more], train_music, "MuseData")
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


def _rate(store: Path, extent: MusicExtent, hidden: int) -> float:
    """Return the rate whose short run is best on the validation songs, the test songs unread."""
    trial = MusicRun(
        "MuseData",
        "tanh",
        hidden,
        0.0,
        extent.trial_epochs,
        TUNING_SEED,
        extent.songs,
        tested=False,
    )
    settings = [replace(trial, rate=rate) for rate in RATES]
    records = run_all(store, settings, train_music, f"choosing the rate of {hidden} units")
    return min(records, key=lambda record: _valid(record.outcome)[1]).settings.rate


def _best(outcome: Outcome) -> int:
    """Return the position of the best look at the validation songs."""
    valid = outcome["valid"]
    return min(range(len(valid)), key=lambda look: valid[look][1])


def _valid(outcome: Outcome) -> Sequence[float]:
    """Return the best validation losses, per step and per song."""
    losses: Sequence[float] = outcome["valid"][_best(outcome)]
    return losses


def _name(run: MusicRun) -> str:
    return f"{run.network}, {run.hidden} units" + (", lifted start" if run.lifted else "")


def _muse_table(records: Sequence[Record[MusicRun]], extent: MusicExtent) -> Table:
    groups: dict[str, list[Record[MusicRun]]] = {}
    for record in records:
        groups.setdefault(_name(record.settings), []).append(record)
    rows = [[name, *_muse_cells(own)] for name, own in groups.items()]
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
        f"{extent.epochs} epochs for every size; mean, spread and number of seeds. A rate is the "
        f"best of {', '.join(f'{rate:g}' for rate in RATES)} for its size, on the validation songs "
        f"after {extent.trial_epochs} epochs with another seed.",
        f"The lifted start is LiftedRNN (tight divergence, gaussian start) after one pass over "
        f"{LIFTED_WINDOWS} windows.",
        "The paper does not say which of the two means it prints. Its plain gradient descent (rate "
        "0.001) is not repeated: its number of epochs is not printed.",
    )
    return Table("MuseData", columns, rows, notes)


def _muse_cells(own: Sequence[Record[MusicRun]]) -> list[str]:
    """Return the cells of a row, from the runs of all its seeds."""
    run, outcomes = own[0].settings, [record.outcome for record in own]
    printed = ["", ""] if run.lifted else [f"{loss:.2f}" for loss in PRINTED[run.hidden]]

    def cell(losses: Sequence[float]) -> str:
        return mean_and_spread(losses, 2)

    return [
        f"{run.rate:g}",
        printed[0],
        cell([outcome["train"][_best(outcome)] for outcome in outcomes]),
        printed[1],
        cell([_valid(outcome)[1] for outcome in outcomes]),
        cell([_valid(outcome)[0] for outcome in outcomes]),
        cell([outcome["test"][1] for outcome in outcomes]),
        cell([outcome["test"][0] for outcome in outcomes]),
        ", ".join(str(outcome["epochs"][_best(outcome)]) for outcome in outcomes),
        f"{statistics.fmean(record.seconds for record in own):.0f}",
    ]


def _jsb_table(
    records: Sequence[Record[MusicRun]], fitted: Sequence[Record[EchoRun]], epochs: int
) -> Table:
    rows = []
    for network in dict.fromkeys(record.settings.network for record in records):
        own = [record for record in records if record.settings.network == network]
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
        if record.settings.seed != SEED:
            continue
        outcome = record.outcome
        losses = [per_song for _, per_song in outcome["valid"]]
        curves.append(Curve(_name(record.settings), outcome["epochs"], losses))
    panel = Panel("MuseData", "epoch", "validation loss per song (nats)", curves)
    return draw(path, [panel])
