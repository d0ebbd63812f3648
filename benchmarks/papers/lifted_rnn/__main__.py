"""Run the report."""

from benchmarks.papers import main
from benchmarks.papers.lifted_rnn.report import run

main("lifted-rnn", run)
