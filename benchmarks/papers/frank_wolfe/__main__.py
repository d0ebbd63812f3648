"""Run the report."""

from benchmarks.papers import main
from benchmarks.papers.frank_wolfe.report import run

main("frank-wolfe", run)
