"""Prediction, starts, seeds, precision, and every way to declare a layer."""

from __future__ import annotations

import pytest
import torch

from liftednet import activations, losses
from tests.models.networks import bias_of, fitted, full, labeled, targets_for


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_model_keeps_the_precision_that_is_asked_for(dtype):
    x, y = labeled()
    model = fitted(x, y, dtype=dtype, sweeps=3)
    assert {t.dtype for w in model.weights for t in (w.matrix, bias_of(w))} == {dtype}
    assert {state.dtype for state in model.states} == {dtype}
    assert model.forward(x).dtype is dtype
    reached = fitted(x, y, dtype=torch.float64, sweeps=3).objective()
    assert model.objective() == pytest.approx(reached, rel=1e-3)


@pytest.mark.parametrize("loss", [losses.SimplexCrossEntropy(), losses.SquaredError()])
def test_output_states_follow_equation_14(loss):
    x, y = labeled()
    given = (activations.ReLU(), activations.SimplexProjection())
    target = targets_for(loss, y, 3) if isinstance(loss, losses.SquaredError) else y
    model = full((4, 5, 3), given, loss, lam=0.5, rho=0.05, sweeps=15).fit(x, target)
    outputs = model.states[-1]
    assert torch.allclose(outputs.sum(1), torch.ones(30, dtype=torch.float64))
    assert float(outputs.min()) >= 0
    assert float((model.forward(x).argmax(1) == y).double().mean()) > 0.8


def test_max_pooling_trains_on_the_reference_solver():
    x, y = labeled(samples=12)
    model = full((4, 3, 3), activations.MaxPooling(2), lam=0.5, rho=0.1, sweeps=2).fit(x, y)
    assert model.weights[0].matrix.shape == (4, 6)
    u = model.weights[0].apply(x)
    assert torch.allclose(model.activations[0].forward(u), u.reshape(12, 3, 2).amax(2))
    assert model.trace is not None
    assert all(step.decrease >= 0 for step in model.trace.steps)
    assert model.objective() < model.trace.start


def test_the_network_names_itself() -> None:
    network = full((4, 3, 2), activations.LeakyReLU(0.1), divergence="joint")
    assert "activations=[], loss=CrossEntropy()" in repr(full((4, 3)))
    found = repr(network)
    assert found.startswith("LiftedMLP(sizes=(4, 3, 2), activations=[LeakyReLU(alpha=0.1)]")
    assert "loss=CrossEntropy()" in found and "divergence='joint'" in found
    assert found.endswith("not fitted)")
    network.lam = 3.5
    assert "lam=3.5" in repr(network)
