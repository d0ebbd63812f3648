"""Losses against torch, SciPy, scikit-learn and CVXPY; what does not fit is refused."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import QuantileRegressor
from torch.nn import functional

from liftednet import activations
from liftednet.divergences import joint, tight
from liftednet.errors import DataError, DeclarationError
from liftednet.losses import (
    BinaryCrossEntropy,
    CrossEntropy,
    Declared,
    Huber,
    OutputLoss,
    Quantile,
    SimplexCrossEntropy,
    SquaredError,
    simplex_states,
)
from liftednet.models import LiftedMLP
from liftednet.models.methods import FullBatch, Minibatch
from liftednet.problems import OutputFit
from liftednet.solvers import Reference, solve

CLASSES = 4


@pytest.fixture
def u(generator):
    return 3 * torch.randn(10, CLASSES, dtype=torch.float64, generator=generator)


def entropy(y):
    return torch.special.entr(y).sum()


def test_cross_entropy_of_soft_labels_is_torch_s_less_their_entropy(u, generator):
    y = torch.rand(10, CLASSES, dtype=torch.float64, generator=generator)
    y = y / y.sum(-1, keepdim=True)
    loss = CrossEntropy()
    found = loss.divergence.value(loss.encode(y, CLASSES), u)
    torch.testing.assert_close(found, functional.cross_entropy(u, y, reduction="sum") - entropy(y))


@pytest.mark.parametrize("soft", [False, True])
def test_binary_cross_entropy_is_torch_s(u, soft, generator):
    y = torch.rand(10, CLASSES, dtype=torch.float64, generator=generator)
    y = y if soft else y.round()
    loss = BinaryCrossEntropy()
    found = loss.divergence.value(loss.encode(y, CLASSES), u)
    right = functional.binary_cross_entropy_with_logits(u, y, reduction="sum")
    torch.testing.assert_close(found, right - entropy(y) - entropy(1 - y))


def test_simplex_cross_entropy_at_a_corner():
    """0 log 0 is 0, and a label that has no probability costs infinitely much."""
    y = torch.eye(3, dtype=torch.float64)
    assert float(SimplexCrossEntropy().output_value(y, y)) == 0.0
    assert float(SimplexCrossEntropy().output_value(y, y.roll(1, 0))) == np.inf


@pytest.mark.parametrize("loss", [SquaredError(), SimplexCrossEntropy()], ids=type)
def test_output_losses_state_in_cvxpy_what_torch_computes(loss, u):
    z, y = u.softmax(-1), (u * 0.3).softmax(-1)
    stated = loss.expression(cp.Constant(y.numpy()), cp.Constant(z.numpy())).value
    assert float(loss.output_value(y, z)) == pytest.approx(float(stated))


def test_predictions_are_labels_where_labels_were_given(u):
    for loss in (CrossEntropy(), SimplexCrossEntropy()):
        assert torch.equal(loss.decode(u), u.argmax(-1))
    binary = BinaryCrossEntropy()
    assert torch.equal(binary.decode(binary.divergence.activation.forward(u)), (u > 0).long())
    assert torch.equal(SquaredError().decode(u), u)


LABELS = torch.tensor([0, 1, 2, 3])
UNIFORM = torch.full((2, CLASSES), 0.25)
REFUSED = {
    "label too large": (CrossEntropy(), LABELS + 1, "labels from 0 to 3"),
    "negative label": (CrossEntropy(), LABELS - 1, "labels from 0 to 3"),
    "one class only": (CrossEntropy(), torch.zeros(4, dtype=torch.int64), "two classes"),
    "one class only, simplex": (SimplexCrossEntropy(), torch.ones(4).long(), "two classes"),
    "integer matrix": (CrossEntropy(), torch.eye(CLASSES).long(), "probabilities"),
    "real labels": (CrossEntropy(), LABELS.double(), "integer labels"),
    "wrong width": (CrossEntropy(), torch.full((2, 3), 1 / 3), r"\(2, 3\)"),
    "sum not 1": (CrossEntropy(), 2 * UNIFORM, "sum 1"),
    "negative probability": (CrossEntropy(), UNIFORM - torch.eye(2, CLASSES), "nonnegative"),
    "not a number": (CrossEntropy(), UNIFORM * torch.nan, "NaN"),
    "not a number, binary": (BinaryCrossEntropy(), UNIFORM * torch.nan, "NaN"),
    "infinite": (SquaredError(), UNIFORM * torch.inf, "infinite"),
    "empty": (CrossEntropy(), LABELS[:0], "empty"),
    "target above 1": (BinaryCrossEntropy(), 5 * UNIFORM, r"\[0, 1\]"),
    "target below 0": (BinaryCrossEntropy(), -UNIFORM, r"\[0, 1\]"),
    "integer targets": (SquaredError(), LABELS, "floating point"),
    "targets of another width": (SquaredError(), torch.zeros(5, 3), r"\(samples, 4\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(case):
    loss, y, message = REFUSED[case]
    with pytest.raises(DataError, match=message):
        loss.encode(y, CLASSES)


def test_binary_labels_may_be_integers_or_booleans():
    y = torch.tensor([1, 0, 1])
    right = torch.tensor([[1.0], [0.0], [1.0]], dtype=torch.float64)
    assert torch.equal(BinaryCrossEntropy().encode(y, 1), right)
    assert torch.equal(BinaryCrossEntropy().encode(y.bool(), 1), right)


def test_the_simplex_loss_asks_for_outputs_on_the_simplex():
    with pytest.raises(DeclarationError, match="SimplexProjection"):
        SimplexCrossEntropy().require_activation(activations.Softmax())


@given(s=st.floats(-1e8, 1e8), a=st.just(0.0) | st.floats(1e-12, 1e6))
def test_simplex_states_solve_their_equation(s, a):
    """z - a / z = s, z >= 0, as far as float64 can tell, with no cancellation for s < 0."""
    z = float(simplex_states(*(torch.tensor([x], dtype=torch.float64) for x in (a, s))))
    assert z >= 0
    assert z * z - a == pytest.approx(s * z, rel=1e-9, abs=1e-9 * (z * z + a))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_example_of_the_invalid_bound_is_solved(dtype):
    """Eq. (15): the states at the multiplier, in both types, whatever the printed bound says."""
    y = torch.eye(10, dtype=dtype)[:1]
    x0 = torch.full((1, 10), -0.1, dtype=dtype)
    x0[0, 0] = 1.0
    fit = OutputFit(SimplexCrossEntropy(), y, joint(activations.SimplexProjection()), x0, 2.0)
    z = solve(fit).value
    half = (x0.double() - 0.5) / 2
    right = half + (half.square() + y.double() / 2).sqrt()
    torch.testing.assert_close(z.double(), right, rtol=1e-5, atol=1e-6)


LOSSES = (Quantile(0.3), Huber(0.7))
OUTPUTS = (
    activations.Identity(), activations.ReLU(), activations.Sigmoid(), activations.LeakyReLU(0.2),
    activations.Sign(), activations.Softplus(),
)  # fmt: skip


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
        LiftedMLP((2, 4, 1), loss=loss, method=method, standardize=False).fit(x, y)
        for loss in (Declared(huber_in_cvxpy), Huber(0.7))  # the first has raw targets
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
