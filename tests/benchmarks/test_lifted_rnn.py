"""The tables of the lifted recurrent paper, at toy size."""

from __future__ import annotations

import csv

import pytest

from benchmarks.papers import lifted_rnn
from benchmarks.papers.lifted_rnn import (
    METHODS,
)

TOY = lifted_rnn._Size(cyclic=1, exact=1, together=1, sgd=1, gradients=1, echoes=1, longest=10)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(lifted_rnn, "_QUICK", TOY)
    monkeypatch.setattr(lifted_rnn, "START_STEPS", 1)
    return tmp_path / "lifted-rnn"


def test_tables_are_written_and_runs_resumed(folder, monkeypatch):
    text = lifted_rnn.run(folder, quick=True, seeds=1).read_text()
    assert all(method in text for method in METHODS)
    with (folder / "echo.csv").open() as file:
        rows = list(csv.reader(file))
    assert [row[0] for row in rows[1:]] == ["lag 1", "lag 2", "lag 3", "lag 4"]
    stored = (folder / "runs.jsonl").read_text()

    def refuse(run):
        raise AssertionError(f"{run} was there already")

    monkeypatch.setattr(lifted_rnn, "train_row", refuse)
    lifted_rnn.run(folder, quick=True, seeds=1)
    assert (folder / "runs.jsonl").read_text() == stored
