"""`liftednet reproduce table1`: Table 1 of Lifted Neural Networks, and what it leaves out."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from liftednet.reproduce.curves import Curve, Panel, draw
from liftednet.reproduce.runs import Outcome, Record, Settings, finished, run_all
from liftednet.reproduce.table1_alone import alone_table, train
from liftednet.reproduce.table1_extent import FULL, QUICK, Comparison, Extent
from liftednet.reproduce.table1_printed import PRINTED
from liftednet.reproduce.table1_runs import SOURCES, Bench, StartRun
from liftednet.reproduce.table1_starts import paper_starts
from liftednet.reproduce.tables import Table, mean_and_spread, write_report

SHOWN_EPOCHS = (0, 1, 2, 5, 17)
_OPPONENTS = (
    "Kaiming",
    "Kaiming, fitted head",
    "Kaiming, Adam as long",
)  # that a start is to beat after training, too
REMARKS = (
    "The number of seeds stands in brackets (the paper: 5). One thread; seconds are wall time on a "
    "machine that did other work at the same time, where they are not called otherwise.",
    "Lifted starts: tight divergences, lam = 10, rho = 1e-6, minibatches of 100, labels smoothed "
    "by 0.1; these were chosen on 10,000 held-out training samples.",
)


def run(folder: Path, quick: bool = False, seeds: int = 3) -> Path:
    """Run what is missing, and write the tables, the picture and README.md.

    Args:
        folder: of the results; runs that are stored there are not repeated.
        quick: minutes instead of hours: fewer samples, epochs, networks.
        seeds: runs of every row; the paper has five.

    Returns:
        The path of README.md.

    Raises:
        DataError: MNIST cannot be found.
    """
    extent = QUICK if quick else FULL
    if not quick:
        extent = replace(extent, paper_seeds=seeds, alone_seeds=seeds)
    return report(folder, replace(extent, seeds=seeds), quick)


def _records(
    extent: Extent,
    store: Path,
    settings: Sequence[Settings],
    run: Callable[[Settings], Outcome],
    title: str,
) -> list[Record[Settings]]:
    """Return all records, running what is missing, or those that are stored."""
    if extent.stored_only:
        return finished(store, settings)
    return run_all(store, settings, run, title)


def report(folder: Path, extent: Extent, quick: bool = False) -> Path:
    """Run what is missing to an extent, and write the report; return its path."""
    for name in dict.fromkeys(["mnist", *(compared.data for compared in extent.compared)]):
        SOURCES[name].load()  # what is not there is missed before hours of work
    tables = [("alone", _alone(folder, extent))]
    paper, curves = paper_table(folder, extent)
    tables.append(("paper_protocol", paper))
    for compared in extent.compared:
        name = f"best_rates_{compared.data}_{compared.architecture}"
        tables.append((name, best_rates_table(folder, extent, compared)))
    picture = draw(folder / "curves.png", curves)
    title = "Table 1 of Lifted Neural Networks" + (" (quick form)" if quick else "")
    return write_report(folder, title, tables, [picture], REMARKS)


def _alone(folder: Path, extent: Extent) -> Table:
    """Run networks by themselves: the lifted one, and opponents that are tuned."""
    run = partial(train, test_samples=extent.test_samples)
    records = partial(_records, extent, folder / "alone.jsonl", run=run, title="by themselves")
    others = [a for a in extent.architectures if a not in extent.opponents]
    return alone_table(
        records, extent.samples, extent.lifted_epochs, extent.opponents, others,
        extent.alone_seeds,
    )  # fmt: skip


def paper_table(folder: Path, extent: Extent) -> tuple[Table, list[Panel]]:
    """Run the paper's protocol: SGD at 1e-5 and 1e-6 in batches of 100 from four starts."""
    starts = paper_starts(extent.lifted_epochs)
    settings = [
        StartRun("mnist", architecture, start.name, "paper", rate, extent.paper_epochs, seed,
                 extent.samples, False)
        for seed in range(extent.paper_seeds)
        for architecture in extent.paper_architectures
        for start in starts
        for rate in PRINTED
    ]  # fmt: skip
    bench = Bench(starts, extent.test_samples)
    store = folder / "paper_protocol.jsonl"
    records = _records(extent, store, settings, bench.from_start, "the paper's")
    rows = [
        _paper_row([r for r in records if _is(r, rate, architecture)], rate, architecture)
        for rate in PRINTED
        for architecture in extent.paper_architectures
    ]
    names = [start.name for start in starts]
    columns = ("rate", "hidden layers", *(f"{name} (paper)" for name in names), "first")
    notes = (
        f"Test accuracy after {extent.paper_epochs} epochs, in brackets the paper's; the lifted "
        f"start has {extent.lifted_epochs} passes more, those of its pretraining.",
        "SGD on the loss summed over a batch of 100, constant rate, rho = 1e-3, biases 0.1: with "
        "the mean over a batch the printed rates would leave a random start untrained.",
    )
    panels = [
        _panel([r for r in records if _is(r, 1e-5, architecture)], architecture)
        for architecture in extent.paper_architectures[::3]
    ]
    return Table("The paper's protocol, test accuracy", columns, rows, notes), panels


def _is(record: Record[StartRun], rate: float, architecture: str) -> bool:
    return (record.settings.rate, record.settings.architecture) == (rate, architecture)


def _by_start(records: Sequence[Record[StartRun]]) -> dict[str, list[Record[StartRun]]]:
    found: dict[str, list[Record[StartRun]]] = {}
    for record in records:
        found.setdefault(record.settings.start, []).append(record)
    return found


def _paper_row(records: Sequence[Record[StartRun]], rate: float, architecture: str) -> list[str]:
    finals = {
        name: [record.outcome["accuracy"][-1] for record in own]
        for name, own in _by_start(records).items()
    }
    printed = PRINTED[rate][architecture]
    cells = [
        f"{mean_and_spread(found)} ({paper:.3f})"
        for found, paper in zip(finals.values(), printed, strict=True)
    ]
    first = max(finals, key=lambda name: statistics.fmean(finals[name]))
    return [f"{rate:g}", architecture, *cells, first]


def _panel(records: Sequence[Record[StartRun]], architecture: str) -> Panel:
    curves = [
        Curve(name, range(len(own[0].outcome["accuracy"])), own[0].outcome["accuracy"])
        for name, own in _by_start(records).items()
    ]
    title = f"{architecture}, SGD at 1e-5, seed 0"
    return Panel(title, "epochs (pretraining not counted)", "test accuracy", curves)


def best_rates_table(folder: Path, extent: Extent, compared: Comparison) -> Table:
    """Run every start at the rates that are best for it on held-out training data."""
    starts, rates = compared.chosen(), compared.rates or extent.rates
    bench, store = Bench(starts, extent.test_samples), folder / "best_rates.jsonl"
    trials = [
        StartRun(compared.data, compared.architecture, start.name, optimizer, rate, extent.epochs,
                 0, extent.samples, True)
        for start in starts
        for optimizer, rate in rates
    ]  # fmt: skip
    about = f"{compared.data}, {compared.architecture}"
    tried = _records(extent, store, trials, bench.from_start, f"rates, {about}")
    starts = [start for start in starts if _count(tried, start.name) == len(rates)]
    shown = [epoch for epoch in SHOWN_EPOCHS if epoch <= extent.epochs]
    chosen = {
        (start.name, epoch): _best(tried, start.name, epoch) for start in starts for epoch in shown
    }
    finals = [
        replace(found, seed=seed, held_out=False)
        for start in starts
        for seed in range(extent.seeds)
        for found in dict.fromkeys(chosen[start.name, epoch] for epoch in shown)
    ]
    records = _records(extent, store, finals, bench.from_start, about)
    starts = [
        start for start in starts if _count(records, start.name) == _count(finals, start.name)
    ]
    rows = [
        [start.name, *(_cell(records, chosen[start.name, epoch], epoch) for epoch in shown),
         _seconds(records, start.name)]
        for start in starts
    ]  # fmt: skip
    columns = ("start", *(f"after {epoch}" for epoch in shown), "seconds before + an epoch")
    cells = {
        (start.name, epoch): _accuracies(records, chosen[start.name, epoch], epoch)
        for start in starts
        for epoch in shown
    }
    notes = (
        *(_lead(cells, epoch) for epoch in shown if epoch and ("lifted", epoch) in cells),
        "Test accuracy, mean ± deviation (seeds); each cell at the optimizer and rate that are "
        "best for this start and this number of epochs on a sixth of the training data, among "
        f"{', '.join(f'{optimizer} {rate:g}' for optimizer, rate in rates)}.",
        f"Before the first epoch the lifted start has made {compared.start_epochs} passes over the "
        "data; Kaiming, Adam as long has made as many, by Adam at a rate that falls from 1e-3 "
        "to 0.",
    )
    return Table(f"Best rates, {about}", columns, rows, notes)


def _count(runs: Sequence[Record[StartRun]] | Sequence[StartRun], start: str) -> int:
    settings = (run.settings if isinstance(run, Record) else run for run in runs)
    return sum(run.start == start for run in settings)


def _best(tried: Sequence[Record[StartRun]], start: str, epoch: int) -> StartRun:
    own = [record for record in tried if record.settings.start == start]
    trained = max(epoch, 1)  # before training every rate is as good
    return max(own, key=lambda record: record.outcome["accuracy"][trained]).settings


def _accuracies(records: Sequence[Record[StartRun]], chosen: StartRun, epoch: int) -> list[float]:
    return [
        record.outcome["accuracy"][epoch]
        for record in records
        if replace(record.settings, seed=0, held_out=True) == chosen
    ]


def _cell(records: Sequence[Record[StartRun]], chosen: StartRun, epoch: int) -> str:
    own = mean_and_spread(_accuracies(records, chosen, epoch), 4)
    return f"{own} {chosen.optimizer} {chosen.rate:g}"


def _lead(cells: dict[tuple[str, int], list[float]], epoch: int) -> str:
    """Say by how much the lifted start leads after an epoch, and by how many spreads."""
    own = cells["lifted", epoch]
    parts = []
    for name in _OPPONENTS:
        if (name, epoch) not in cells:
            continue
        other = cells[name, epoch]
        lead = statistics.fmean(own) - statistics.fmean(other)
        spread = max(map(_spread, (own, other)))
        verdict = "more" if lead > spread else "not more"
        parts.append(f"{lead:+.4f} on {name} ({verdict} than the larger spread, {spread:.4f})")
    return f"After {epoch}: the lifted start leads by {' and '.join(parts)}."


def _spread(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _seconds(records: Sequence[Record[StartRun]], start: str) -> str:
    own = [record for record in records if record.settings.start == start]
    before = sum(record.outcome["pretraining"] for record in own) / len(own)
    epoch = sum(r.outcome["training"] / r.settings.epochs for r in own) / len(own)
    return f"{before:.1f} + {epoch:.1f}"
