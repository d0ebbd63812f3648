"""The artificial tasks of On Recurrent Neural Networks, and the report at toy size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import data
from benchmarks.papers.temporal import __main__ as report
from benchmarks.papers.temporal import music, tasks
from benchmarks.papers.temporal.tasks import success_table
from liftednet.errors import DataError


def test_success_is_reported_with_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "SUCCESS", 0.1)
    monkeypatch.setattr(tasks, "TEST", 100)
    monkeypatch.setattr(tasks, "BATCH", 5)
    monkeypatch.setattr(tasks, "CHECK_EVERY", 10)
    names = ("xor", "temporal order, 2 symbols")
    monkeypatch.setattr(tasks, "TASKS", {name: tasks.TASKS[name] for name in names})
    table = success_table(tmp_path / "runs.jsonl", length=10, steps=10, seeds=1)
    assert len(table.rows) == 8
    assert all("1/1, 10 steps" in cell for row in table.rows for cell in row[3:])


def test_the_report_at_toy_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        rolls = data.jsb_chorales()
    except DataError as error:
        pytest.skip(str(error))
    few = data.PianoRolls(
        *(music._some_songs(p, 4) for p in (rolls.train, rolls.valid, rolls.test))
    )
    monkeypatch.setattr(music, "ROLLS", {"MuseData": lambda: few, "JSB": lambda: few})
    monkeypatch.setattr(music, "JSB_HIDDEN", 4)
    monkeypatch.setattr(music, "RESERVOIR", 10)
    monkeypatch.setattr(tasks, "TEST", 50)
    monkeypatch.setattr(tasks, "BATCH", 5)
    monkeypatch.setattr(tasks, "CHECK_EVERY", 5)
    extent = music.MusicExtent(((50, 0.1, 1), (100, 0.1, 2)), 1, songs=3)
    small = replace(report._QUICK, length=10, steps=5, music=extent)
    monkeypatch.setattr(report, "_QUICK", small)
    text = report.run(tmp_path, quick=True, seeds=1).read_text()
    for piece in ("temporal simplex", "6.20", "echo state", "temporal_norms.png"):
        assert piece in text
