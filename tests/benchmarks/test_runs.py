"""The run store survives interruptions; tables and pictures can be read back."""

from __future__ import annotations

import csv
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.harness.report import (
    Table,
    mean_and_spread,
    write_report,
)
from benchmarks.harness.runs import Record, best_rate, finished, matching, run_all
from liftednet.errors import DataError


@dataclass(frozen=True)
class Setting:
    method: str
    seed: int


SETTINGS = [Setting(method, seed) for method in ("a", "b") for seed in (0, 1)]


def test_an_interrupted_grid_goes_on_where_it_stopped(tmp_path: Path) -> None:
    store = tmp_path / "deep" / "runs.jsonl"
    made: list[Setting] = []

    def run(setting: Setting) -> dict[str, float]:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(setting)
        return {"score": setting.seed + 0.5}

    with pytest.raises(KeyboardInterrupt):
        run_all(store, SETTINGS, run)
    # The interruption may also have cut a line in half.
    store.write_text(store.read_text() + '{"settings": {"kind"')
    again: list[Setting] = []

    def resumed(setting: Setting) -> dict[str, float]:
        again.append(setting)
        return {"score": setting.seed + 0.5}

    records = run_all(store, SETTINGS, resumed)
    assert made + again == SETTINGS
    assert [r.settings for r in records] == SETTINGS
    assert [r.outcome["score"] for r in records] == [0.5, 1.5, 0.5, 1.5]
    assert run_all(store, SETTINGS[::-1], resumed)[0].settings == SETTINGS[-1]
    assert finished(store, [*SETTINGS, Setting("c", 0)]) == records
    assert len(again) == 2 and len(store.read_text().splitlines()) == 4


def test_reading_changes_nothing_and_a_cut_line_is_not_a_run(tmp_path: Path) -> None:
    """Another process may be in the middle of the line that looks cut."""
    store = tmp_path / "runs.jsonl"
    run_all(store, SETTINGS[:1], lambda s: {"score": 1.0})
    content = store.read_bytes() + b'{"settings": {"kind": "Setting"'
    store.write_bytes(content)
    assert [r.settings for r in finished(store, SETTINGS)] == SETTINGS[:1]
    assert store.read_bytes() == content


APPENDING = """
import sys
from dataclasses import dataclass
from pathlib import Path
from benchmarks.harness.runs import run_all

@dataclass(frozen=True)
class Setting:
    method: str
    seed: int

settings = [Setting(sys.argv[2], seed) for seed in range(60)]
run_all(Path(sys.argv[1]), settings, lambda s: {"text": s.method * 5000})
"""


def test_processes_append_to_one_store_at_once(tmp_path: Path) -> None:
    store = tmp_path / "runs.jsonl"
    store.write_text('{"settings"')  # which the first to come must not leave in its line
    command = [sys.executable, "-c", APPENDING, str(store)]
    processes = [subprocess.Popen([*command, name]) for name in "ab"]
    assert [process.wait() for process in processes] == [0, 0]
    settings = [Setting(name, seed) for name in "ab" for seed in range(60)]
    records = finished(store, settings)
    assert [r.settings for r in records] == settings
    assert all(r.outcome["text"] == r.settings.method * 5000 for r in records)


def test_a_store_that_cannot_be_written_or_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="/dev/full cannot be written: No space left"):
        run_all(Path("/dev/full"), SETTINGS[:1], lambda s: {})
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"):
        run_all(tmp_path / "file" / "runs.jsonl", SETTINGS[:1], lambda s: {})
    (tmp_path / "runs.jsonl").write_bytes(b'{"settings": "\xff"}\n' + b"[" * 100_000 + b"\n")
    with pytest.raises(DataError, match="Line 1"):
        finished(tmp_path / "runs.jsonl", SETTINGS)


@dataclass(frozen=True)
class Trial:
    method: str
    rate: float


def test_records_are_found_by_their_settings_and_a_rate_by_its_outcome() -> None:
    found = {("a", 0.1): 0.7, ("a", 0.3): 0.9, ("a", 1.0): 0.8, ("b", 0.1): 1.0}
    records = [Record(Trial(*key), {"accuracy": x, "loss": -x}, 0.0) for key, x in found.items()]
    assert [r.settings.rate for r in matching(records, method="a")] == [0.1, 0.3, 1.0]
    assert matching(records, method="b", rate=0.1) == records[3:]
    assert not matching(records, method="b", rate=0.3)
    assert best_rate(records, "a") == 0.3 and best_rate(records, "a", "loss") == 0.1


def test_report_holds_the_table_and_where_it_was_made(tmp_path: Path) -> None:
    table = Table("Scores", ["method", "test"], [["a, b", "1"], ["c", "2"]], ["A note."])
    picture = tmp_path / "curve.png"
    report = write_report(tmp_path, "Title", [("scores", table)], [picture], ["Remark."])
    text = report.read_text()
    for piece in ("# Title", "Made on", "torch", "| a, b | 1 |", "- A note.", "(curve.png)"):
        assert piece in text
    with (tmp_path / "scores.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["method", "test"], ["a, b", "1"], ["c", "2"]]


def test_mean_and_spread_by_hand() -> None:
    assert mean_and_spread([1.0, 2.0, 3.0], 2) == "2.00 ± 1.00 (3)"
    assert mean_and_spread([0.5], 1) == "0.5 (1)"
