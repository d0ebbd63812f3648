"""Maps that jump: their levels, and the divergence that has a margin beside the jump."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch

from liftednet import data, to_torch
from liftednet.activations import Clipped, Quantized, ReLU, Sign
from liftednet.check import check_activation
from liftednet.divergences import Margin
from liftednet.errors import DataError, DeclarationError
from liftednet.models import LiftedMLP, Minibatch
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import WeightFit
from liftednet.samples import Design
from liftednet.solvers import solve

STEPS = [Quantized(), Quantized(2, -1.0, 1.0), Quantized(5, -1.0, 2.0), Sign()]


@pytest.mark.parametrize("activation", [*STEPS, Quantized(3, -1.0, 1.0)], ids=repr)
def test_the_declaration_holds(activation):
    assert check_activation(activation).passed


def test_the_nearest_level_is_taken(generator):
    u = 2 * torch.randn(50, 3, dtype=torch.float64, generator=generator)
    thirds = np.round((u.numpy().clip(-1, 2) + 1) / 0.75) * 0.75 - 1
    np.testing.assert_allclose(Quantized(5, -1.0, 2.0).forward(u), thirds)
    np.testing.assert_allclose(Quantized().forward(u), u.numpy() > 0.5)


def test_the_margin_of_a_sign_is_a_hinge(generator):
    u = 2 * torch.randn(40, 1, dtype=torch.float64, generator=generator)
    v = torch.randn(40, 1, dtype=torch.float64, generator=generator).sign()
    product = (u * v)[:, 0]
    squared = torch.where(product > -1, (1 - product).clamp(min=0).square() / 2, -2 * product)
    torch.testing.assert_close(Margin(Quantized(2, -1.0, 1.0)).values(v, u), squared)
    logistic = torch.nn.functional.softplus(-2 * product)
    torch.testing.assert_close(Margin(Sign()).values(v, u), logistic)
    for activation in (Quantized(2, -1.0, 1.0), Sign()):  # both sides of the jump are pushed off it
        torch.testing.assert_close(Margin(activation).link_gradient(0 * u) - v, -v)


@pytest.mark.parametrize("activation", STEPS, ids=repr)
def test_it_is_least_at_the_forward_map_and_smooth(activation, generator):
    divergence = Margin(activation)
    u = 2 * torch.randn(30, 1, dtype=torch.float64, generator=generator)
    values = activation.forward(torch.linspace(-3, 3, 61, dtype=torch.float64)[:, None]).unique()
    found = torch.stack([divergence.values(v.expand(30, 1), u) for v in values])
    torch.testing.assert_close(values[found.argmin(0)][:, None], activation.forward(u))
    v, point = activation.forward(-u), u.clone().requires_grad_()
    divergence.value(v, point).backward()
    torch.testing.assert_close(point.grad, divergence.link_gradient(u) - v)
    both = cp.Variable((30, 1))
    stated = cp.Problem(cp.Minimize(divergence.link_term(both, v.numpy())))
    assert stated.objective.expr.is_convex()


def test_a_weight_fit_with_a_margin_is_that_of_cvxpy(generator):
    x = torch.randn(40, 4, dtype=torch.float64, generator=generator)
    v = torch.randn(40, 2, dtype=torch.float64, generator=generator).sign()
    fit = WeightFit(Margin(Sign()), Design(x, bias=False), v, SquaredFrobenius(0.3))
    found = solve(fit).value.matrix
    weights = cp.Variable((4, 2))
    loss = cp.sum(cp.logistic(-2 * cp.multiply(v.numpy(), x.numpy() @ weights)))
    cp.Problem(cp.Minimize(loss + 0.3 * cp.sum_squares(weights))).solve(solver=cp.CLARABEL)
    np.testing.assert_allclose(found, np.asarray(weights.value), atol=1e-5)


def test_without_a_margin_there_is_none_to_take():
    with pytest.raises(DeclarationError, match="margin"):
        Margin(ReLU())
    assert Margin(Sign()).smoothness == 1.0
    with pytest.raises(DataError, match="levels"):
        Quantized(1)
    with pytest.raises(DeclarationError, match="lower < upper"):
        Quantized(2, 1.0, 0.0)
    assert isinstance(Quantized().margin, Clipped)


def test_three_layers_of_signs_learn_and_are_exported_with_the_true_sign():
    digits = data.digits()
    model = LiftedMLP((64, 60, 60, 60, 10), Sign(), method=Minibatch(20, 50, rate=1.0))
    model.fit(digits.x_train, digits.y_train)
    predicted = model.predict(digits.x_test)
    assert float((predicted == digits.y_test).double().mean()) > 0.9
    rows = digits.x_test
    for layer in model.weights[:-1]:
        rows = layer.apply(rows).sign()
    last = model.weights[-1].apply(rows)
    assert torch.equal(last.argmax(1), predicted)
    assert torch.equal(to_torch(model, logits=True)(digits.x_test).argmax(1), predicted)
