"""The run store survives interruptions; tables and pictures can be read back."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.harness.report import Table, write_report
from benchmarks.harness.runs import Record, best_rate, finished, matching, run_all


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
