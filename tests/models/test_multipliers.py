"""Multipliers: where they come to rest, and what holds on the way."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from liftednet import DeclarationError, activations, load, losses, save
from liftednet.models import Ending, LiftedMLP, Minibatch
from liftednet.models.methods.multipliers import MultiplierBlocks
from tests.models.networks import bias_of, fitted, full, labeled

X, Y = labeled(samples=30)
SMOOTH = [activations.Sigmoid(), activations.Tanh(), activations.Softplus()]


def _network_loss(model, x, y, rho):
    """Return loss and penalties at the forward pass by torch alone, and their gradients."""
    leaves = [
        (layer.matrix.clone().requires_grad_(), bias_of(layer).clone().requires_grad_())
        for layer in model.weights
    ]
    for (matrix, bias), activation in zip(leaves[:-1], model.activations, strict=False):
        x = activation.forward(x @ matrix + bias)
    logits = x @ leaves[-1][0] + leaves[-1][1]
    loss = torch.nn.functional.cross_entropy(logits, y, reduction="sum")
    total = loss + rho * sum(matrix.square().sum() for matrix, _ in leaves)
    return float(total.detach()), torch.autograd.grad(
        total, [leaf for pair in leaves for leaf in pair]
    )


@pytest.mark.parametrize("activation", [activations.Sigmoid(), activations.Tanh()], ids=repr)
def test_at_rest_states_are_the_forward_pass_and_the_network_is_stationary(activation):
    options: dict[str, Any] = {"lam": 0.3, "rho": 0.5, "sweeps": 500, "tolerance": 1e-5}
    x, y = labeled(samples=12)
    model = fitted(x, y, (4, 3, 3), activations=activation, divergence="multipliers", **options)
    assert model.trace is not None and model.trace.ending is Ending.CONVERGED
    assert max(model.gap()) <= 1e-5
    total, gradients = _network_loss(model, x, y, 0.5)
    assert model.objective() == pytest.approx(total, rel=1e-6)
    assert all(float(gradient.abs().max()) < 1e-2 for gradient in gradients)


def test_penalties_keep_a_gap_that_multipliers_close():
    options: dict[str, Any] = {"lam": 1.0, "rho": 0.3, "sweeps": 150, "tolerance": 1e-6}
    gaps = {
        divergence: max(
            fitted(X, Y, activations=activations.Tanh(), divergence=divergence, **options).gap()
        )
        for divergence in ("tight", "joint", "multipliers")
    }
    assert gaps["multipliers"] < 0.01 * min(gaps["tight"], gaps["joint"])


@settings(max_examples=15)
@given(
    activation=st.sampled_from([activations.ReLU(), activations.Clipped(), *SMOOTH]),
    lam=st.floats(0.01, 20),
    seed=st.integers(0, 100),
)
def test_the_objective_of_the_network_never_rises_over_the_sweeps(activation, lam, seed):
    model = full(
        (4, 6, 5, 3), activation, lam=lam, rho=0.1, divergence="multipliers", sweeps=1, seed=seed,
        warm_start=True, dtype=torch.float64,
    ).fit(X, Y)  # fmt: skip
    found = []
    for _ in range(6):
        blocks = model.fit(X, Y)._blocks
        assert isinstance(blocks, MultiplierBlocks)
        found.append(blocks.network_objective())
    assert all(after <= before * (1 + 1e-9) for before, after in pairwise(found))


def test_within_a_sweep_the_augmented_lagrangian_falls():
    model = full((4, 6, 5, 3), divergence="multipliers", lam=1.0, sweeps=5, tolerance=1e-12)
    model.fit(X, Y)
    assert model.trace is not None
    found = [step for step in model.trace.steps if step.block != "renewal"]
    assert len(found) == 5 * 5 and all(step.decrease >= 0 for step in found)
    assert model.objective() == pytest.approx(model.trace.objectives[-1], rel=1e-9)


def test_at_the_forward_pass_the_objective_is_that_of_the_network():
    model = LiftedMLP(
        (4, 5, 3), divergence="multipliers", rho=0.3, method="full", dtype=X.dtype,
        standardize=False,
    )  # fmt: skip
    start = model._first_weights()
    model = full((4, 5, 3), divergence="multipliers", rho=0.3, start=start, sweeps=1).fit(X, Y)
    assert model.trace is not None
    begun = LiftedMLP((4, 5, 3), rho=0.3).with_weights([layer.to(X) for layer in start])
    assert model.trace.start == pytest.approx(_network_loss(begun, X, Y, 0.3)[0], rel=1e-9)


def test_a_warm_start_keeps_multipliers_and_damping():
    once = fitted(X, Y, divergence="multipliers", sweeps=8, tolerance=1e-12)
    twice = full((4, 5, 3), divergence="multipliers", sweeps=4, tolerance=1e-12, warm_start=True)
    twice.fit(X, Y).fit(X, Y)
    assert twice.objective() == pytest.approx(once.objective(), rel=1e-6)


def test_the_lifted_rule_is_the_feedforward_rule_and_files_keep_the_coupling(tmp_path):
    model = fitted(X, Y, divergence="multipliers", sweeps=2)
    assert model.forward_lifted(X).equal(model.forward(X))
    again = load(save(model, tmp_path / "model"))
    assert again.divergence == "multipliers"
    assert torch.allclose(again.forward(X), model.forward(X), atol=1e-12)
    assert "multipliers" in repr(model)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"loss": losses.SimplexCrossEntropy()}, "SimplexCrossEntropy"),
        ({"activations": activations.MaxPooling(2)}, "MaxPooling.*layer 1"),
        ({"activations": activations.LeakyReLU(), "learn_activations": True}, "tight"),
    ],
)
def test_what_does_not_go_with_multipliers_is_refused(options, words):
    with pytest.raises(DeclarationError, match=words):
        full((4, 5, 3), divergence="multipliers", **options)
    with pytest.raises(DeclarationError, match="no multipliers"):
        LiftedMLP((4, 5, 3), divergence="multipliers", method=Minibatch())
