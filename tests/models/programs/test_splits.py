"""Bounds by lines and by split units: below all values, and what they prove against CVXPY."""

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import nn

from liftednet import robustness_radius
from liftednet.models.programs.composition import composition_of
from liftednet.models.programs.halving import kinked
from liftednet.models.programs.lines import ranges
from liftednet.models.programs.splits import Tree
from tests.models.programs.networks import by_highs, chain, drawn, stated, values


def test_ranges_hold_every_value_and_steps_never_widen_them() -> None:
    network = drawn(nn.Linear(3, 10), nn.ReLU(), nn.Linear(10, 9), nn.MaxPool1d(3), nn.Linear(3, 4),
                    nn.Tanh(), nn.Linear(4, 2))  # fmt: skip
    composition = kinked(composition_of(network, 3))
    box = -np.ones(3), np.array([1.0, 0.5, 2.0])
    points = np.random.default_rng(0).uniform(*box, (5000, 3))
    (values, _), widths = composition.passed(points), []
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


@pytest.fixture
def halved(monkeypatch):
    """Hold halves of nodes against the nodes, and their bounds against those by lines alone."""
    split = Tree.split

    def checked(tree, nodes):
        count = len(nodes.bound)
        both, points = split(tree, nodes)
        below, above = (slice(count), slice(count, None))
        cut = both.high[below] < nodes.high
        assert (cut.sum(1) == 1).all()
        np.testing.assert_array_equal(both.low[below], nodes.low)
        np.testing.assert_array_equal(both.high[above], nodes.high)
        np.testing.assert_array_equal(both.low[above], np.where(cut, both.high[below], nodes.low))
        free = replace(nodes.beside(nodes), low=both.low, high=both.high, held=0 * both.held)
        alone = tree.bounded(replace(free, bound=free.bound - np.inf), 0)[0]
        assert (both.bound >= alone.bound).all()
        return both, points

    monkeypatch.setattr(Tree, "split", checked)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("norm", [2, np.inf])
@pytest.mark.usefixtures("halved")
def test_a_radius_is_that_of_a_mixed_integer_program(norm, seed) -> None:
    network, x = chain(2, 6, 5, 3, seed=seed), np.array([0.3, -0.2])
    found = robustness_radius(network, x, norm=norm, box=(-4, 4))
    z, program = stated(network, 2, -4, 4)
    margins = [program.output[found.label] - program.output[k] for k in {0, 1, 2} - {found.label}]
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
    if norm > 2:  # HIGHS has no other norm that is asked for
        far = cp.Minimize(cp.norm(z - x, "inf"))
        best = min(by_highs(far, program, margin <= 0) for margin in margins)
        assert found.least <= best * (1 + 1e-6) and found.most >= best * (1 - 1e-6)


@pytest.mark.usefixtures("halved")
def test_multipliers_of_smooth_units_are_left_where_none_prove_more() -> None:
    network, x = chain(3, 7, 7, 3, activation=nn.Tanh(), seed=2), np.full(3, 0.1)
    found = robustness_radius(network, x, norm=2, seconds=1.0)
    rays = np.random.default_rng(0).normal(size=(20_000, 3))
    around = x + found.least * rays / np.linalg.norm(rays, axis=1, keepdims=True)
    assert found.least > 0 and (values(network, around).argmax(1) == found.label).all()
