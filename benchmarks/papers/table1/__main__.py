"""Run the report."""

from benchmarks.papers import main
from benchmarks.papers.table1.report import run

main("table1", run)
