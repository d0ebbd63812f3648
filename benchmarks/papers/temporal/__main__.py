"""Run the report."""

from benchmarks.papers import main
from benchmarks.papers.temporal.report import run

main("temporal", run)
