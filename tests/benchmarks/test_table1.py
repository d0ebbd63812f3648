"""Table 1 at toy size, and what its starts promise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.papers import table1
from benchmarks.papers.table1 import (
    QUICK,
    drawn,
    lifted,
    lifted_network,
    network_from,
    report,
    smoothed,
    train_by_sgd,
    unit_variance,
)
from liftednet.data import digits

DIGITS = digits()
SIZES = (64, 20, 15, 10)


def _passed(layers, x):
    for layer in layers:
        x = layer.apply(x).clamp(min=0)
    return x


@pytest.mark.parametrize("name", ["kaiming", "normal"])
def test_training_a_network_leaves_its_start_as_it_was(name):
    layers = drawn(name)(DIGITS, SIZES, 0)
    before = [layer.matrix.clone() for layer in layers]
    network = network_from(layers)
    train_by_sgd(network, DIGITS, 0.001, 1, 0)
    assert all(old.equal(new.matrix) for old, new in zip(before, layers, strict=True))


def test_unit_variance_holds_in_every_layer():
    layers = unit_variance(DIGITS, SIZES, 0)
    for number, layer in enumerate(layers):
        u = layer.apply(_passed(layers[:number], DIGITS.x_train))
        assert float(u.std()) == pytest.approx(1, rel=0.1)


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
