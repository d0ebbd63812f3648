"""Prediction, starts, seeds, precision, and every way to declare a layer."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch

from liftednet import Activation, activations, losses
from liftednet.problems import Weights
from tests.models.networks import bias_of, fitted, full, labeled, targets_for


def test_the_feedforward_rule_is_the_recursion_of_equation_1():
    x, y = labeled()
    model = fitted(x, y, (4, 6, 5, 3), sweeps=2)
    state = x.numpy()
    for layer in model.weights[:-1]:
        state = np.maximum(state @ layer.matrix.numpy() + bias_of(layer).numpy(), 0)
    u = state @ model.weights[-1].matrix.numpy() + bias_of(model.weights[-1]).numpy()
    shares = np.exp(u - u.max(1, keepdims=True))
    assert np.allclose(model.predict_proba(x), shares / shares.sum(1, keepdims=True))
    assert np.array_equal(model.predict(x.numpy()), u.argmax(1))


def test_a_warm_start_goes_on_where_it_stopped():
    x, y = labeled()
    options: dict[str, Any] = {"tolerance": 1e-12, "extrapolation": False}
    once = fitted(x, y, sweeps=6, **options)
    twice = full((4, 5, 3), sweeps=3, warm_start=True, **options).fit(x, y).fit(x, y)
    assert twice.objective() == pytest.approx(once.objective(), rel=1e-9)
    anew = full((4, 5, 3), sweeps=3, **options).fit(x, y).fit(x, y)
    assert anew.objective() > once.objective()


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


def test_an_activation_of_six_lines_trains():
    class Square(Activation):
        lipschitz = 0.5

        def potential(self, v):
            return cp.sum_squares(v)

        def forward(self, u):
            return u / 2

    x, y = labeled()
    model = fitted(x, y, activations=Square(), sweeps=5)
    assert model.trace is not None and model.objective() < model.trace.start


@pytest.mark.parametrize("start", ["kaiming", "xavier", "normal", "variance-scaling"])
def test_starts_have_the_variance_they_promise(start):
    shape = (400, 300)
    model = full((*shape, 2), start=start)
    variance = {
        "kaiming": 2 / 400,
        "xavier": 2 / 700,
        "normal": 0.1,
        "variance-scaling": 1 / 400,
    }[start]
    drawn: Weights = model._first_weights()[0]
    assert float(drawn.matrix.var()) == pytest.approx(variance, rel=0.02)
    assert float(drawn.matrix.mean()) == pytest.approx(0, abs=5 * (variance / 120_000) ** 0.5)


def test_the_network_names_itself() -> None:
    network = full((4, 3, 2), activations.LeakyReLU(0.1), divergence="joint")
    assert "activations=[], loss=CrossEntropy()" in repr(full((4, 3)))
    found = repr(network)
    assert found.startswith("LiftedMLP(sizes=(4, 3, 2), activations=[LeakyReLU(alpha=0.1)]")
    assert "loss=CrossEntropy()" in found and "divergence='joint'" in found
    assert found.endswith("not fitted)")
    network.lam = 3.5
    assert "lam=3.5" in repr(network)
