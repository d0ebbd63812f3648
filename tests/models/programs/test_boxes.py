"""Bounds by halved boxes: below all values on them, and what they prove against HiGHS."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import nn

from liftednet import optimize, to_cvxpy
from liftednet.models.programs.boxes import Part, halved, lined
from liftednet.models.programs.composition import composition_of
from tests.models.programs.networks import drawn

NONE = np.zeros((0, 3)), np.zeros(0), np.zeros(0)
KINDS = [nn.ReLU(), nn.LeakyReLU(1.5), nn.Hardtanh(), nn.Tanh(), nn.GELU(), nn.Softplus(1.0, 40.0)]


@pytest.mark.parametrize("activation", KINDS, ids=repr)
def test_a_line_is_below_the_cost_on_its_box_and_closes_in_on_it(activation) -> None:
    parts = nn.Linear(2, 6), activation, nn.Linear(6, 5), activation, nn.Linear(5, 2)
    network = drawn(*parts)
    draw, cost, own = np.random.default_rng(0), np.array([1.0, -0.5]), np.array([0.3, 0.0, -0.2])
    matrix, offset = draw.normal(size=(2, 3)), draw.normal(size=2)
    part = Part.of(composition_of(network, 2), matrix, offset, cost)

    def values(v: Any) -> Any:
        with torch.no_grad():
            return network(torch.from_numpy(v @ matrix.T + offset)).numpy() @ cost + v @ own

    centers = draw.normal(size=(40, 3))
    gaps = []
    for width in (1.0, 0.1, 0.01):
        found = lined([part], own, centers - width, centers + width, NONE)
        least = np.full(len(centers), np.inf)
        for _ in range(400):
            v = centers + width * draw.uniform(-1, 1, centers.shape)
            least = np.minimum(least, values(v))
        assert (found.bound <= least).all()
        gaps.append(np.mean(values(found.at) - found.bound))
    assert gaps[2] < 0.2 * gaps[1] < 0.04 * gaps[0] + 1e-9
    low, high = halved(found)
    assert (high - low).prod(1).sum() == pytest.approx((2 * width) ** 3 * len(centers))
    both = lined([part], own, low, high, NONE).bound.reshape(2, -1)
    assert (both.min(0) >= found.bound - 1e-9 * np.abs(found.bound)).all()


def test_what_boxes_prove_under_linear_constraints_is_what_highs_finds() -> None:
    network = drawn(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2), seed=4)
    x: Any = cp.Variable(3)
    stated = to_cvxpy(network, x, box=(-1, [1, 1, 0.5]))
    limits = [cp.sum(x) == 0.3, x[0] - 2 * x[1] <= 0.4]
    objective = cp.Maximize(stated.output[0] - 0.5 * stated.output[1] + x[2])
    best = optimize(stated, objective, limits, gap=1e-5)
    assert best.proven and best.rounds == 0  # without HiGHS
    assert all(np.max(one.violation()) < 1e-8 for one in limits)
    problem = cp.Problem(objective, [*stated.constraints, *limits])
    wanted = problem.solve(solver="HIGHS", mip_rel_gap=1e-8)
    assert best.value == pytest.approx(wanted, rel=2e-5) and best.bound >= wanted * (1 - 1e-9)


def test_samples_that_share_their_variables_are_proven_together() -> None:
    network = drawn(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    v: Any = cp.Variable(1, bounds=[-1, 1])
    x = cp.vstack([cp.hstack([v, 0.5]), cp.hstack([0.2, -v])])
    stated = to_cvxpy(network, x, box=(-1, 1))
    best = optimize(stated, cp.Minimize(cp.sum(stated.output) + v[0]), gap=1e-6)
    at = np.linspace(-1, 1, 20_001)
    rows = np.stack([np.stack([at, np.full_like(at, 0.5)], 1),
                     np.stack([np.full_like(at, 0.2), -at], 1)])  # fmt: skip
    with torch.no_grad():
        wanted = (network(torch.from_numpy(rows))[..., 0].sum(0).numpy() + at).min()
    assert best.proven and best.bound <= wanted and best.value == pytest.approx(wanted, rel=1e-5)
