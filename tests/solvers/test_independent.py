"""Activations that CVXPY knows by a stand-in alone, against scipy.optimize on the exact values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import softsign

from liftednet import activations
from liftednet.activation import Activation
from liftednet.divergences import tight
from liftednet.solvers import solve
from tests.solvers.registry import state_fit, weight_fit

STAND_INS: list[Any] = [
    activations.Softplus(),
    activations.Arctan(),
    activations.Sine(),
    Activation.from_function(softsign),
]


def scipy_minimum(
    value: Callable[[Tensor], float], gradient: Callable[[Tensor], Tensor], start: Tensor
) -> float:
    def evaluate(flat: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.from_numpy(flat).reshape(start.shape)
        return value(point), gradient(point).numpy().ravel()

    options = {"maxiter": 5_000, "gtol": 1e-10, "ftol": 1e-15}
    found = minimize(evaluate, start.numpy().ravel(), jac=True, method="L-BFGS-B", options=options)
    return float(found.fun)


@pytest.mark.parametrize("activation", STAND_INS, ids=repr)
def test_weight_fit(activation: Any) -> None:
    problem = weight_fit(tight(activation), torch.float64)
    design, lam = problem.design, problem.lam
    x = torch.cat([design.inputs, torch.ones(design.samples, 1, dtype=torch.float64)], 1)
    free = torch.ones(x.shape[1], 1, dtype=torch.float64)
    free[-1] = 0  # the bias

    def gradient(y: Tensor) -> Any:
        return lam * x.T @ (activation.forward(x @ y) - problem.targets) + 0.2 * free * y

    def value(y: Tensor) -> float:
        return problem.measure(design.split(y)).objective

    found = scipy_minimum(value, gradient, torch.zeros(x.shape[1], problem.units).double())
    assert solve(problem).objective == pytest.approx(found, rel=1e-7)


@pytest.mark.parametrize("activation", STAND_INS, ids=repr)
def test_state_fit_in_its_pre_activations(activation: Any) -> None:
    divergence = tight(activation)
    problem = state_fit(divergence, (divergence,), torch.float64)
    above, lam = problem.links[0], problem.lam

    def gradient(w: Tensor) -> Any:  # of the objective at Z = phi(w), by the chain rule
        z = activation.forward(w)
        push = above.divergence.link_gradient(above.pre_activation(z)) - above.target
        inner = lam * (w - problem.pre_activation) + above.lam * push @ above.weight.T
        return activation.slope(w) * inner

    def value(w: Tensor) -> float:
        return problem.measure(activation.forward(w)).objective

    found = scipy_minimum(value, gradient, torch.zeros_like(problem.pre_activation))
    assert solve(problem).objective <= found + 1e-6 * (1 + abs(found))
    assert solve(problem).objective == pytest.approx(found, rel=1e-4)
