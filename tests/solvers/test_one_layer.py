"""Units that answer residuals most, against grids; optima and bounds, against CVXPY."""

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from liftednet.activations import Identity, Sigmoid
from liftednet.divergences import tight
from liftednet.solvers.one_layer.amplitudes import fitted
from liftednet.solvers.one_layer.branches import Branches
from liftednet.solvers.one_layer.oracle import Kind, Kinked, ascended, exact
from liftednet.solvers.one_layer.problem import HuberScores, OneLayer, Scores
from liftednet.solvers.one_layer.rounds import rounds
from tests.draws import normal

RELU, LEAKY, ABSOLUTE = Kinked(1.0, 0.0), Kinked(1.0, -0.1), Kinked(1.0, 1.0)


def drawn(seed, samples, inputs, outputs, ties=False):
    generator = torch.Generator().manual_seed(seed)
    X = normal(samples, inputs, seed=generator)
    V = normal(samples, outputs, seed=generator)
    return (X * 2).round() / 2 if ties else X, V - V.mean(0)


def kind(inputs, signs=None, z=None):
    signs = torch.zeros(inputs) if signs is None else torch.tensor(signs)
    return Kind(torch.arange(inputs), signs, z, 100)


def answered(phi, X, V, w, b):
    return (phi.of(X @ w.T + b).T @ V).norm(dim=1)


def most_of_many(phi, X, V, directions):
    """Return the most of units of many directions, with kinks at every row."""
    through = directions @ X.T
    return max(float(answered(phi, X, V, directions, -through[:, k]).max()) for k in range(len(X)))


@pytest.mark.parametrize("phi", [RELU, LEAKY, ABSOLUTE])
@pytest.mark.parametrize("inputs, outputs", [(1, 1), (1, 2), (2, 1), (2, 3)])
@pytest.mark.parametrize("ties", [False, True])
def test_no_unit_of_a_dense_grid_answers_more_than_the_exact_one(phi, inputs, outputs, ties):
    X, V = drawn(inputs + outputs, 15, inputs, outputs, ties)
    w, b, values = exact(phi, X, V, kind(inputs))
    assert torch.allclose(answered(phi, X, V, w, b), values, rtol=1e-10)
    angle = torch.linspace(0, 2 * torch.pi, 2001, dtype=torch.float64)
    circle = torch.stack([angle.cos(), angle.sin()], 1)
    most = most_of_many(phi, X, V, circle if inputs == 2 else X.new_tensor([[1.0], [-1]]))
    assert most * (1 - 1e-10) <= float(values.max()) <= most * (1 + 1e-2)


@pytest.mark.parametrize("phi", [RELU, LEAKY, ABSOLUTE])
@pytest.mark.parametrize("signs", [[0.0, 0.0, 0.0], [1.0, 0.0, -1.0]])
@pytest.mark.parametrize("ties", [False, True])
def test_in_space_no_ascent_answers_more_than_the_exact_unit_and_branches_agree(phi, signs, ties):
    X, V = drawn(5, 10, 3, 1, ties)
    own = kind(3, signs, torch.ones(1, dtype=torch.float64) if any(signs) else None)
    X = own.inputs(X)
    w, b, values = exact(phi, X, V, own)
    place = int(values.argmax())
    most = float(values[place])
    assert bool((w[place, own.signs != 0] >= -1e-9).all())
    assert float(own.size(phi.of(X @ w[place] + b[place]) @ V)) == pytest.approx(most)
    starts = own.turned(torch.randn(500, 3, generator=torch.Generator().manual_seed(0)).double())
    assert float(ascended(phi, X, V, starts, own)[2].max()) <= most * (1 + 1e-10)
    above = Branches(phi, X, V, own).tightened(1.01 * most, 60.0)
    assert most <= above <= 1.01 * most * (1 + 1e-10)


@pytest.mark.parametrize("phi", [RELU, LEAKY, ABSOLUTE])
@pytest.mark.parametrize("inputs, outputs, enough", [(2, 1, 1.001), (2, 2, 1.01), (3, 1, 1.05)])
def test_branches_bound_what_any_unit_answers(phi, inputs, outputs, enough):
    X, V = drawn(7, 15, inputs, outputs)
    starts = normalize(torch.randn(200, inputs).double(), dim=1)
    most = float(ascended(phi, X, V, starts, kind(inputs))[2].max())
    branches = Branches(phi, X, V, kind(inputs))
    before = branches.tightened(0.0, 0.0)  # which stops at once
    goal = enough * most
    bound = branches.tightened(goal, 60.0)
    assert branches.most <= bound <= max(goal, branches.most) * (1 + 1e-12) < before
    if inputs == 2:
        assert float(exact(phi, X, V, kind(inputs))[2].max()) <= bound
    w, b = branches.best
    assert float(answered(phi, X, V, w, b)) == pytest.approx(branches.most, rel=1e-10)
    assert most_of_many(phi, X, V, normalize(torch.randn(2000, inputs).double(), dim=1)) <= bound


def of_loss(name, samples, generator):
    ones = torch.ones(samples, 1, dtype=torch.float64)
    y = normal(samples, 1, seed=generator)
    if name == "logistic":
        return Scores(tight(Sigmoid()), (y > 0).double(), ones)
    weights = ones if name == "squares" else ones + torch.arange(samples)[:, None] % 2
    if name == "huber":
        return HuberScores(tight(Identity()), y, weights, 0.4)
    return Scores(tight(Identity()), y, weights)


def stated(scores, name, f):
    y, s = scores.targets.numpy(), scores.weights.numpy()
    if name == "logistic":
        return cp.sum(cp.logistic(f) - cp.multiply(y, f))
    if name == "huber":
        huber = cp.huber(y - f, 0.4)  # type: ignore[arg-type]  # any positive number
        return cp.sum(cp.multiply(s, huber)) / 2
    return cp.sum(cp.multiply(s, cp.square(y - f))) / 2


def by_patterns(problem, name):
    """Return the optimum by one cone of weights for every pattern of signs (Pilanci and Ergen)."""
    X = torch.cat([problem.X, torch.ones_like(problem.X[:, :1])], 1)
    patterns = (X @ normal(20_000, X.shape[1], seed=1).T > 0).unique(dim=1)
    signs, rows = np.where(patterns.numpy(), 1.0, -1.0), X.numpy()
    slopes = np.where(patterns.numpy(), problem.phi.above, -problem.phi.below)
    f, penalty, held = cp.Variable((1, 1)) + np.zeros((len(rows), 1)), 0.0, []
    for side in (1.0, -1.0):
        u = cp.Variable((rows.shape[1], signs.shape[1]))
        held.append(cp.multiply(signs, rows @ u) >= 0)
        f = f + side * cp.sum(cp.multiply(slopes, rows @ u), axis=1, keepdims=True)
        penalty = penalty + 2 * problem.rho * cp.sum(cp.norm(u[:-1], axis=0))
    if problem.linear is not None:
        Q = cp.Variable((rows.shape[1] - 1, 1))
        f, penalty = f + rows[:, :-1] @ Q, penalty + problem.linear * cp.sum_squares(Q)
    goal = cp.Minimize(stated(problem.scores, name, f) + penalty)
    return cp.Problem(goal, held).solve("CLARABEL")


@pytest.mark.parametrize("name", ["squares", "weighted", "huber", "logistic"])
@pytest.mark.parametrize("inputs, phi, linear", [(1, RELU, 0.1), (2, LEAKY, None), (3, RELU, None)])
def test_the_optimum_is_that_of_all_patterns_of_signs(name, inputs, phi, linear):
    generator = torch.Generator().manual_seed(inputs)
    X = normal(6, inputs, seed=generator)
    problem = OneLayer(X, of_loss(name, 6, generator), phi, 0.05, (kind(inputs),), linear)
    gap = 1e-5 if inputs < 3 else 1e-2
    *_, last = rounds(problem, fitted(problem, problem.none()), 100, gap, 30.0)
    optimum = by_patterns(problem, name)
    assert last.bound <= optimum * (1 + 1e-7)
    assert optimum * (1 - 1e-6) <= last.objective <= optimum * (1 + 2 * gap)
    assert 0 <= last.gap <= gap


def test_rounds_end_where_there_is_no_room_and_say_so():
    X, y = drawn(2, 40, 2, 1)
    problem = OneLayer(X, Scores(tight(Identity()), y, torch.ones_like(y)), RELU, 0.01, (kind(2),))
    seen = []

    def told():
        reason = yield from rounds(problem, fitted(problem, problem.none()), 3, 1e-6, 30.0)
        seen.append(reason)

    *_, last = told()
    assert "more units than the 3" in seen[0]
    assert len(last.units) <= 3 and last.gap > 1e-6
