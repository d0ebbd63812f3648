"""Global optima under constraints, against convex programs over all units in CVXPY."""

import cvxpy as cp
import numpy as np
import pytest
import torch

from liftednet import global_gap
from liftednet.activations import LeakyReLU, ReLU
from liftednet.constraints import Bounds, Budget, Declared, GroupRates, Order, Values
from liftednet.errors import DataError, DeclarationError
from liftednet.losses import CrossEntropy, SquaredError
from liftednet.models import Global, LiftedMLP, global_path
from liftednet.penalties import Nonnegative, SquaredFrobenius

RHO = 0.1


def rows(samples=24, inputs=1):
    generator = np.random.default_rng(samples + inputs)
    X = generator.uniform(-1, 1, (samples, inputs))
    y = np.sin(4 * X.sum(1)) + 0.3 * generator.normal(size=samples)
    y = (y - y.mean()) / y.std()
    return X, y, torch.from_numpy(y)[:, None]


def dictionary(X, directions, slope=0.0):
    """What units of some directions through every row answer: all that the optimum can need."""
    u = X @ directions.T
    u = (u[:, None] - u[None]).reshape(len(X), -1)
    return np.maximum(u, 0) + slope * np.minimum(u, 0)


def turning(number):
    angle = np.arange(number) * 2 * np.pi / number
    return np.stack([np.cos(angle), np.sin(angle)], 1)


def program(parts, y, held=lambda f: []):
    """min |y - f|^2 / 2 + 2 rho sum |a| over units (answers, whether a >= 0); value and prices."""
    c = cp.Variable()
    a = [cp.Variable(H.shape[1], nonneg=positive) for H, positive in parts]
    f = sum(H @ x for (H, _), x in zip(parts, a, strict=True)) + c
    loss = cp.sum_squares(y - f) / 2 + 2 * RHO * sum(cp.norm1(x) for x in a)
    constraints = held(f)
    problem = cp.Problem(cp.Minimize(loss), constraints)
    problem.solve(solver=cp.CLARABEL, tol_gap_rel=1e-10, tol_gap_abs=1e-10, tol_feas=1e-10)
    return problem.value, [x.dual_value for x in constraints]


def model(inputs, activation=None, **settings):
    settings = {"rho": RHO, "method": Global(1e-7), **settings}
    return LiftedMLP(
        (inputs, 60, 1), activation or ReLU(), SquaredError(), standardize=False,
        dtype=torch.float64, **settings,
    )  # fmt: skip


GROUPS = [(0, 1), (2, 3), (4, 5)]
HELD = {
    "bounded": ([Bounds(-0.5, 0.5)], lambda f: [f <= 0.5, f >= -0.5]),
    "sum": ([Budget(-0.4)], lambda f: [cp.sum(f) / f.shape[0] <= -0.4]),
    "pairs": ([Order(GROUPS, 0.2)], lambda f: [f[i] + 0.2 <= f[j] for i, j in GROUPS]),
    "met": ([Values([3, 7], [1.0, -1.0])], lambda f: [f[[3, 7]] == np.array([1.0, -1.0])]),
}


@pytest.mark.parametrize("name, slope", [*((name, 0.0) for name in HELD), ("bounded", 0.2)])
def test_scores_under_constraints_are_those_of_a_program_over_all_units(name, slope):
    X, y, given = rows()
    constraints, held = HELD[name]
    H = dictionary(X, np.array([[1.0], [-1.0]]), slope)
    wanted, prices = program([(H, False)], y, held)
    net = model(1, LeakyReLU(slope) if slope else None)
    net.fit(torch.from_numpy(X), given, constraints=constraints)
    report = net.constraint_report()
    assert net.objective() == pytest.approx(wanted, rel=1e-6)
    assert max(report.violations) < 1e-9
    found = global_gap(net, X, given)
    assert found.bound <= wanted * (1 + 1e-8) and found.relative < 1e-6
    paid = np.abs(report.prices[0].numpy()).sum()
    assert paid == pytest.approx(sum(np.abs(x).sum() for x in prices), rel=1e-3)


def test_a_bound_in_the_plane_is_below_a_program_over_many_directions():
    X, y, given = rows(16, 2)
    wanted, _ = program([(dictionary(X, turning(60)), False)], y, HELD["bounded"][1])
    net = model(2, method=Global(1e-5)).fit(X, given, constraints=HELD["bounded"][0])
    found = global_gap(net, X, given)
    assert found.bound <= net.objective() <= wanted * (1 + 1e-6)
    assert wanted <= found.bound * 1.01  # as near as the directions are
    assert found.relative < 1e-4


def signed(X, cst, grid):
    """Units that increase, and that decrease, in what has a direction, and that do not see it."""
    inside = (grid * cst >= -1e-12).all(1)
    up = dictionary(X, grid[inside])
    down = dictionary(X, -grid[inside])
    free = (np.abs(grid[:, np.array(cst) != 0]) < 1e-12).all(1)
    other = [(dictionary(X, grid[free]), False)] if free.any() else []
    return [(up, True), (-down, True), *other]


@pytest.mark.parametrize("inputs, cst", [(1, [1]), (1, [-1]), (2, [1, -1]), (2, [0, 1])])
def test_monotone_optima_are_those_of_monotone_units(inputs, cst):
    X, y, given = rows(20, inputs)
    grid = turning(60) if inputs == 2 else np.array([[1.0], [-1.0]])
    wanted, _ = program(signed(X, cst, grid), y)
    net = model(inputs, monotonic_cst=cst, method=Global(1e-6)).fit(X, given)
    found = global_gap(net, X, given)
    assert found.relative < 1e-5
    assert found.bound <= wanted * (1 + 1e-8)
    assert net.objective() == pytest.approx(wanted, rel=1e-6 if inputs == 1 else 1e-2)
    steps = torch.linspace(-1, 1, 30, dtype=torch.float64)
    for place, direction in enumerate(cst):
        line = torch.zeros(30, inputs, dtype=torch.float64)
        line[:, place] = steps
        rises = direction * net.predict(line).diff(dim=0)
        assert direction == 0 or float(rises.min()) >= -1e-9


def test_an_additive_optimum_of_many_inputs_is_proven():
    X, y, given = rows(40, 4)
    parts = [(dictionary(X[:, [k]], np.array([[1.0], [-1.0]])), False) for k in range(4)]
    wanted, _ = program(parts, y)
    net = model(4, interaction_cst="no_interactions", method=Global(1e-7))
    net.fit(X, given)
    assert net.objective() == pytest.approx(wanted, rel=1e-6)
    assert net.trace.steps[-1].residual < 1e-6


def test_signs_beyond_the_plane_are_proven_by_cells():
    X, _, given = rows(12, 3)
    net = model(3, rho=0.4, monotonic_cst=[1, 1, -1], method=Global(5e-2, 30.0))
    net.fit(X, given)
    assert net.trace.steps[-1].residual <= 5e-2
    free = model(3, rho=0.4, method=Global(5e-2, 30.0)).fit(X, given)
    assert global_gap(free, X, given).bound <= net.objective()


def test_outputs_of_one_sign_are_convex_sums():
    X, y, given = rows()
    up = dictionary(X, np.array([[1.0], [-1.0]]))
    wanted, _ = program([(up, True)], y)
    square = SquaredFrobenius(RHO)
    net = model(1, rho=None, penalty=[square, square + Nonnegative(0)])
    net.fit(X, given)
    assert net.objective() == pytest.approx(wanted, rel=1e-6)


def test_two_classes_that_rise_have_a_proven_optimum():
    X, y, _ = rows(40, 2)
    net = LiftedMLP(
        (2, 40, 2), ReLU(), CrossEntropy(), rho=RHO, method="global", monotonic_cst=[1, 0],
        dtype=torch.float64,
    ).fit(X, torch.from_numpy(y > 0).long())  # fmt: skip
    assert global_gap(net, X, torch.from_numpy(y > 0).long()).relative < 2e-4
    line = torch.zeros(20, 2, dtype=torch.float64)
    line[:, 0] = torch.linspace(-1, 1, 20)
    assert float(net.predict_proba(line)[:, 1].diff().min()) >= -1e-12


def test_what_no_network_meets_or_what_is_not_convex_is_refused():
    X, y, given = rows()
    with pytest.raises(DataError, match="contradict"):
        model(1).fit(X, given, constraints=[Bounds(upper=0.0), Budget(-1.0), Bounds(lower=-0.5)])
    classes = LiftedMLP((1, 20, 2), ReLU(), CrossEntropy(), rho=RHO, method="global")
    groups = np.arange(len(y)) % 2
    with pytest.raises(DeclarationError, match="not convex"):
        classes.fit(X, torch.from_numpy(y > 0).long(), constraints=[GroupRates(groups, 0.1)])
    short = Declared(lambda U: cp.norm(U) <= 1)
    with pytest.raises(DeclarationError, match="CVXPY alone"):
        model(1).fit(X, given, constraints=[short])
    with pytest.raises(DeclarationError, match="this network has 2 outputs"):
        LiftedMLP((1, 20, 2), ReLU(), SquaredError(), rho=RHO, method="global", monotonic_cst=[1])
    net = model(1).fit(X, given, constraints=[Budget(-0.4)])
    with pytest.raises(DataError, match="without constraints"):
        global_path(net, smallest=0.05)
