"""Table 1 of Lifted Neural Networks, and what it leaves out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.harness.curves import draw
from benchmarks.harness.tables import write_report
from benchmarks.papers.table1.alone import alone_table
from benchmarks.papers.table1.best_rates import best_rates_table
from benchmarks.papers.table1.data import SOURCES
from benchmarks.papers.table1.extent import FULL, QUICK, Extent
from benchmarks.papers.table1.paper import paper_table

REMARKS = (
    "The number of seeds stands in brackets (the paper: 5). One thread; seconds are wall time on a "
    "machine that did other work at the same time, where they are not called otherwise.",
    "Lifted starts: tight divergences, lam = 10, rho = 1e-6, minibatches of 100, labels smoothed "
    "by 0.1; these were chosen on 10,000 held-out training samples.",
)


def run(folder: Path, quick: bool = False, seeds: int | None = None) -> Path:
    """Run what is missing, and write the tables, the picture and README.md.

    Args:
        folder: of the results; runs that are stored there are not repeated.
        quick: minutes instead of hours: fewer samples, epochs, networks.
        seeds: runs of every row, or None for three, in the quick form one; the paper has five.

    Returns:
        The path of README.md.

    Raises:
        DataError: MNIST cannot be found.
    """
    extent = QUICK if quick else FULL
    return report(folder, extent if seeds is None else replace(extent, seeds=seeds), quick)


def report(folder: Path, extent: Extent, quick: bool = False) -> Path:
    """Run what is missing to an extent, and write the report; return its path."""
    for name in dict.fromkeys(["mnist", *(compared.data for compared in extent.compared)]):
        SOURCES[name].load()  # what is not there is missed before hours of work
    alone = alone_table(folder, extent)
    paper, curves = paper_table(folder, extent)
    tables = [("alone", alone), ("paper_protocol", paper)]
    for compared in extent.compared:
        name = f"best_rates_{compared.data}_{compared.architecture}"
        tables.append((name, best_rates_table(folder, extent, compared)))
    picture = draw(folder / "curves.png", curves)
    title = "Table 1 of Lifted Neural Networks" + (" (quick form)" if quick else "")
    return write_report(folder, title, tables, [picture], REMARKS)
