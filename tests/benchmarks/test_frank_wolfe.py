"""The training loop of the Frank-Wolfe paper, its methods, and the report at toy size."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from benchmarks import data
from benchmarks.papers.frank_wolfe import __main__ as report
from benchmarks.papers.frank_wolfe import activity, adding
from benchmarks.papers.frank_wolfe.training import (
    Budget,
    Training,
    outputs_at_end,
    table_methods,
)
from benchmarks.papers.networks import SequenceModel
from liftednet.data import Classification
from liftednet.errors import DataError

METHODS = {
    method.name: method for method in table_methods(hidden=6, segment=4, layers=2, noisy=True)
}


def first_symbols(samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences whose label is the sign of their mean: every method can learn it."""
    x = torch.randn(samples, 8, 2, generator=torch.Generator().manual_seed(seed))
    return x, (x[..., 0].mean(1) > 0).long()


def accuracy(model: SequenceModel, x: torch.Tensor, y: torch.Tensor) -> float:
    return float((outputs_at_end(model, x).argmax(1) == y).double().mean())


@pytest.mark.parametrize("name", METHODS)
def test_every_method_learns_and_repeats_itself(name: str) -> None:
    x, y = first_symbols(200, 0)
    results = []
    for again in (False, True):
        torch.manual_seed(0)
        method = METHODS[name]
        model = method.network(2, 8, 2)
        rate = {"SGD": 0.3, "SGD + clipping": 0.3}.get(name, 0.03)
        training = Training(model, method, rate, cross_entropy, Budget(200, 20, 4), seed=1)
        if again:  # looking changes nothing
            training.look = partial(accuracy, model, x, y)
        training.run(data.Sequences.from_padded(x, y))
        results.append((training.losses, outputs_at_end(model, x)))
    losses, outputs = results[0]
    assert losses == results[1][0] and torch.equal(outputs, results[1][1])
    assert len(losses) == len(training.seen) == 4
    assert (outputs.argmax(1) == y).double().mean() > 0.8


def test_validation_windows_are_those_of_other_persons() -> None:
    x = torch.arange(12.0).reshape(12, 1, 1)
    persons = torch.tensor([7, 7, 1, 1, 3, 3, 5, 5, 9, 9, 9, 1])
    windows = Classification(x, torch.arange(12) % 2, -x, torch.zeros(12).long(), 2)
    parts = activity.persons_apart(windows, persons)
    assert persons[parts.x_test.flatten().long()].tolist() == [7, 7, 1, 1, 1]
    assert persons[parts.x_train.flatten().long()].tolist() == [3, 3, 5, 5, 9, 9, 9]
    assert torch.equal(parts.y_test, windows.y_train[[0, 1, 2, 3, 11]])


def test_the_report_at_toy_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        data.har()
    except DataError as error:
        pytest.skip(str(error))
    for module in (activity, adding):
        monkeypatch.setattr(module, "HIDDEN", 4)
    monkeypatch.setattr(activity, "LAYERS", 2)
    quick = replace(
        report._QUICK,
        windows=40,
        lengths=(10, 12),
        adding_gradients=20,
    )
    monkeypatch.setattr(report, "_QUICK", quick)
    text = report.run(tmp_path, quick=True, seeds=1).read_text()
    for piece in ("94.11", "Noisy-HAR-2", "Adding task", "Made on"):
        assert piece in text
