"""Networks trained together are the networks trained alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.papers.networks import SequenceModel
from benchmarks.papers.temporal import methods, tasks
from benchmarks.papers.temporal.methods import METHODS, OPPONENTS, TASKS
from benchmarks.papers.temporal.stacks import NetworkStack, network_losses
from benchmarks.papers.temporal.tasks import TaskRun, train_all, train_task, train_together

STACKED = [name for name, method in METHODS.items() if method.stacks]


def runs_of(task: str, method: str, steps: int = 3) -> list[TaskRun]:
    cells = [(0.8, 0.1, 0), (1.2, 0.1, 0), (1.0, 0.3, 1)]
    return [TaskRun(task, method, radius, rate, steps, 10, seed) for radius, rate, seed in cells]


def alone(run: TaskRun) -> SequenceModel:
    """The network of a run, trained by itself."""
    task = TASKS[run.task]
    model = methods.network(task.features, task.outputs, run.radius, run.seed)
    tasks.train_network(model, run)
    return model


def test_only_plain_networks_stack() -> None:
    assert STACKED == ["plain", "clipped", "Nesterov, clipped"]
    assert not any(method.stacks for method in OPPONENTS.values())


@pytest.mark.parametrize("task", ["addition", "temporal order, 3 symbols"])
def test_outputs_and_losses_are_those_of_each_network(task: str) -> None:
    runs, own = runs_of(task, "plain"), TASKS[task]
    models = [methods.network(own.features, own.outputs, run.radius, run.seed) for run in runs]
    x, y, lengths = tasks._stacked_sequences(runs, 7, 3)
    outputs = NetworkStack(models).at_end(x, lengths)
    for k, model in enumerate(models):
        expected = model.at_end(x[k], lengths[k])
        torch.testing.assert_close(outputs[k], expected)
        losses = network_losses(own.loss, outputs, y)
        torch.testing.assert_close(losses[k], own.loss(expected, y[k]))


@pytest.mark.parametrize("method", STACKED)
@pytest.mark.parametrize("task", ["multiplication", "xor"])
def test_weights_after_some_steps_are_those_of_each_network(
    task: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, stacks = runs_of(task, method), []

    class Kept(NetworkStack):
        def __init__(self, models: list[SequenceModel]) -> None:
            super().__init__(models)
            stacks.append(self)

    monkeypatch.setattr(tasks, "NetworkStack", Kept)
    monkeypatch.setattr(tasks, "CHECK_EVERY", 3)
    train_together(runs)
    for k, run in enumerate(runs):
        for name, weight in alone(run).named_parameters():
            stacked = stacks[0].get_parameter(name.replace(".", "_"))[k]
            torch.testing.assert_close(stacked, weight, atol=1e-5, rtol=1e-4)


def test_outcomes_stop_at_success_and_are_stored_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "TEST", 40)
    monkeypatch.setattr(tasks, "CHECK_EVERY", 2)
    monkeypatch.setattr(tasks, "SUCCESS", 0.55)
    runs = runs_of("xor", "clipped", 20)
    records = train_all(tmp_path / "runs.jsonl", runs, "runs")
    assert [record.settings for record in records] == runs
    for record in records:
        expected = train_task(record.settings)
        assert record.outcome["steps"] == expected["steps"]
        assert record.outcome["shares"] == pytest.approx(expected["shares"], abs=0.051)
    again = train_all(tmp_path / "runs.jsonl", runs[:1], "runs")
    assert again == records[:1]
