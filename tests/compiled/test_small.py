"""Small fits in compiled loops: their judgment is torch's, and what Newton leaves is finished."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from liftednet import activations
from liftednet.activation import Activation
from liftednet.divergences import joint, tight
from liftednet.losses import SquaredError
from liftednet.penalties import L1, Nonnegative, Penalty, SquaredFrobenius
from liftednet.problems import (
    Design,
    Link,
    OutputFit,
    StateFit,
    WeightFit,
    Weights,
    state_fit,
    weight_fit,
)
from liftednet.solvers import choose, solve
from liftednet.solvers.compiled import small_rows, small_weight_rows

KNOWN: list[Activation] = [
    activations.ReLU(),
    activations.LeakyReLU(0.2),
    activations.Clipped(-0.5, 0.75),
    activations.Sigmoid(),
    activations.Tanh(),
    activations.Arctan(),
    activations.Sine(),
    activations.Softplus(),
    activations.ELU(),
]


def _normal(seed: int, *shape: int) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=source, dtype=torch.float64)


def states(activation: Activation, kind: Any, links: int, dtype: torch.dtype) -> StateFit:
    """Return a fit below none, one, or two links, the second with a softmax."""
    above, made = (kind(activation), tight(activations.Softmax())), []
    for number in range(links):
        target = above[number].activation.forward(_normal(1, 19, 3))
        offset = _normal(2, *((3,) if number else (19, 3)))
        weight = _normal(3, 4, 3).to(dtype)
        made.append(Link(above[number], weight, offset.to(dtype), target.to(dtype), 0.6))
    return StateFit(kind(activation), 2 * _normal(4, 19, 4).to(dtype), tuple(made), 0.7)


@pytest.mark.parametrize("links", [0, 2])
@pytest.mark.parametrize("kind", [joint, tight])
@pytest.mark.parametrize("activation", KNOWN, ids=repr)
def test_the_judge_of_states_is_that_of_torch(
    activation: Activation, kind: Any, links: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for dtype in (torch.float64, torch.float32) if links else (torch.float64,):
        problem = states(activation, kind, links, dtype)
        z = activation.forward(_normal(5, 19, 4)).to(dtype)
        found = problem.measure(z)
        with monkeypatch.context() as patch:
            patch.setattr(state_fit, "measured_by_loop", lambda *_: None)
            expected = problem.measure(z)
        assert found.objective == pytest.approx(expected.objective, rel=1e-12, abs=1e-12)
        assert found.residual == pytest.approx(expected.residual, rel=1e-6)  # scales in float32


@pytest.mark.parametrize("samples", [1, 3, 30])
@pytest.mark.parametrize("kind", [joint, tight])
@pytest.mark.parametrize("activation", [*KNOWN, activations.Softmax()], ids=repr)
def test_the_judge_of_weights_is_that_of_torch(
    activation: Activation, kind: Any, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, center = _normal(0, samples, 4), _normal(6, 4, 3)
    counts, offset = _normal(1, samples).abs(), _normal(2, samples, 3)
    targets = activation.forward(_normal(3, samples, 3))
    penalties: tuple[Penalty, ...] = (
        SquaredFrobenius(0.1),
        SquaredFrobenius(0.1, center),
        L1(0.1),
        Nonnegative(),
    )
    for number, penalty in enumerate(penalties):
        bias, far, more = number != 2, number % 2 == 0, number > 1
        design = Design(inputs + 100 * far, bias, counts if more else None)
        given = kind(activation), design, targets, penalty, 0.7, offset if more else None
        value = Weights(_normal(4, 4, 3).abs(), _normal(5, 3) if bias else None)
        found = WeightFit(*given).measure(value)
        with monkeypatch.context() as patch:
            patch.setattr(weight_fit, "looped", lambda *_: None)
            expected = WeightFit(*given).measure(value)
        assert found.objective == pytest.approx(expected.objective, rel=1e-11)
        assert found.residual == pytest.approx(expected.residual, rel=1e-8)


@pytest.mark.parametrize("activation", KNOWN, ids=repr)
def test_the_judge_of_outputs_is_that_of_torch(
    activation: Activation, monkeypatch: pytest.MonkeyPatch
) -> None:
    y, u = _normal(0, 7, 3), _normal(1, 7, 3)
    problem, z = OutputFit(SquaredError(), y, tight(activation), u, 0.7), activation.forward(u + 1)
    found = problem.measure(z)
    with monkeypatch.context() as patch:
        patch.setattr(SquaredError, "judged", lambda *_: None)
        expected = problem.measure(z)
    assert found == pytest.approx(expected, rel=1e-11)


def test_numbers_that_are_none_are_not_certified() -> None:
    problem = states(activations.Tanh(), tight, 1, torch.float64)
    weights = WeightFit(
        tight(activations.Tanh()), Design(_normal(0, 5, 2)), _normal(1, 5, 2) / 9, L1(0.1)
    )
    for fit, value in (
        (problem, torch.full((19, 4), torch.nan, dtype=torch.float64)),
        (weights, Weights(torch.full((2, 2), torch.nan, dtype=torch.float64), _normal(2, 2))),
    ):
        measured = fit.measure(value)  # type: ignore[arg-type]
        assert not measured.residual <= 1e-3


@pytest.mark.parametrize("kind", [joint, tight])
@pytest.mark.parametrize("activation", KNOWN, ids=repr)
def test_what_newton_leaves_is_finished(
    activation: Activation, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = states(activation, kind, 1, torch.float64).rows(slice(0, 2))
    weights = WeightFit(
        kind(activation), Design(_normal(0, 5, 2)),
        activation.forward(_normal(1, 5, 2)), SquaredFrobenius(0.1),
    )  # fmt: skip
    for fit, name, place in (
        (whole, "compiled-small", (small_rows, "newton_each")),
        (weights, "compiled-small-weights", (small_weight_rows, "newton_weights")),
    ):
        expected = solve(fit)
        assert choose(fit).name == expected.solver == name
        with monkeypatch.context() as patch:
            patch.setattr(*place, lambda *_: (1, False))
            found = solve(fit)
        assert found.solver != name and found.residual <= found.tolerance
        assert found.objective == pytest.approx(expected.objective, rel=1e-9)
