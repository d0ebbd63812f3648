"""Weights by coordinate descent: those of scikit-learn and scipy, entry by entry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear
from sklearn.linear_model import ElasticNet, MultiTaskLasso
from torch import Tensor

from liftednet import activations
from liftednet.divergences import joint
from liftednet.errors import DeclarationError
from liftednet.penalties import (
    L1,
    ColumnNorm,
    GroupLasso,
    Nonnegative,
    Penalty,
    Signs,
    SquaredFrobenius,
)
from liftednet.problems import Design, WeightFit
from liftednet.solution import Status
from liftednet.solvers import solve

SQUARED = joint(activations.Identity())


def data(samples: int, inputs: int, units: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return inputs that go together, in units from 10 to .1 and away from 0, and targets."""
    generator = torch.Generator().manual_seed(seed)
    x, w, noise = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((samples, inputs), (inputs, units), (samples, units))
    )
    x = (x + x.roll(1, 1)) * torch.logspace(1, -1, inputs, dtype=torch.float64) + 3
    return x, x @ (w * (w.abs() > 1)) + noise


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [1.0, 0.6])
@pytest.mark.parametrize("positive", [False, True])
def test_elastic_nets_are_those_of_scikit_learn(seed: int, share: float, positive: bool) -> None:
    (x, y), alpha = data(80, 30, 3, seed), 0.3
    penalty: Penalty = L1(80 * alpha * share)
    if share < 1:
        penalty = penalty + SquaredFrobenius(40 * alpha * (1 - share))
    penalty = penalty + Nonnegative() if positive else penalty
    found = solve(WeightFit(SQUARED, Design(x), y, penalty), "coordinate-descent")
    exact: Any = ElasticNet(
        alpha, l1_ratio=share, positive=positive, tol=1e-12, max_iter=100_000
    )  # fmt: skip
    exact.fit(x.numpy(), y.numpy())
    assert (found.solver, found.status) == ("coordinate-descent", Status.SOLVED)
    np.testing.assert_allclose(found.value.matrix, exact.coef_.T, atol=1e-6)
    np.testing.assert_allclose(found.value.bias, exact.intercept_, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_weights_of_given_signs_are_scipys_bounded_least_squares(dtype: torch.dtype) -> None:
    x, y = data(60, 9, 2, 0)
    signs = torch.tensor([1.0, -1.0, 0.0] * 3)[:, None] * torch.tensor([1.0, -1.0])
    fit = WeightFit(SQUARED, Design(x.to(dtype), bias=False), y.to(dtype), Signs(signs.to(dtype)))
    found = solve(fit, "coordinate-descent")
    assert (found.solver, found.status) == ("coordinate-descent", Status.SOLVED)
    for unit, own in enumerate(signs.T.tolist()):
        ends = [(0 if s > 0 else -np.inf, 0 if s < 0 else np.inf) for s in own]
        exact = lsq_linear(x.numpy(), y[:, unit].numpy(), np.array(ends).T, tol=1e-14)
        close = 1e-6 if dtype is torch.float64 else 1e-3
        np.testing.assert_allclose(found.value.matrix[:, unit], exact.x, atol=close)


def test_inputs_that_are_sums_of_others_are_left_to_steps() -> None:
    x, y = data(60, 6, 2, 0)
    fit = WeightFit(SQUARED, Design(torch.cat([x, x[:, :3]], 1)), y, Nonnegative())
    alone = solve(WeightFit(SQUARED, Design(x), y, Nonnegative()), "coordinate-descent")
    found = solve(fit, "coordinate-descent")
    assert found.status is Status.SOLVED
    assert found.objective == pytest.approx(alone.objective, rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_groups_are_those_of_scikit_learn(seed: int) -> None:
    (x, y), alpha = data(80, 30, 3, seed), 0.5
    fit = WeightFit(SQUARED, Design(x), y, GroupLasso(80 * alpha) + SquaredFrobenius(1e-12))
    found = solve(fit, "coordinate-descent")
    exact = MultiTaskLasso(alpha, tol=1e-12, max_iter=100_000).fit(x.numpy(), y.numpy())
    assert (found.solver, found.status) == ("coordinate-descent", Status.SOLVED)
    np.testing.assert_allclose(found.value.matrix, exact.coef_.T, atol=1e-6)
    assert bool((found.value.matrix == 0).all(1).equal(torch.from_numpy((exact.coef_ == 0).all(0))))


def test_a_penalty_of_columns_is_refused() -> None:
    x, y = data(60, 6, 2, 0)
    for penalty in (ColumnNorm(1.0), GroupLasso(1.0) + Nonnegative()):
        with pytest.raises(DeclarationError, match="each entry or row by itself, not"):
            solve(WeightFit(SQUARED, Design(x), y, penalty), "coordinate-descent")
