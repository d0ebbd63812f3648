"""The training loop of the Frank-Wolfe paper, its methods, and the report at toy size."""

from __future__ import annotations

import math
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
    Rotations,
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


def test_a_diverging_run_ends_with_nan_and_is_named() -> None:
    x, y = first_symbols(50, 0)
    method = METHODS["Frank-Wolfe K = 5"]
    model = method.network(2, 8, 2)
    training = Training(model, method, 1e-3, cross_entropy, Budget(60, 10, 2), 0)
    training.run(data.Sequences.from_padded(x * 1e38, y))
    assert math.isnan(training.losses[-1])
    outcomes = [{"error": 0.5, "losses": training.losses}, {"error": 0.25, "losses": [0.1]}]
    assert adding._cell(outcomes) == "0.2500 (1), 1 diverged"


def test_frank_wolfe_spends_the_same_gradients_as_adam() -> None:
    x, y = first_symbols(50, 0)
    for name in ("Adam + clipping", "Frank-Wolfe K = 5", "Frank-Wolfe K = 10"):
        model = METHODS[name].network(2, 8, 2)
        calls = 0

        def counted(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            nonlocal calls
            calls += 1
            return cross_entropy(outputs, labels)

        Training(model, METHODS[name], 1e-3, counted, Budget(60, 10, 2), 0).run(
            data.Sequences.from_padded(x, y)
        )
        assert calls == 60


def test_rotations_turn_gravity_of_all_sensors_alike() -> None:
    source = torch.Generator().manual_seed(0)
    mean, deviation = torch.randn(6, generator=source), torch.rand(6, generator=source) + 0.5
    vector = torch.tensor([3.0, 4.0, 12.0])
    # The same vector on both sensors, at every step, in their own units.
    x = ((vector.repeat(2) - mean) / deviation).expand(5000, 2, 6)
    turned = Rotations(mean, deviation, 0.1)(x, source) * deviation + mean
    one, other = turned[..., :3], turned[..., 3:]
    assert torch.allclose(one, other, atol=1e-4)
    assert torch.allclose(one[:, 0], one[:, 1], atol=1e-4)
    assert torch.allclose(one.norm(dim=2), torch.tensor(13.0), atol=1e-4)
    # Two axes are at right angles to it: E[cos a] is 1 - E[a^2] / 2 with a^2 of 2 times 0.01.
    cosine = (one[:, 0] @ vector) / 169
    assert float(cosine.mean()) == pytest.approx(1 - 0.01, abs=1e-3)


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
