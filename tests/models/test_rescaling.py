"""Rescaling to one lam: the same problem in other variables."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from liftednet import DeclarationError, activations, losses
from liftednet.models import with_one_lam
from tests.models.networks import full, labeled, targets_for

X, Y = labeled(samples=20)


@settings(max_examples=15)
@given(
    activation=st.sampled_from([activations.ReLU(), activations.LeakyReLU(0.3)]),
    divergence=st.sampled_from(["tight", "joint"]),
    lam=st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)),
    rho=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1), st.floats(0.01, 1)),
    loss=st.sampled_from([losses.CrossEntropy(), losses.SquaredError()]),
)
def test_every_sweep_is_the_same_in_both(activation, divergence, lam, rho, loss):
    options = {"sweeps": 3, "tolerance": 1e-12, "dtype": torch.float64}
    network = full((4, 5, 4, 3), activation, loss, lam, rho, divergence, **options)
    other, y = with_one_lam(network), targets_for(loss, Y, 3)
    assert len(set(other.architecture.lam)) == 1
    network.fit(X, y)
    other.fit(X, y)
    assert network.trace is not None and other.trace is not None
    assert other.trace.objectives == pytest.approx(network.trace.objectives, rel=1e-4)
    assert torch.allclose(other.forward(X), network.forward(X), atol=1e-3)


def test_fitted_weights_come_along_and_output_states_keep_their_lam():
    network = full((4, 5, 3), loss=losses.SimplexCrossEntropy(), lam=(0.2, 3.0), rho=0.1, sweeps=2)
    network.fit(X, Y)
    other = with_one_lam(network)
    assert other.architecture.lam == (3.0, 3.0)
    assert torch.allclose(other.forward(X), network.forward(X))
    assert other.with_weights(other.weights).predict(X).equal(network.predict(X))


@pytest.mark.parametrize("activation", [activations.Sigmoid(), activations.MaxPooling(2)])
def test_what_is_not_homogeneous_is_refused(activation):
    with pytest.raises(DeclarationError, match=type(activation).__name__):
        with_one_lam(full((4, 3, 3), activation))
