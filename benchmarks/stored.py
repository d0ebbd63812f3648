"""What benchmarks with a store share: runs in results/NAME.jsonl, and the table of them."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks.harness.runs import Outcome, Record, finished, run_all
from benchmarks.solvers import machine

RESULTS = Path(__file__).parent / "results"
Settings = TypeVar("Settings")
Records = Callable[[Sequence[Settings]], list[Record[Settings]]]


def records(name: str, train: Callable[[Settings], Outcome]) -> Records[Settings]:
    """Return what gives the records of runs; with --stored it leaves out those that are missing."""
    parser = ArgumentParser()
    parser.add_argument("--stored", action="store_true", help="the table of what has been run")
    store = RESULTS / f"{name}.jsonl"
    if parser.parse_args().stored:
        return partial(finished, store)
    return partial(run_all, store, run=train)


def write(name: str, title: str, text: str, table: Iterable[str]) -> None:
    """Write results/NAME.md: a title, the machine, a text, and the lines of a table."""
    known = {"written" if key == "date" else key: value for key, value in machine().items()}
    where = ", ".join(f"{key}: {value}" for key, value in known.items() if key != "load")
    lines = [f"# {title}", "", f"{where}.", "", text, "", *table, ""]
    (RESULTS / f"{name}.md").write_text("\n".join(lines), encoding="utf-8")
