"""The demo at toy size, and what its table and sentence say of known figures."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from liftednet.activations import ReLU
from liftednet.command.demo import (
    Plan,
    Setting,
    all_curves,
    draw_curves,
    run_demo,
    sentence,
    table,
)
from liftednet.command.demo_starts import (
    FITTED_OUTPUT,
    LIFTED,
    Curve,
    Samples,
    Schedule,
    Task,
    accuracy,
    compare,
    drawn,
    drawn_starts,
    fitted_output,
)
from liftednet.models import FullBatch, Minibatch


@pytest.fixture(scope="module")
def task() -> Task:
    """Three clouds of points around the corners of a triangle."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(90) % 3
    x = 3 * torch.eye(3)[y] + torch.randn(90, 3, generator=generator)
    parts = [Samples(x[rows], y[rows]) for rows in torch.arange(90).split(30)]
    return Task((3, 8, 3), ReLU(), *parts)


def matrix(network: nn.Sequential, layer: int) -> torch.Tensor:
    linear = network[2 * layer]
    assert isinstance(linear, nn.Linear)
    return linear.weight


def test_every_start_draws_another_network_for_another_seed(task) -> None:
    for start in [*drawn_starts().values(), fitted_output(0.1)]:
        one, same, other = (matrix(start(task, seed), 0) for seed in (0, 0, 1))
        assert torch.equal(one, same)
        assert not torch.equal(one, other)


def test_the_control_keeps_the_hidden_layer_and_fits_the_output(task) -> None:
    start, control = drawn("kaiming")(task, 0), fitted_output(0.1)(task, 0)
    assert torch.equal(matrix(start, 0), matrix(control, 0))
    logits = control(task.train.x)
    loss = torch.nn.functional.cross_entropy(logits, task.train.y, reduction="sum")
    loss = loss + 0.1 * matrix(control, 1).square().sum()
    gradients = torch.autograd.grad(loss, list(control[2].parameters()))
    assert max(float(gradient.abs().max()) for gradient in gradients) < 1e-2
    assert accuracy(control, task.train) > accuracy(start, task.train)


def test_every_start_is_trained_with_every_seed_and_rate(task) -> None:
    starts = {"a": drawn("kaiming"), "b": drawn("xavier")}
    curves = list(compare(task, starts, range(2), Schedule((1e-2, 1e-3), epochs=2, batch=10)))
    assert len({(curve.start, curve.rate, curve.seed) for curve in curves}) == 8
    by_rate = [curve for curve in curves if (curve.start, curve.seed) == ("a", 0)]
    assert len({curve.accuracy[0] for curve in by_rate}) == 1
    assert {len(curve.accuracy) for curve in curves} == {3}


def curves_with(ours: list[float], others: list[float]) -> list[Curve]:
    return [
        Curve(start, 0.01, seed, (0.1, value, value), 0.5, 0.1)
        for start, values in ((LIFTED, ours), ("Kaiming", others), ("bad", [0.2, 0.3, 0.1]))
        for seed, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("ours", "others", "verdict"),
    [
        ([0.90, 0.91, 0.92], [0.80, 0.81, 0.83], "ahead of Kaiming (0.910 against 0.813)"),
        ([0.80, 0.81, 0.83], [0.90, 0.91, 0.92], "behind Kaiming (0.813 against 0.910)"),
        ([0.80, 0.90, 0.85], [0.90, 0.80, 0.84], "level with Kaiming (0.850 against 0.847)"),
    ],
)
def test_the_sentence_follows_the_figures(ours, others, verdict) -> None:
    said = sentence(curves_with(ours, others))
    assert f"{verdict} after 1 epoch and {verdict} after 2 epochs" in said


def test_the_table_has_mean_and_deviation() -> None:
    shown = table(curves_with([0.90, 0.91, 0.92], [0.80, 0.81, 0.82]))
    cells = [list(column.cells) for column in shown.columns]
    assert cells[0] == [LIFTED, "Kaiming", "bad"]
    assert cells[1][0] == "0.50 s"
    assert cells[3][0] == "0.910 ± 0.010"


@pytest.mark.parametrize(("whole", "rest"), [(2, 3), (1, 1)])
def test_an_interrupt_keeps_the_seeds_that_are_finished(whole, rest, task, monkeypatch) -> None:
    made = curves_with([0.9] * 3, [0.8] * 3)
    made.sort(key=lambda curve: curve.seed)

    def stopped(*_):
        yield from made[: 3 * whole + rest - 1]
        raise KeyboardInterrupt

    monkeypatch.setattr("liftednet.command.demo.compare", stopped)
    starts = dict.fromkeys("abc", drawn("kaiming"))
    if whole < 2:
        with pytest.raises(KeyboardInterrupt):
            all_curves(task, starts, range(3), Schedule((0.01,)))
    else:
        assert all_curves(task, starts, range(3), Schedule((0.01,))) == made[: 3 * whole]


def test_without_matplotlib_the_demo_goes_on(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    said = draw_curves(curves_with([0.9], [0.8]), tmp_path / "picture.png", "digits")
    assert "pip install 'liftednet[plots]'" in said
    assert not (tmp_path / "picture.png").exists()


def test_the_whole_demo_at_toy_size(tmp_path, capsys) -> None:
    settings = (Setting(0.1, 0.1, FullBatch(sweeps=1)), Setting(1.0, 0.1, Minibatch(epochs=1)))
    plan = Plan(8, settings, (0.1, 1.0), Schedule((1e-2, 1e-3), epochs=1, batch=200))
    run_demo("digits", 2, tmp_path, plan)
    said = capsys.readouterr().out
    for part in ("SquarePlus(): the declaration holds", "by the lifted rule", FITTED_OUTPUT):
        assert part in said
    assert "The lifted start against the best other start" in said
    assert (tmp_path / "demo-digits.png").stat().st_size > 10_000
