"""Tight and joint divergences, and those of maps that jump, which have a margin beside it."""

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from liftednet import activations
from liftednet.activations import Clipped, Quantized, ReLU, Sign
from liftednet.divergences import Joint, Margin, joint, tight
from liftednet.errors import DataError, DeclarationError
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import WeightFit
from liftednet.samples import Design
from liftednet.solvers import solve
from tests.draws import normal
from tests.liftednet.activations.catalogue import COUPLED, SEPARABLE
from tests.models.networks import refuses

LIPSCHITZ = [*SEPARABLE, *COUPLED]
ROWS = st.lists(st.floats(-10, 10), min_size=3, max_size=3)


def row(numbers: list[float]) -> torch.Tensor:
    return torch.tensor([numbers], dtype=torch.float64)


@pytest.fixture
def pair(generator):
    def make(activation):
        u, other = (2 * normal(5, 3, seed=generator) for _ in "uv")
        return activation.forward(other), u

    return make


@pytest.mark.parametrize("activation", LIPSCHITZ, ids=repr)
@given(first=ROWS, second=ROWS, third=ROWS, fourth=ROWS)
def test_joint_is_convex_in_both_together(activation, first, second, third, fourth):
    """D at the midpoint of two pairs (v, u) is at most the mean of D (JCR, section 4)."""
    divergence = joint(activation)
    v, w = activation.forward(row(first)), activation.forward(row(second))
    u, x = row(third), row(fourth)
    ends = float(divergence.value(v, u)), float(divergence.value(w, x))
    middle = float(divergence.value((v + w) / 2, (u + x) / 2))
    assert middle <= sum(ends) / 2 + 1e-8 * (1 + abs(ends[0]) + abs(ends[1]))


@pytest.mark.parametrize("kind", [tight, joint])
@pytest.mark.parametrize("activation", LIPSCHITZ, ids=repr)
def test_gradient_and_curvature_are_those_of_the_value(activation, kind, pair):
    divergence = kind(activation)
    v, u = pair(activation)
    gradient = divergence.link_gradient(u)
    step = 1e-6
    for i in range(3):
        shift = torch.zeros(3, dtype=torch.float64)
        shift[i] = step
        rise = divergence.link_value(u + shift, v) - divergence.link_value(u - shift, v)
        right = (gradient - v)[:, i].sum()
        torch.testing.assert_close(rise / (2 * step), right, rtol=1e-5, atol=1e-5)
    if activation.per_unit:
        ahead, behind = divergence.link_gradient(u + step), divergence.link_gradient(u - step)
        quotient = (ahead - behind) / (2 * step)
        torch.testing.assert_close(divergence.link_curvature(u), quotient, rtol=1e-4, atol=1e-4)


STEPS = [Quantized(), Quantized(2, -1.0, 1.0), Quantized(5, -1.0, 2.0), Sign()]


def test_the_margin_of_a_sign_is_a_hinge(generator):
    u = 2 * normal(40, 1, seed=generator)
    v = normal(40, 1, seed=generator).sign()
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
    u = 2 * normal(30, 1, seed=generator)
    places = torch.linspace(-3, 3, 60, dtype=torch.float64)[:, None]  # none of which is a jump
    values = activation.forward(places).unique()
    found = torch.stack([divergence.values(v.expand(30, 1), u) for v in values])
    torch.testing.assert_close(values[found.argmin(0)][:, None], activation.forward(u))
    v = activation.forward(-u)
    stated = cp.Problem(cp.Minimize(divergence.link_term(cp.Variable((30, 1)), v.numpy())))
    assert stated.objective.expr.is_convex()


def test_a_weight_fit_with_a_margin_is_that_of_cvxpy(generator):
    x = normal(40, 4, seed=generator)
    v = normal(40, 2, seed=generator).sign()
    fit = WeightFit(Margin(Sign()), Design(x, bias=False), v, SquaredFrobenius(0.3))
    found = solve(fit).value.matrix
    weights = cp.Variable((4, 2))
    loss = cp.sum(cp.logistic(-2 * cp.multiply(v.numpy(), x.numpy() @ weights)))
    cp.Problem(cp.Minimize(loss + 0.3 * cp.sum_squares(weights))).solve(solver=cp.CLARABEL)
    np.testing.assert_allclose(found, np.asarray(weights.value), atol=1e-5)


@pytest.mark.parametrize("width", [0.3, 2.0])
def test_a_width_moves_the_margin_of_a_sign(width, generator):
    """In u / w it is the same divergence times w: a hinge that ends at w."""
    divergence = Margin(Sign(), width)
    u = normal(40, 1, seed=generator).requires_grad_()
    v = (2 * torch.rand(40, 1, dtype=torch.float64, generator=generator) - 1) * 0.9
    at = torch.atanh(v)
    potential = (v * at - at.cosh().log())[:, 0]
    hinge = (width * (u / width).cosh().log() - u * v)[:, 0]
    found = divergence.values(v, u)
    torch.testing.assert_close(found, width * potential + hinge)
    asked = torch.autograd.grad(found.sum(), u, create_graph=True)[0]
    torch.testing.assert_close(asked, divergence.link_gradient(u) - v)
    torch.testing.assert_close(
        torch.autograd.grad(asked.sum(), u)[0], divergence.link_curvature(u.detach())
    )
    u = u.detach()
    assert float(divergence.link_curvature(0 * u).max()) == divergence.smoothness == 1 / width
    torch.testing.assert_close(divergence.minimizer(u), torch.tanh(u / width))


def test_without_a_margin_there_is_none_to_take():
    assert Margin(Sign()).smoothness == 1.0
    assert isinstance(tight(activations.Identity()), Joint)  # where the two agree, the simpler
    refuses(DeclarationError, "margin", Margin, ReLU())
    refuses(DataError, "levels", Quantized, 1)
    refuses(DeclarationError, "lower < upper", Quantized, 2, 1.0, 0.0)
    assert isinstance(Quantized().margin, Clipped)
