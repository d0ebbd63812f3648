"""Table 1 at toy size, and what its starts promise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.papers.table1 import data, runs
from benchmarks.papers.table1.extent import QUICK, Comparison
from benchmarks.papers.table1.report import report
from benchmarks.papers.table1.starts import (
    drawn,
    fitted_head,
    lifted,
    lifted_network,
    network_from,
    paper_starts,
    sampled_where_it_matters,
    smoothed,
    trained_as_long,
    unit_variance,
)
from liftednet.command.demo_starts import Samples, accuracy
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
    runs.train(network, DIGITS, runs.OPTIMIZERS["SGD"], 0.1, 1, 0)
    assert all(old.equal(new.matrix) for old, new in zip(before, layers, strict=True))


def test_unit_variance_holds_in_every_layer():
    layers = unit_variance(DIGITS, SIZES, 0)
    for number, layer in enumerate(layers):
        u = layer.apply(_passed(layers[:number], DIGITS.x_train))
        assert float(u.std()) == pytest.approx(1, rel=0.1)


def test_sampled_units_go_from_zero_to_one_between_two_samples_of_different_classes():
    layers = sampled_where_it_matters(DIGITS, SIZES, 0)
    x, y = DIGITS.x_train.double(), DIGITS.y_train
    bias = layers[0].bias
    assert bias is not None
    u = x @ layers[0].matrix.double() + bias.double()
    for unit in range(20):
        zeros = (u[:, unit].abs() < 1e-4).nonzero()[:, 0]
        ones = ((u[:, unit] - 1).abs() < 1e-4).nonzero()[:, 0]
        step = layers[0].matrix[:, unit].double()
        span = step / step.square().sum()
        found = [
            (a, b) for a in zeros for b in ones if torch.allclose(x[b] - x[a], span, atol=1e-4)
        ]
        assert any(y[a] != y[b] for a, b in found)


def test_a_fitted_head_and_a_trained_control_are_better_than_a_mere_draw():
    test = Samples(DIGITS.x_test, DIGITS.y_test)
    accuracies = [
        accuracy(network_from(start(DIGITS, (64, 100, 10), 0)), test)
        for start in (drawn("kaiming"), fitted_head, trained_as_long(15))
    ]
    assert accuracies[0] < 0.3
    assert accuracies[1] > 0.9 and accuracies[2] > 0.6


def test_the_lifted_start_is_the_feedforward_rule_of_the_lifted_network():
    network = network_from(lifted(3)(DIGITS, SIZES, 0))
    model = lifted_network(SIZES, 3, 0).fit(DIGITS.x_train, smoothed(DIGITS.y_train, 10))
    with torch.no_grad():
        chances = network(DIGITS.x_test).softmax(1)
    assert torch.allclose(chances, model.predict_proba(DIGITS.x_test), atol=1e-5)


def test_biases_are_those_of_the_paper():
    for named in paper_starts(1)[:3]:
        for layer in named.start(DIGITS, SIZES, 0):
            assert layer.bias is not None
            assert layer.bias.unique().tolist() == pytest.approx([0.1])


def test_the_whole_table_at_toy_size_and_its_second_call(tmp_path, monkeypatch):
    monkeypatch.setitem(data.SOURCES, "mnist", data.Source(digits))
    extent = replace(
        QUICK,
        samples=300,
        test_samples=100,
        architectures=("300",),
        opponents=("300",),
        paper_epochs=1,
        lifted_epochs=2,
        compared=(Comparison("digits", "300", 2),),
        epochs=1,
        seeds=2,
        rates=(("Adam", 1e-3), ("SGD", 1e-1)),
    )
    text = report(tmp_path, extent).read_text()
    stores = {path: path.read_text() for path in tmp_path.glob("*.jsonl")}
    assert len(stores) == 3
    assert "| Kaiming, fitted head |" in text and "0.898" in text
    assert "| exact gradients, same step |" in text and "| Muon, tuned |" in text
    assert (tmp_path / "curves.png").stat().st_size > 0
    report(tmp_path, extent)
    assert stores == {path: path.read_text() for path in tmp_path.glob("*.jsonl")}
    (tmp_path / "best_rates.jsonl").write_text(
        "".join(
            line + "\n"
            for line in stores[tmp_path / "best_rates.jsonl"].splitlines()
            if '"start": "LSUV"' not in line or '"held_out": true' in line
        )
    )
    partial = report(tmp_path, replace(extent, stored_only=True, seeds=2)).read_text()
    assert "| SWIM |" in partial and "| LSUV |" not in partial
    cells = (tmp_path / "best_rates_digits_300.csv").read_text()
    (tmp_path / "best_rates.jsonl").unlink()
    kept = report(tmp_path, replace(extent, stored_only=True, seeds=2)).read_text()
    assert kept == partial and cells == (tmp_path / "best_rates_digits_300.csv").read_text()
