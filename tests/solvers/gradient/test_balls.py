"""Linear minimization over p-balls against CVXPY and Hoelder's inequality."""

from __future__ import annotations

import math

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from liftednet.solvers.gradient import Ball

POWERS = [1.0, 1.2, 1.5, 2.0, 3.0, 7.0, math.inf]


def gradients(seed: int, scale: float = 1.0) -> list[Tensor]:
    source = torch.Generator().manual_seed(seed)
    return [
        scale * torch.randn(3, 2, generator=source, dtype=torch.float64),
        scale * torch.randn(4, generator=source, dtype=torch.float64),
    ]


def inner(a: list[Tensor], b: list[Tensor]) -> float:
    return sum(float((x * y).sum()) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("p", POWERS)
def test_minimum_is_the_one_of_cvxpy(p: float) -> None:
    given_gradients = gradients(seed=1)
    flat = np.concatenate([g.flatten().numpy() for g in given_gradients])
    s = cp.Variable(len(flat))
    problem = cp.Problem(cp.Minimize(flat @ s), [cp.pnorm(s, p) <= 0.7])  # type: ignore[arg-type]
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=2e-11, tol_gap_rel=2e-11, tol_feas=2e-11)
    found = Ball(p, 0.7).minimizer(given_gradients)
    assert abs(inner(found, given_gradients) - problem.value) < 1e-10
    assert s.value is not None
    assert np.allclose(np.concatenate([x.flatten().numpy() for x in found]), s.value, atol=1e-5)


@given(
    p=st.one_of(st.just(1.0), st.just(math.inf), st.floats(1.001, 60)),
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e25]),
)
@settings(max_examples=100, deadline=None)
def test_minimizer_is_in_the_ball_and_tight_in_hoelders_inequality(
    p: float, seed: int, scale: float
) -> None:
    ball = Ball(p, 2.5)
    given_gradients = gradients(seed, scale)
    found = ball.minimizer(given_gradients)
    length = torch.linalg.vector_norm(torch.cat([s.flatten() for s in found]), p)
    assert length <= 2.5 * (1 + 1e-10)
    q = math.inf if p == 1 else 1.0 if p == math.inf else p / (p - 1)
    entries = torch.cat([g.flatten() for g in given_gradients])
    largest = float(entries.abs().max())
    least = -2.5 * float(torch.linalg.vector_norm(entries / largest, q))
    assert math.isclose(inner(found, given_gradients) / largest, least, rel_tol=1e-9)


def test_no_gradient_no_step() -> None:
    assert not any(Ball(p, 1.0).minimizer([torch.zeros(2, 2)])[0].any() for p in POWERS)
