"""The published tables and figures, run again: resumable, with honest opponents."""

from benchmarks.harness.curves import Curve, Panel, draw
from benchmarks.harness.runs import Record, run_all
from benchmarks.harness.tables import Table, mean_and_spread, write_report

__all__ = [
    "Curve",
    "Panel",
    "Record",
    "Table",
    "draw",
    "mean_and_spread",
    "run_all",
    "write_report",
]
