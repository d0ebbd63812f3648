"""Proximal maps: optimal, nonexpansive, finite for every weight, and right against SciPy."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from liftednet import Activation, activations
from tests.liftednet.activations.catalogue import BY_MAP, COUPLED, SEPARABLE, SPLIT

ROWS = st.lists(st.floats(-20, 20, allow_nan=False), min_size=3, max_size=3)
WEIGHTS = st.floats(1e-3, 1e3)
by_name = pytest.mark.parametrize


def row(numbers: list[float]) -> torch.Tensor:
    return torch.tensor([numbers], dtype=torch.float64)


@by_name("activation", [*SPLIT, *BY_MAP], ids=repr)
@given(numbers=ROWS, towards=ROWS, t=WEIGHTS)
def test_prox_is_no_worse_than_its_surroundings(activation, numbers, towards, t):
    """t Phi(v) + |v - w|^2 / 2 does not fall from the prox towards another point of the domain."""
    w = row(numbers)
    v, other = activation.prox(w, t), activation.forward(row(towards))

    def cost(z):
        return float(t * activation.potential_value(z) + (z - w).square().sum() / 2)

    best = cost(activation.project(v))
    for share in (1e-3, 0.1, 1.0):
        assert best <= cost(v + share * (other - v)) + 1e-7 * (1 + abs(best))


@by_name("activation", [*SEPARABLE, *COUPLED], ids=repr)
def test_prox_takes_a_weight_for_every_sample(activation, generator):
    w = torch.randn(6, 3, dtype=torch.float64, generator=generator)
    t = torch.logspace(-2, 2, 6, dtype=torch.float64).unsqueeze(-1)
    rows = [activation.prox(w[i : i + 1], float(t[i])) for i in range(6)]
    torch.testing.assert_close(activation.prox(w, t), torch.cat(rows), rtol=1e-9, atol=1e-9)


def test_prox_of_a_jump_is_the_box():
    """from_function(sign) is the projection on [-1, 1], whatever the weight."""
    w = torch.linspace(-3, 3, 61, dtype=torch.float64).unsqueeze(0)
    for t in (0.1, 1.0, 10.0):
        found = Activation.from_function(torch.sign).prox(w, t)
        torch.testing.assert_close(found, w.clamp(-1, 1), rtol=1e-9, atol=1e-9)


def test_softmax_prox_approaches_the_projection_and_the_center():
    w = torch.tensor([[0.3, 2.0, -1.0, 1.9]], dtype=torch.float64)
    near = activations.Softmax().prox(w, 1e-8)
    torch.testing.assert_close(near, activations.SimplexProjection().forward(w), atol=1e-6, rtol=0)
    far = activations.Softmax().prox(w, 1e8)
    torch.testing.assert_close(far, torch.full_like(w, 0.25), atol=1e-6, rtol=0)
