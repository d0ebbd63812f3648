"""The tables of the lifted recurrent paper, at toy size."""

from __future__ import annotations

import csv

import pytest

from benchmarks.papers import lifted_rnn
from benchmarks.papers.lifted_rnn import (
    ADAM_GROWING,
    METHODS,
    RecurrentRun,
    methods_for,
    prefixes,
    train_row,
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


def test_a_run_repeats_itself():
    run = RecurrentRun("echo", 0, "lifted, exact", 1, 0.0, seed=3)
    first, second = train_row(run), train_row(run)
    assert first["test"] == second["test"]
    assert first["curve"] == second["curve"]


def test_long_sequences_are_halved_and_short_ones_are_not():
    assert prefixes(400) == [50, 100, 200, 400]
    assert prefixes(75) == [75]
    assert ADAM_GROWING in methods_for(100)
    assert ADAM_GROWING not in methods_for(75)
