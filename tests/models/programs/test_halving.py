"""Bounds by halved boxes: below all values on them, and what they prove against HiGHS."""

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import nn

from liftednet import optimize, to_cvxpy
from liftednet.errors import DeclarationError
from liftednet.models.programs.composition import composition_of
from liftednet.models.programs.first_answer import Functions, linear_in
from liftednet.models.programs.halving import halved, inside_of, kinked, lined
from liftednet.models.programs.lines import Sums
from tests.models.programs.networks import Called, drawn, values

NONE = np.zeros((0, 3)), np.zeros(0)
LARGEST, WAVE = nn.MaxPool1d(3), Called(torch.sin)  # which bends one way and the other
KINDS = [nn.ReLU(), nn.LeakyReLU(1.5), nn.Hardtanh(), nn.Tanh(), nn.GELU(), nn.Softplus(1.0, 40.0)]


@pytest.mark.parametrize("activation", [*KINDS, LARGEST, WAVE], ids=repr)
def test_a_line_is_below_the_cost_on_its_box_and_closes_in_on_it(activation) -> None:
    wide = 18 if activation is LARGEST else 6
    network = drawn(nn.Linear(2, wide), activation, nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    draw, cost, own = np.random.default_rng(0), np.array([1.0, -0.5]), np.array([0.3, 0.0, -0.2])
    matrix, offset = draw.normal(size=(2, 3)), draw.normal(size=2)
    inside = kinked(inside_of(composition_of(network, 2), matrix, offset))
    answers = {k: (cost @ part.T)[None, None] for k, part in inside.output.parts.items()}
    constants = np.full((1, 1), cost @ inside.output.offset)
    line = Sums(constants, own[None, None], answers, np.abs(constants))

    def costs(v: Any) -> Any:
        return values(network, v @ matrix.T + offset) @ cost + v @ own

    centers = draw.normal(size=(40, 3))
    gaps = []
    for width in (1.0, 0.1, 0.01):
        if activation is WAVE:  # of which only some are known
            u = np.abs(centers @ matrix.T + offset) @ np.abs(network[0].weight.detach().numpy()).T
            centers = centers[u.max(1) < 2.0] if width == 0.1 else centers
        found = lined(inside, line, centers - width, centers + width, NONE)
        least = np.full(len(centers), np.inf)
        for _ in range(400):
            v = centers + width * draw.uniform(-1, 1, centers.shape)
            least = np.minimum(least, costs(v))
        assert (found.bound <= least).all()
        gaps.append(np.mean(costs(found.at) - found.bound))
    assert gaps[2] < 0.2 * gaps[1] < 0.04 * gaps[0] + 1e-9
    low, high = halved(found)
    assert (high - low).prod(1).sum() == pytest.approx((2 * width) ** 3 * len(centers))
    both = lined(inside, line, low, high, NONE).bound.reshape(2, -1)
    assert (both.min(0) >= found.bound - 1e-9 * np.abs(found.bound)).all()


def test_functions_of_cvxpy_have_its_values_and_slopes_at_many_points(draw) -> None:
    x, y = cp.Variable(3), cp.Variable()
    half, matrix = draw.normal(size=(3, 3)), draw.normal(size=(2, 3))
    each: list[Any] = [
        x @ [1, 2, 3] - y, cp.norm(x - 1), cp.norm(x, 1), cp.max(cp.abs(x)), cp.norm(x, 3),
        cp.sum_squares(matrix @ x + y) / 3, cp.quad_form(x, half @ half.T), 2 * cp.abs(x) - 1,
        cp.exp(y) + cp.max(x), cp.maximum(x, x[::-1], 0.3 * np.ones(3)),
        cp.logistic(x), cp.log_sum_exp(x),
        cp.sum(cp.square(x)), cp.power(y, 4), -cp.min(x), -cp.log(y + 9), cp.huber(y),
        cp.sum_largest(x, 2), cp.quad_over_lin(x, y + 9), cp.pos(y), cp.sum(cp.power(x + 9, 1.5)),
    ]  # fmt: skip
    points = draw.normal(size=(7, 4))
    functions = Functions(each, [x, y])
    values, slopes = functions.at(points)
    for point, value, slope in zip(points, values, slopes, strict=True):
        there = [linear_in(one, [x, y], point) for one in each]
        np.testing.assert_allclose(value, np.concatenate([v for v, _ in there]), rtol=1e-12)
        wanted = np.concatenate([s for _, s in there])
        np.testing.assert_allclose(slope, wanted, rtol=1e-8, atol=1e-10)
    alone = Functions([cp.norm(x, "inf")], [x, y]).at(points)  # no gradient of CVXPY's
    np.testing.assert_array_equal(alone[0][:, 0], values[:, 3])
    np.testing.assert_array_equal(alone[1][:, 0], slopes[:, 3])
    with pytest.raises(DeclarationError, match="same shape"):
        Functions([cp.sum_largest(cp.maximum(x, y), 2)], [x, y])
    assert [type(e).__name__ for e, k in zip(each, functions.known, strict=True) if k is None] == [
        "huber", "sum_largest"
    ]  # fmt: skip


def test_samples_that_share_their_variables_are_proven_together() -> None:
    network = drawn(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    v: Any = cp.Variable(1, bounds=[-1, 1])
    stated = to_cvxpy(network, cp.vstack([cp.hstack([v, 0.5]), cp.hstack([0.2, -v])]), box=(-1, 1))
    best = optimize(stated, cp.Minimize(cp.sum(stated.output) + v[0]), gap=1e-6)
    at = np.linspace(-1, 1, 20_001)
    rows = np.stack([np.stack([at, np.full_like(at, 0.5)], 1),
                     np.stack([np.full_like(at, 0.2), -at], 1)])  # fmt: skip
    wanted = (values(network, rows)[..., 0].sum(0) + at).min()
    assert best.proven and best.bound <= wanted and best.value == pytest.approx(wanted, rel=1e-5)
