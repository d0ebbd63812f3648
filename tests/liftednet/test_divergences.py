"""Tight and joint divergences: what the design's section 1 says of them."""

from __future__ import annotations

import cvxpy as cp
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from liftednet import activations
from liftednet.divergences import Joint, Tight, joint, tight
from tests.liftednet.activations.catalogue import COUPLED, SEPARABLE

LIPSCHITZ = [*SEPARABLE, *COUPLED]
ROWS = st.lists(st.floats(-10, 10), min_size=3, max_size=3)
CLOSED = [
    activations.ReLU(),
    activations.LeakyReLU(0.2),
    activations.Clipped(-1.0, 1.0),
    activations.Sigmoid(),
    activations.Tanh(),
    activations.Softmax(),
]


def row(numbers: list[float]) -> torch.Tensor:
    return torch.tensor([numbers], dtype=torch.float64)


@pytest.fixture
def pair(generator):
    def make(activation):
        u, other = (2 * torch.randn(5, 3, dtype=torch.float64, generator=generator) for _ in "uv")
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
@given(pre=ROWS, elsewhere=ROWS)
def test_forward_is_the_argmin_of_either(activation, kind, pre, elsewhere):
    u, v = row(pre), activation.forward(row(elsewhere))
    divergence = kind(activation)
    least = float(divergence.value(activation.forward(u), u))
    assert least <= float(divergence.value(v, u)) + 1e-8 * (1 + abs(least))


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


@pytest.mark.parametrize("kind", [tight, joint])
@pytest.mark.parametrize("activation", CLOSED, ids=repr)
def test_cvxpy_states_what_torch_computes(activation, kind, pair):
    divergence = kind(activation)
    v, u = pair(activation)
    stated = [cp.Constant(x.numpy()) for x in (v, u)]
    state, link = divergence.state_term(*stated), divergence.link_term(*reversed(stated))
    if not link.variables():
        assert float(divergence.link_value(u, v)) == pytest.approx(float(link.value))
    assert float(divergence.state_value(v, u)) == pytest.approx(float(state.value))


def test_the_switch_returns_what_its_names_say():
    assert isinstance(tight(activations.ReLU()), Tight)
    assert isinstance(joint(activations.ReLU()), Joint)
    assert isinstance(tight(activations.Identity()), Joint)  # where the two agree, the simpler
    assert not tight(activations.ReLU()).quadratic
    assert joint(activations.ReLU()).quadratic
