"""Table 1 at toy size, and what its starts promise."""

from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks.papers import table1
from benchmarks.papers.table1 import (
    QUICK,
    lifted,
    lifted_network,
    network_from,
    report,
    smoothed,
)
from liftednet.data import digits

DIGITS = digits()
SIZES = (64, 20, 15, 10)


def test_the_lifted_start_is_the_feedforward_rule_of_the_lifted_network():
    network = network_from(lifted(3)(DIGITS, SIZES, 0))
    model = lifted_network(SIZES, 3, 0).fit(DIGITS.x_train, smoothed(DIGITS.y_train, 10))
    with torch.no_grad():
        chances = network(DIGITS.x_test).softmax(1)
    assert torch.allclose(chances, model.predict_proba(DIGITS.x_test), atol=1e-5)


def test_the_whole_table_at_toy_size_and_its_second_call(tmp_path, monkeypatch):
    monkeypatch.setattr(table1, "mnist", digits)
    extent = replace(
        QUICK,
        samples=300,
        test_samples=100,
        architectures=("300",),
        paper_epochs=1,
        lifted_epochs=2,
        seeds=2,
    )
    text = report(tmp_path, extent).read_text()
    stores = {path: path.read_text() for path in tmp_path.glob("*.jsonl")}
    assert len(stores) == 2
    assert "| exact gradients, same step |" in text and "| Muon, tuned |" in text
    assert "0.898" in text
    report(tmp_path, extent)
    assert stores == {path: path.read_text() for path in tmp_path.glob("*.jsonl")}
