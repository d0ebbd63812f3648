"""Quantile, Huber and declared losses against CVXPY, scikit-learn and torch."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import pytest
import torch
from sklearn.linear_model import QuantileRegressor
from torch.nn import functional

from liftednet import activations
from liftednet.divergences import tight
from liftednet.errors import DataError, DeclarationError
from liftednet.losses import Declared, Huber, OutputLoss, Quantile
from liftednet.models import LiftedMLP
from liftednet.models.methods import FullBatch, Minibatch
from liftednet.problems import OutputFit
from liftednet.solvers import Reference, solve

LOSSES = (Quantile(0.3), Huber(0.7))
OUTPUTS = (
    activations.Identity(),
    activations.ReLU(),
    activations.Sigmoid(),
    activations.LeakyReLU(0.2),
    activations.Sign(),
    activations.Softplus(),
)


def fit(loss: OutputLoss, activation: Any, dtype: torch.dtype = torch.float64) -> OutputFit:
    generator = torch.Generator().manual_seed(1)
    y, u = torch.randn(2, 12, 3, generator=generator, dtype=torch.float64).to(dtype)
    return OutputFit(loss, y, tight(activation), 2 * u, 0.7)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("activation", OUTPUTS, ids=repr)
def test_the_closed_form_is_the_minimum_that_cvxpy_finds(loss: OutputLoss, activation: Any) -> None:
    problem = fit(loss, activation)
    found, reference = solve(problem), solve(problem, "reference")
    assert found.solver == "closed-form"
    assert found.residual < 1e-12
    assert found.objective == pytest.approx(reference.objective, rel=1e-8)
    single = solve(fit(loss, activation, torch.float32))
    torch.testing.assert_close(single.value, found.value.float(), rtol=1e-4, atol=1e-5)
    worse = problem.measure(found.value * 0.999 + 1e-4)
    assert worse.residual > 1e-5


def test_values_are_those_of_the_definitions(generator: torch.Generator) -> None:
    y, z = torch.randn(2, 20, 3, generator=generator, dtype=torch.float64)
    right = functional.huber_loss(z, y, reduction="none", delta=0.7).sum(-1)
    torch.testing.assert_close(Huber(0.7).output_values(y, z), right)
    pinball = torch.where(y > z, 0.3 * (y - z), 0.7 * (z - y)).sum(-1)
    torch.testing.assert_close(Quantile(0.3).output_values(y, z), pinball)
    for loss in LOSSES:
        stated: Any = loss.expression(cp.Constant(y.numpy()), cp.Constant(z.numpy())).value
        assert float(loss.output_value(y, z)) == pytest.approx(float(stated))


def skewed(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs, and targets of a line with noise to one side."""
    x = torch.randn(120, 3, generator=generator, dtype=torch.float64)
    noise = torch.randn(120, generator=generator, dtype=torch.float64).exp()
    return x, 100 * (x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + noise)


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_a_linear_quantile_is_scikit_learn_s_within_the_rounding_of_the_kink(
    level: float, generator: torch.Generator
) -> None:
    x, y = skewed(generator)
    right = QuantileRegressor(quantile=level, alpha=0, solver="highs").fit(x, y).predict(x)
    lam, method = 1.0, FullBatch(sweeps=300, tolerance=1e-7)
    model = LiftedMLP(
        (3, 1), loss=Quantile(level), lam=lam, rho=1e-9, method=method, standardize=False
    ).fit(x, y)

    def pinball(prediction: torch.Tensor) -> float:
        return float(Quantile(level).output_values(y[:, None], prediction).mean())

    least, found = pinball(torch.from_numpy(right)[:, None]), pinball(model.forward(x))
    assert -1e-9 <= found - least <= max(level, 1 - level) ** 2 / (2 * lam)
    below = (y[:, None] < model.forward(x)).double().mean()
    assert float(below) == pytest.approx(level, abs=0.03)


def huber_in_cvxpy(y: Any, z: Any) -> Any:
    delta: Any = 0.7
    return cp.sum(cp.huber(y - z, delta)) / 2


@pytest.mark.parametrize("activation", [activations.Identity(), activations.Sigmoid()], ids=repr)
def test_a_declared_loss_is_solved_and_certified_by_cvxpy(activation: Any) -> None:
    found = solve(fit(Declared(huber_in_cvxpy), activation))
    right = solve(fit(Huber(0.7), activation))
    assert found.solver == "reference"
    assert found.residual < 1e-6
    assert found.objective == pytest.approx(right.objective, rel=1e-8)
    torch.testing.assert_close(found.value, right.value, rtol=1e-5, atol=1e-5)


def test_a_rough_solution_of_a_declared_loss_is_not_certified() -> None:
    rough = Reference("SCS", {"eps_abs": 1e-1, "eps_rel": 1e-1})
    found = solve(fit(Declared(huber_in_cvxpy), activations.Sigmoid()), rough)
    assert found.residual > 1e-4


def test_a_declared_loss_that_is_not_convex_is_refused() -> None:
    with pytest.raises(DeclarationError, match="DCP"):
        solve(fit(Declared(lambda y, z: -cp.sum_squares(y - z)), activations.Identity()))
    with pytest.raises(DeclarationError, match=r"Declared.*cannot be stated"):
        wrong: Any = lambda y, z: y.nothing  # noqa: E731
        Declared(wrong).output_values(torch.zeros(2, 1), torch.zeros(2, 1))


@pytest.mark.parametrize("method", [FullBatch(sweeps=4), Minibatch(epochs=1, batch_size=10)])
def test_networks_are_trained_by_declared_losses_as_by_those_of_the_catalogue(
    method: Any, generator: torch.Generator
) -> None:
    x = torch.randn(20, 2, generator=generator, dtype=torch.float64)
    y = x.prod(1)
    one, other = (
        LiftedMLP((2, 4, 1), loss=loss, method=method).fit(x, y)
        for loss in (Declared(huber_in_cvxpy), Huber(0.7))
    )
    torch.testing.assert_close(one.forward(x), other.forward(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.5, 2, "a"])
def test_numbers_out_of_range_are_refused(level: Any) -> None:
    with pytest.raises(DataError, match="level of a quantile"):
        Quantile(level)
    with pytest.raises(DataError, match="delta"):
        Huber(-1.0)


def test_coupled_outputs_and_labels_are_refused() -> None:
    with pytest.raises(DeclarationError, match="unit by unit"):
        LiftedMLP((2, 3), (activations.Softmax(),), loss=Quantile())
    with pytest.raises(DataError, match="floating point"):
        Quantile().encode(torch.arange(3), 1)
