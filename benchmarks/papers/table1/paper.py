"""The protocol of Table 1: four starts, plain descent at two small rates."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.curves import Curve, Panel
from benchmarks.harness.runs import Record, matching
from benchmarks.harness.tables import Table, mean_and_spread
from benchmarks.papers.table1.extent import Extent
from benchmarks.papers.table1.runs import Bench, StartRun
from benchmarks.papers.table1.starts import paper_starts

# Test accuracy as printed, by rate: normal, Xavier, variance scaling, lifted.
PRINTED = {
    1e-5: {
        "300": (0.915, 0.923, 0.924, 0.962),
        "300-100": (0.919, 0.932, 0.931, 0.969),
        "500-150": (0.927, 0.936, 0.935, 0.970),
        "500-200-100": (0.927, 0.939, 0.935, 0.958),
        "400-200-100-50": (0.919, 0.938, 0.936, 0.919),
    },
    1e-6: {
        "300": (0.800, 0.836, 0.844, 0.875),
        "300-100": (0.792, 0.838, 0.842, 0.899),
        "500-150": (0.824, 0.850, 0.858, 0.890),
        "500-200-100": (0.821, 0.857, 0.848, 0.926),
        "400-200-100-50": (0.751, 0.838, 0.815, 0.959),
    },
}


def paper_table(folder: Path, extent: Extent) -> tuple[Table, list[Panel]]:
    """Run the paper's protocol: SGD at 1e-5 and 1e-6 in batches of 100 from four starts."""
    starts = paper_starts(extent.lifted_epochs)
    settings = [
        StartRun("mnist", architecture, start.name, "paper", rate, extent.paper_epochs, seed,
                 extent.samples, False)
        for seed in range(extent.seeds)
        for architecture in extent.architectures
        for start in starts
        for rate in PRINTED
    ]  # fmt: skip
    bench = Bench(starts, extent.test_samples)
    store = folder / "paper_protocol.jsonl"
    records = extent.records(store, settings, bench.from_start, "the paper's")
    rows = [
        _paper_row(matching(records, rate=rate, architecture=architecture), rate, architecture)
        for rate in PRINTED
        for architecture in extent.architectures
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
        _panel(matching(records, rate=1e-5, architecture=architecture), architecture)
        for architecture in extent.architectures[::3]
    ]
    return Table("The paper's protocol, test accuracy", columns, rows, notes), panels


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
