"""Runs and their reports, and how settings are chosen."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from benchmarks.harness.exact import exact_gradients
from benchmarks.harness.report import Table, write_report
from benchmarks.harness.runs import Record, best_rate, finished, matching, run_all, tuned
from liftednet.models import LiftedMLP, Minibatch
from liftednet.models.methods.minibatch import BatchSteps


@dataclass(frozen=True)
class Case:
    method: str
    seed: int


SETTINGS = [Case(method, seed) for method in ("a", "b") for seed in (0, 1)]


def test_an_interrupted_grid_goes_on_where_it_stopped(tmp_path: Path) -> None:
    store = tmp_path / "deep" / "runs.jsonl"
    made: list[Case] = []

    def run(setting: Case) -> dict[str, float]:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(setting)
        return {"score": setting.seed + 0.5}

    with pytest.raises(KeyboardInterrupt):
        run_all(store, SETTINGS, run)
    # The interruption may also have cut a line in half.
    store.write_text(store.read_text() + '{"settings": {"kind"')
    again: list[Case] = []

    def resumed(setting: Case) -> dict[str, float]:
        again.append(setting)
        return {"score": setting.seed + 0.5}

    records = run_all(store, SETTINGS, resumed)
    assert made + again == SETTINGS
    assert [r.settings for r in records] == SETTINGS
    assert [r.outcome["score"] for r in records] == [0.5, 1.5, 0.5, 1.5]
    assert run_all(store, SETTINGS[::-1], resumed)[0].settings == SETTINGS[-1]
    assert finished(store, [*SETTINGS, Case("c", 0)]) == records
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


@dataclass(frozen=True)
class Setting:
    rate: float = 1e-3
    start: str = "normal"


@pytest.mark.parametrize("best", [1e-5, 1e-3, 0.3])
def test_a_search_goes_on_until_its_best_is_inside(best):
    tried = []

    def score(setting: Setting) -> float:
        tried.append(setting)
        return (setting.start == "good") - abs(math.log10(setting.rate / best))

    found, count = tuned(Setting(), [("rate", 3.0), ("start", ("good", "bad"))], score)
    assert found.start == "good"
    assert abs(math.log10(found.rate / best)) <= math.log10(3) / 2 + 0.05
    rates = [setting.rate for setting in tried]
    assert min(rates) < found.rate < max(rates)
    assert count == len(tried) == len(set(tried))


def test_the_control_has_the_gradients_of_autograd():
    source = torch.Generator().manual_seed(0)
    x = torch.randn(7, 5, generator=source, dtype=torch.float64)
    y = torch.randint(3, (7,), generator=source)
    model = LiftedMLP((5, 6, 4, 3), lam=0.5, standardize=False, seed=1, dtype=torch.float64)
    weights = [layer.to(x) for layer in model._first_weights()]
    steps = BatchSteps(model.structure, weights, Minibatch(), source)
    batch = model._data(x, y)

    def found() -> torch.Tensor:
        with torch.no_grad():
            found = steps.gradients
            return found.of(batch, steps.weights, found.counts(batch), 1.0)[1][0].parts[0]

    u = weights[0].apply(x).requires_grad_()
    output = weights[2].apply(weights[1].apply(u.relu()).relu())
    loss = functional.cross_entropy(output, y)
    (wanted,) = torch.autograd.grad(loss, u)
    with exact_gradients():
        assert torch.allclose(found(), wanted, atol=1e-12)
    assert not torch.allclose(found(), wanted, atol=1e-3 * float(wanted.abs().max()))
