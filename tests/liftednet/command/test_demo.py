"""The demo at toy size, and what its table and sentence say of known figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from liftednet.command.demo import (
    FITTED_OUTPUT,
    KAIMING,
    LIFTED,
    PLANS,
    Curve,
    accuracy,
    compare,
    fit_output,
    kaiming,
    run_demo,
    table,
)
from liftednet.data import Classification

TOY = replace(PLANS["digits"], hidden=8, passes=1, epochs=1, batch=10)


@pytest.fixture(scope="module")
def data() -> Classification:
    """Three clouds of points around the corners of a triangle."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(90) % 3
    x = 3 * torch.eye(3)[y] + torch.randn(90, 3, generator=generator)
    return Classification(x[:60], y[:60], x[60:], y[60:], 3)


def test_the_control_keeps_the_hidden_layer_and_fits_the_output(data) -> None:
    start, other = kaiming(data, TOY, 0), kaiming(data, TOY, 1)
    control = fit_output(kaiming(data, TOY, 0), data, 0.1)
    drawn = next(start.parameters())
    assert torch.equal(drawn, next(control.parameters()))
    assert not torch.equal(drawn, next(other.parameters()))
    output = list(control.parameters())[2:]
    logits = control(data.x_train)
    loss = torch.nn.functional.cross_entropy(logits, data.y_train, reduction="sum")
    gradients = torch.autograd.grad(loss + 0.1 * output[0].square().sum(), output)
    assert max(float(gradient.abs().max()) for gradient in gradients) < 1e-2
    assert accuracy(control, data) > accuracy(start, data)


def test_every_start_is_trained_with_every_seed(data) -> None:
    curves = list(compare(data, TOY, range(2)))
    assert len({(curve.start, curve.seed) for curve in curves}) == len(curves) == 6
    (control,) = (x for x in curves if (x.start, x.seed) == (FITTED_OUTPUT, 1))
    untrained = fit_output(kaiming(data, TOY, 1), data, TOY.output_rho)
    assert control.accuracy[0] == accuracy(untrained, data)
    assert {len(curve.accuracy) for curve in curves} == {2}


def curves_with(ours: list[float], others: list[float]) -> list[Curve]:
    return [
        Curve(start, seed, (0.1, value, value), 0.5)
        for start, values in ((LIFTED, ours), (KAIMING, others), (FITTED_OUTPUT, [0.2, 0.3, 0.1]))
        for seed, value in enumerate(values)
    ]


def test_the_table_has_mean_and_deviation() -> None:
    shown = table(curves_with([0.90, 0.91, 0.92], [0.80, 0.81, 0.82]))
    cells = [list(column.cells) for column in shown.columns]
    assert cells[0] == [LIFTED, KAIMING, FITTED_OUTPUT]
    assert (cells[1][0], cells[3][0]) == ("0.50 s", "0.910 ± 0.010")


def test_the_whole_demo_at_toy_size(capsys) -> None:
    run_demo("digits", 2, replace(TOY, batch=200))
    said = capsys.readouterr().out
    for part in ("square_plus", "the declaration holds", "Kaiming", "untrained"):
        assert part in said
