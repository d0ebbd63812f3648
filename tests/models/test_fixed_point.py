"""Converged networks against CVXPY, block by block and all states at once."""

from __future__ import annotations

import cvxpy as cp
import torch

from benchmarks.papers.lifted_rule import forward_lifted
from tests.models.networks import bias_of, fitted, labeled


def test_the_lifted_rule_solves_the_joint_problem_of_equation_12():
    x, y = labeled(samples=8)
    model = fitted(x, y, (4, 5, 4, 3), lam=0.7, rho=0.2, divergence="joint", sweeps=30)
    first, second, last = (
        (layer.matrix.numpy(), bias_of(layer).numpy()) for layer in model.weights
    )
    z1, z2 = cp.Variable((8, 5), nonneg=True), cp.Variable((8, 4), nonneg=True)
    cost = cp.sum_squares(z1 - (x.numpy() @ first[0] + first[1])) + cp.sum_squares(
        z2 - (z1 @ second[0] + second[1][None, :])
    )
    cp.Problem(cp.Minimize(cost)).solve(solver=cp.CLARABEL)
    u = torch.from_numpy(z2.value @ last[0] + last[1])
    assert torch.allclose(forward_lifted(model, x), u.softmax(1), atol=1e-4)


def test_with_tight_divergences_the_lifted_rule_is_the_feedforward_rule():
    x, y = labeled()
    model = fitted(x, y, (4, 5, 4, 3), lam=0.7, divergence="tight", sweeps=3)
    assert torch.allclose(forward_lifted(model, x), model.forward(x), atol=1e-8)


def test_the_gap_of_a_tight_network_closes_as_lam_grows():
    x, y = labeled(samples=15)
    gaps = [fitted(x, y, lam=lam, rho=0.05, sweeps=20).gap()[0] for lam in (0.1, 1.0, 30.0)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 0.1 * gaps[0]
