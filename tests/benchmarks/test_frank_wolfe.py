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
from benchmarks.harness.runs import Record
from benchmarks.papers.frank_wolfe import __main__ as report
from benchmarks.papers.frank_wolfe import activity, adding
from benchmarks.papers.frank_wolfe.training import (
    Budget,
    Noise,
    Rotations,
    Training,
    lstm,
    outputs_at_end,
    rotation_matrices,
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


def test_batches_are_changed_anew_every_time() -> None:
    x, y = first_symbols(30, 0)
    seen = []

    def shifted(x: torch.Tensor, source: torch.Generator) -> torch.Tensor:
        seen.append(x + torch.randn((), generator=source))
        return seen[-1]

    method = METHODS["Adam + clipping"]
    model = method.network(2, 8, 2)
    training = Training(model, method, 1e-3, cross_entropy, Budget(9, 30, 1), 0, shifted)
    training.run(data.Sequences.from_padded(x, y))
    # Every batch holds all samples, so that their means differ by the shifts alone.
    assert len({float(batch.mean()) for batch in seen}) == 9


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


def test_rotation_matrices_are_scipys() -> None:
    from scipy.spatial.transform import Rotation

    vectors = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = torch.from_numpy(Rotation.from_rotvec(vectors.numpy()).as_matrix()).mT
    assert torch.allclose(rotation_matrices(vectors), expected, atol=1e-12)


def test_a_sparse_lstm_sees_one_feature_a_gate_on_average() -> None:
    network = lstm(90, input_scale=2.0)(9, 8, 1)
    weight = network.recurrence.get_parameter("weight_ih_l0")
    assert int((weight != 0).sum()) == 360
    assert float(weight[weight != 0].detach().std()) == pytest.approx(2, rel=0.15)


def test_noise_is_of_the_given_deviation_and_new_every_time() -> None:
    source, x = torch.Generator().manual_seed(0), torch.full((1000, 5), 2.0)
    one, other = (Noise(0.3)(x, source) for _ in range(2))
    assert float(one.mean()) == pytest.approx(2, abs=0.02)
    assert float(one.std()) == pytest.approx(0.3, rel=0.05)
    assert float((one - other).std()) == pytest.approx(0.3 * 2**0.5, rel=0.05)


def test_validation_windows_are_those_of_other_persons() -> None:
    x = torch.arange(12.0).reshape(12, 1, 1)
    persons = torch.tensor([7, 7, 1, 1, 3, 3, 5, 5, 9, 9, 9, 1])
    windows = Classification(x, torch.arange(12) % 2, -x, torch.zeros(12).long(), 2)
    parts = activity.persons_apart(windows, persons)
    assert persons[parts.x_test.flatten().long()].tolist() == [7, 7, 1, 1, 1]
    assert persons[parts.x_train.flatten().long()].tolist() == [3, 3, 5, 5, 9, 9, 9]
    assert torch.equal(parts.y_test, windows.y_train[[0, 1, 2, 3, 11]])


def activity_records(
    accuracies: dict[str, list[float]], noisy: bool = False, loss: float = 0.1
) -> list[Record[activity.ActivityRun]]:
    return [
        Record(
            activity.ActivityRun(name, noisy, 0.1, 0.0, 0.2, 5, seed),
            {"accuracy": accuracy, "losses": [loss]},
            1.0,
        )
        for name, found in accuracies.items()
        for seed, accuracy in enumerate(found)
    ]


def test_aims_and_divergence_are_named_in_the_table() -> None:
    found = {"SGD": [0.5], "LSTM + Frank-Wolfe": [0.96, 0.94], "IndRNN + Frank-Wolfe": [0.96]}
    records = activity_records(found, loss=math.nan)
    table = activity.accuracy_table(records, activity.Extent(1, 1))
    assert "1 diverged" in table.rows[0][2]
    assert [row[4] for row in table.rows] == ["", "reached", "0.55 short"]


def test_the_best_over_training_is_of_all_looks_and_the_last_step() -> None:
    kept = activity_records({"SGD": [0.5, 0.75], "Truncated": [0.5], "LSTM + Adam": [0.5, 0.6]})
    looks = ([0.625, 0.25], [0.5, 0.25], [0.4, 0.3], [0.5])  # one of two LSTMs without
    for place, seen in enumerate(looks):
        more = {"accuracies": seen, "processor": 3.0}
        kept[place] = replace(kept[place], outcome={**kept[place].outcome, **more})
    table = activity.accuracy_table(kept, activity.Extent(1, 1))
    assert [row[3] for row in table.rows] == ["68.75 ± 8.84 (2)", "50.00 (1)", "not kept"]
    assert [row[-1] for row in table.rows] == ["3", "3", "2"]  # processor time where it was kept


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
