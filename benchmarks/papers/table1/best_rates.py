"""Every start at the rates that are best for it, and by how much the lifted one leads."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.harness.runs import Record, matching
from benchmarks.harness.tables import Table, mean_and_spread
from benchmarks.papers.table1.extent import Comparison, Extent
from benchmarks.papers.table1.runs import Bench, StartRun

SHOWN_EPOCHS = (0, 1, 2, 5, 17)
_OPPONENTS = (
    "Kaiming",
    "Kaiming, fitted head",
    "Kaiming, Adam as long",
)  # that a start is to beat after training, too


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
    tried = extent.records(store, trials, bench.from_start, f"rates, {about}")
    starts = [start for start in starts if len(matching(tried, start=start.name)) == len(rates)]
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
    records = extent.records(store, finals, bench.from_start, about)
    missing = set(finals) - {record.settings for record in records}
    incomplete = {run.start for run in missing}
    starts = [start for start in starts if start.name not in incomplete]
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


def _best(tried: Sequence[Record[StartRun]], start: str, epoch: int) -> StartRun:
    own = matching(tried, start=start)
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
    own = matching(records, start=start)
    before = sum(record.outcome["pretraining"] for record in own) / len(own)
    epoch = sum(r.outcome["training"] / r.settings.epochs for r in own) / len(own)
    return f"{before:.1f} + {epoch:.1f}"
