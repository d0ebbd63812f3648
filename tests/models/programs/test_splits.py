"""Bounds by lines and by split units: below all values, and what they prove against CVXPY."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import nn

from liftednet import optimize, robustness_radius, to_cvxpy
from liftednet.models.programs.composition import composition_of
from liftednet.models.programs.halving import kinked
from liftednet.models.programs.lines import Raised, Sums, Way, corner, lines_of, ranges
from liftednet.models.programs.radius import nearest
from tests.models.programs.networks import drawn


def relu(*sizes: int, seed: int = 0) -> Any:
    parts: list[nn.Module] = []
    for below, above in pairwise(sizes):
        parts += [nn.Linear(below, above), nn.ReLU()]
    return drawn(*parts[:-1], seed=seed)


def test_raised_bounds_are_those_of_the_linear_relaxation() -> None:
    composition = composition_of(relu(3, 8, 6, 1), 3)
    low, high = -np.ones((1, 3)), np.ones((1, 3))
    lines, _ = lines_of(composition, low, high)
    sums = Sums.both_ways(composition.output, slice(None), 3)
    mix = [np.repeat(line.mix[:, None], 2, 1) for line in lines]
    raised = Raised(mix, [0 * x for x in mix], None, None)
    first = corner(low, high)(Way(composition, lines, sums, 1).slopes,
                              Way(composition, lines, sums, 1).values)[0]  # fmt: skip
    raised.climb(composition, lines, sums, corner(low, high), np.ones((1, 3)), 100)
    x: Any = cp.Variable(3, bounds=[-1, 1])
    values: list[Any] = [x]
    rows: list[Any] = []
    for block, line in zip(composition.blocks, lines, strict=True):
        u, v = block.argument.of(values), cp.Variable(len(block))
        a, b = line.above
        rows += [u >= line.low[0], u <= line.high[0], v >= 0, v >= u]
        rows += [v <= cp.multiply(a[0], u) + b[0]]
        values.append(v)
    y = composition.output.of(values)[0]
    wanted = [cp.Problem(cp.Minimize(sign * y), rows).solve(solver="CLARABEL") for sign in (1, -1)]
    assert (raised.bound[0] <= np.array(wanted) + 1e-7).all()
    assert (raised.bound[0] >= np.array(wanted) - 2e-2 * (np.array(wanted) - first[0])).all()


def test_ranges_hold_every_value_and_steps_never_widen_them() -> None:
    network = drawn(nn.Linear(3, 10), nn.ReLU(), nn.Linear(10, 9), nn.MaxPool1d(3), nn.Linear(3, 4),
                    nn.Tanh(), nn.Linear(4, 2))  # fmt: skip
    composition = kinked(composition_of(network, 3))
    box = -np.ones(3), np.array([1.0, 0.5, 2.0])
    points = np.random.default_rng(0).uniform(*box, (5000, 3))
    values, widths = composition.values(points), []
    for steps in (0, 30):
        found = ranges(composition, box, steps=steps)
        for block, (low, high) in zip(composition.blocks, found, strict=False):
            u = block.argument.of(values)
            assert (u >= low).all() and (u <= high).all()
        y = composition.output.of(values)
        assert (y >= found[-1][0]).all() and (y <= found[-1][1]).all()
        widths.append((found[-1][1] - found[-1][0]).sum())
    assert widths[1] <= widths[0]
    wanted = composition_of(network, 3).forward(points)
    np.testing.assert_allclose(composition.forward(points), wanted, atol=1e-12)


@pytest.mark.parametrize("norm", [2, np.inf])
def test_distances_to_half_spaces_in_a_box_are_those_of_cvxpy(norm) -> None:
    draw = np.random.default_rng(0)
    slopes, values = draw.normal(size=(40, 1, 5)), draw.normal(size=(40, 1)) + 1
    low, high, center = np.zeros(5), np.ones(5), np.append(0.0, draw.uniform(0, 1, 4))
    found, x = nearest(center, low, high, 0.9, norm)(slopes, values)
    for n in range(40):
        z: Any = cp.Variable(5, bounds=[low, high])
        cost = cp.norm(z - center, "inf" if norm > 2 else 2)
        problem = cp.Problem(cp.Minimize(cost), [slopes[n, 0] @ z + values[n, 0] <= 0])
        wanted = min(problem.solve(solver="CLARABEL"), 0.9)
        assert found[n, 0] <= wanted + 1e-7 and found[n, 0] >= wanted - 1e-6
        assert ((low <= x[n]) & (x[n] <= high)).all()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("norm", [2, np.inf])
def test_a_radius_is_that_of_a_mixed_integer_program(norm, seed) -> None:
    network, x = relu(2, 6, 5, 3, seed=seed), np.array([0.3, -0.2])
    found = robustness_radius(network, x, norm=norm, box=(-4, 4))
    z: Any = cp.Variable(2)
    stated = to_cvxpy(network, z, box=(-4, 4))
    best = np.inf
    for other in {0, 1, 2} - {found.label}:
        margin = stated.output[found.label] - stated.output[other]
        far = cp.norm(z - x, "inf") if norm > 2 else cp.norm(z - x, 1)
        problem = cp.Problem(cp.Minimize(far), [*stated.constraints, margin <= 0])
        if norm > 2:
            best = min(best, problem.solve(solver="HIGHS"))
    with torch.no_grad():
        y = network(torch.from_numpy(found.x)[None])[0]
        angles = torch.linspace(0, 2 * np.pi, 2000, dtype=torch.float64)
        ring = torch.stack([angles.cos(), angles.sin()], 1)
        ring = ring / torch.linalg.vector_norm(ring, norm, 1, keepdim=True)
        inside = torch.from_numpy(x) + found.least * (1 - 1e-9) * ring.clamp(-1, 1)
        labels = network(inside.clamp(-4, 4)).argmax(1)
    assert float(y[found.label]) <= float(y.max()) + 1e-12
    assert found.most - found.least <= 1.1e-3 * found.most and (labels == found.label).all()
    assert np.linalg.norm(found.x - x, norm) == pytest.approx(found.most, rel=1e-9)
    if norm > 2:
        assert found.least <= best * (1 + 1e-6) and found.most >= best * (1 - 1e-6)


def test_many_inputs_are_proven_by_split_units_under_constraints() -> None:
    network, x = relu(20, 6, 1, seed=1), cp.Variable(20)
    stated = to_cvxpy(network, x, box=(-1, 1))
    limits = [cp.sum(x) <= 1, x[0] + x[1] >= 0.5, stated.output[0] <= 20]
    best = optimize(stated, cp.Maximize(stated.output[0] - x[3]), limits)
    problem = cp.Problem(cp.Maximize(stated.output[0] - x[3]), [*stated.constraints, *limits])
    wanted = problem.solve(solver="HIGHS", mip_rel_gap=1e-7)
    assert best.proven and best.value == pytest.approx(wanted, rel=2e-4)
    assert best.bound >= wanted * (1 - 1e-7)
    assert all(np.max(one.violation()) < 1e-6 for one in limits)
