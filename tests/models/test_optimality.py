"""Networks trained to the global optimum, and how far others are from it.

Under constraints they are held against convex programs over all units in CVXPY.
"""

import re
from typing import Any
from unittest.mock import Mock

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import nn

from liftednet import Activation, global_gap, posterior
from liftednet.activations import LeakyReLU, ReLU, Tanh
from liftednet.constraints import Bounds, Budget, Declared, GroupRates, Order, Values
from liftednet.errors import DataError, DeclarationError, FitWarning
from liftednet.losses import BinaryCrossEntropy, CrossEntropy, Huber, Quantile, SquaredError
from liftednet.models import Checkpoint, Global, LiftedMLP, add_unit, global_path
from liftednet.models.results import Ending
from liftednet.penalties import L1, Nonnegative, SquaredFrobenius
from tests.draws import normal
from tests.models.networks import outcome, refuses, trace_of, warned
from tests.models.programs.networks import Called


def waves(samples=60, inputs=2):
    generator = torch.Generator().manual_seed(samples)
    X, noise = (normal(samples, n, seed=generator) for n in (inputs, 1))
    X = 3 * X + 1
    return X, torch.sin(X[:, :1]) * 5 + noise


def hinges(units, rho, method="global", **settings):
    """Return a network of ReLU for squares."""
    return LiftedMLP((2, units, 1), ReLU(), SquaredError(), rho=rho, method=method, **settings)


def of(loss, y):
    if isinstance(loss, CrossEntropy):
        return (y[:, 0] > 0).long() + (y[:, 0] > 2)
    return (y > 0).double() if isinstance(loss, BinaryCrossEntropy) else y


@pytest.mark.parametrize("loss", [SquaredError(), Huber(0.5), CrossEntropy(), BinaryCrossEntropy()])
@pytest.mark.parametrize("activation, skip", [(ReLU(), True), (LeakyReLU(0.2), False)])
def test_the_gap_of_a_fit_is_that_of_its_weights(loss, activation, skip):
    X, y = waves()
    outputs = 3 if isinstance(loss, CrossEntropy) else 1
    how = {"rho": (0.2, 0.5, 0.1)[: 2 + skip], "skip": skip, "method": "global"}
    model = LiftedMLP((2, 50, outputs), activation, loss, **how).fit(X, of(loss, y))
    found = global_gap(model, X, of(loss, y))
    assert found.relative <= 2e-4
    assert found.objective == pytest.approx(trace_of(model).objectives[-1], rel=1e-9)
    assert model.objective() == pytest.approx(found.objective, rel=1e-6)
    assert found.width == int((model.weights[0].matrix.norm(dim=0) > 0).sum()) < 50


UNPROVEN = [
    (3, "global", "more units than the 3 that there may be"),
    (50, Global(seconds=1e-9), "its 1e-09 s are over"),
    (50, Global(rounds=2), "its 2 rounds are used up"),
]


@pytest.mark.parametrize("units, method, said", UNPROVEN)
def test_a_gap_that_is_not_proven_is_told(units, method, said, tmp_path):
    X, y = waves(30)
    model = hinges(units, 0.01, method)
    warned(said, model.fit, X, y, checkpoint=tmp_path / "fit")
    assert trace_of(model).ending is Ending.BUDGET
    objective = model.objective()
    with pytest.warns(FitWarning, match=said):  # nothing is left to do, and nothing more is proven
        model.fit(X, y, checkpoint=tmp_path / "fit", resume=True)
    assert trace_of(model).ending is Ending.BUDGET and model.objective() == objective


@pytest.mark.parametrize("seed", [0, 17, 34])  # units far above 0 that a bias has to make up for
def test_a_torch_network_has_the_gap_of_the_same_weights(seed):
    torch.manual_seed(seed)
    X, y = waves(30)
    network = nn.Sequential(nn.Linear(2, 5), nn.LeakyReLU(0.1), nn.Linear(5, 1)).double()
    how: dict[str, Any] = {"loss": SquaredError(), "rho": 0.3}
    squares = sum(float(x.detach().square().sum()) for x in network.parameters() if x.ndim == 2)
    for loss, delta in ((Huber(0.3), 0.3), (SquaredError(), 1e9)):
        found = global_gap(network, X, y, loss=loss, rho=0.3)
        errors = nn.functional.huber_loss(network(X), y, delta=delta, reduction="sum")
        assert found.objective == pytest.approx(float(errors.detach()) + 0.3 * squares, rel=1e-9)
    assert 0 < found.bound <= found.best < found.objective
    wider = add_unit(network, found)
    assert wider[0].weight.shape == (6, 2)
    again = global_gap(wider, X, y, **how)
    assert again.bound <= again.objective < found.objective


@pytest.mark.parametrize("weighted", [False, True])
def test_no_constant_is_below_the_bound_of_a_robust_loss(weighted, generator):
    """Nor far below the best that is found: most targets lie beyond delta, where H is linear."""
    network = nn.Sequential(nn.Linear(1, 5), nn.ReLU(), nn.Linear(5, 1)).double()
    for rows in range(2, 12):
        X = torch.randn(rows, 1, generator=generator, dtype=torch.float64)
        y = X.new_empty(rows, 1).cauchy_(generator=generator) * 10 ** (rows % 3)
        drawn = X.new_empty(rows).exponential_(generator=generator)
        drawn[0] = 0.0 if rows > 2 else 1.0
        times = drawn if weighted else X.new_ones(rows)
        gap = global_gap(network, X, y, loss=Huber(0.01), rho=10.0, sample_weight=times)
        off = (y - y.T).abs()  # of every target as a constant
        constant = float((times @ torch.where(off < 0.01, off**2 / 2, 0.01 * off - 5e-5)).min())
        assert gap.bound <= constant * (1 + 1e-9)
        assert gap.bound <= gap.best <= min(1.001 * constant, 1.001 * gap.bound)


@pytest.mark.parametrize("skip", [False, True])
def test_a_unit_is_added_on_the_scale_of_training(skip):
    X, y = waves(30)
    y = 1000 * y + 5000
    model = hinges(1, 0.1, "gauss-newton", skip=skip).fit(X, y)
    found = global_gap(model, X, y)
    wider = add_unit(model, found)
    new = global_gap(wider, X, y)
    assert wider.sizes == (2, 2, 1) and model.sizes == (2, 1, 1) and new.width == 2
    assert found.bound * (1 - 1e-6) <= new.objective < found.objective
    wider.warm_start = True
    assert wider.fit(X, y).objective() <= new.objective * (1 + 1e-9)


def test_a_fit_goes_on_from_its_checkpoint_to_the_same_bits(tmp_path):
    X, y = waves(50)
    stop = Mock(side_effect=[None, None, None, KeyboardInterrupt])
    file, whole, model = tmp_path / "fit", hinges(40, 0.1).fit(X, y), hinges(40, 0.1)
    model.fit(X, y, checkpoint=Checkpoint(file, seconds=0.0), on_step=stop)
    model.fit(X, y, checkpoint=file, resume=True)
    assert outcome(model) == outcome(whole)  # and no round twice


NOT_CONVEX = [
    ((2, 5, 5, 1), {}, "one hidden layer"),
    ((2, 5, 1), {"activations": Tanh()}, "phi(c u) = c phi(u)"),
    ((2, 5, 1), {"loss": Quantile(0.5)}, "smooth and convex"),
    ((2, 5, 1), {"rho": None, "penalty": L1(0.1)}, "rho on every layer"),
    ((2, 5, 1), {"bias": False}, "with a bias"),
    ((2, 5, 1), {"divergence": "joint"}, "tight"),
    ((2, 5, 1), {"missing": True}, "whole"),
]


@pytest.mark.parametrize("sizes, options, said", NOT_CONVEX)
def test_what_is_not_convex_in_its_units_is_refused(sizes, options, said):
    given = {"activations": ReLU(), "loss": SquaredError(), "rho": 0.1, **options}
    found = refuses(DeclarationError, re.escape(said), LiftedMLP, sizes, method="global", **given)
    assert any(x in str(found) for x in ("another method", "divergence='tight'"))


def test_bad_numbers_and_missing_answers_are_refused():
    refuses(DataError, "gap", lambda: Global(gap=0.0))
    X, y = waves(20)
    network = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 1)).double()
    refuses(DataError, "pass loss", lambda: global_gap(network, X, y))
    refuses(DeclarationError, "torch network", lambda: global_gap(1.0, X, y))
    how = {"loss": SquaredError(), "rho": 0.1}
    refuses(DataError, "reads rows of 2 numbers", global_gap, network, X[:, :1], y, **how)


def test_of_an_absolute_value_it_is_said_what_does_instead():
    X, y = waves(20)
    network = nn.Sequential(nn.Linear(2, 5), Called(torch.abs), nn.Linear(5, 1)).double()
    words = re.escape("two units of ReLU()")
    refuses(DeclarationError, words, global_gap, network, X, y, loss=SquaredError(), rho=0.1)
    refuses(DeclarationError, words, Activation.from_function, torch.abs)


def units(model):
    return int((model.weights[0].matrix.norm(dim=0) > 0).sum())


@pytest.mark.parametrize("skip", [False, True])
def test_a_path_begins_where_a_unit_does_and_each_step_is_the_fit_at_its_rho(skip):
    X, y = waves(30)
    rho = (0.4, 0.1, 0.2)[: 2 + skip]
    model = hinges(40, rho, Global(1e-6), skip=skip, dtype=torch.float64).fit(X, y)
    path = global_path(model, smallest=0.05, number=4, gap=1e-6)
    assert path[2].model.objective() == pytest.approx(path[2].objective, rel=1e-9)
    largest = path[0].rho ** (4 / 3) / path[-1].rho ** (1 / 3)
    assert path[-1].rho == pytest.approx(0.05) and path[0].rho < largest
    assert [step.width for step in path] == sorted(step.width for step in path)
    for pull, width in ((1.001 * largest, 0), (0.99 * largest, 1), (path[1].rho, None)):
        factors = (2 * pull, pull / 2, 0.2)[: 2 + skip]
        alone = hinges(40, factors, Global(1e-6), skip=skip, dtype=torch.float64).fit(X, y)
        assert width is None or width == units(alone)  # of others its objective does not tell it
    assert path[1].width == units(path[1].model)
    assert path[1].objective == pytest.approx(alone.objective(), rel=1e-5)
    bars = posterior(path[1].model)
    # Optima lie on kinks, whose side rounding chooses: the evidence of two fits need not be near.
    assert path[1].evidence == bars.log_evidence
    assert path[1].error == pytest.approx(float(bars.leave_one_out().square().mean()))
    refuses(DataError, "there is no unit", lambda: global_path(model, smallest=2 * largest))


@pytest.mark.parametrize("skip", [False, True])
def test_error_bars_of_an_optimum_are_those_of_its_units_alone(skip):
    X, y = waves(8)
    y = y + 0.1 * normal(8, 1)
    found = []
    for units in (8, 12):
        model = hinges(units, 0.3, Global(2e-9), skip=skip, dtype=torch.float64).fit(X, y)
        # Kinks lie in rows: rounding has no say in which side of them these are on.
        hidden = model.weights[0]
        assert float(hidden.apply(X)[:, hidden.matrix.norm(dim=0) > 0].abs().min()) > 1e-15
        bars = posterior(model)
        found.append((bars.log_evidence, bars.leave_one_out(), bars.predict(X[:5]).std))
    for one, other in zip(*found, strict=True):
        assert one == pytest.approx(other, rel=1e-6)


RHO, SIDES = 0.1, np.array([[1.0], [-1.0]])


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
    wanted, prices = program([(dictionary(X, SIDES, slope), False)], y, held)
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
    grid = turning(60) if inputs == 2 else SIDES
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
        assert direction == 0 or float((direction * net.predict(line).diff(dim=0)).min()) >= -1e-9


SQUARE = SquaredFrobenius(RHO)


KINDS_OF_UNITS = [
    (4, {"interaction_cst": "no_interactions"}, False),  # sums of functions of one input
    (1, {"rho": None, "penalty": [SQUARE, SQUARE + Nonnegative(0)]}, True),  # convex sums
]


@pytest.mark.parametrize("inputs, settings, positive", KINDS_OF_UNITS)
def test_an_optimum_of_units_of_some_kind_is_proven(inputs, settings, positive):
    X, y, given = rows(24, inputs)
    parts = [(dictionary(X[:, [k]], SIDES), positive) for k in range(inputs)]
    net = model(inputs, **settings).fit(X, given)
    assert net.objective() == pytest.approx(program(parts, y)[0], rel=1e-6)
    assert trace_of(net).steps[-1].residual < 1e-6


def test_units_to_which_signs_leave_no_input_are_none():
    X, _, given = rows(24, 2)
    how = {"interaction_cst": "no_interactions", "monotonic_cst": [0, 1]}
    net = model(2, **how).fit(X, given)
    assert trace_of(net).steps[-1].residual < 1e-4
    other = model(2, method="gauss-newton", **how).fit(X, given)
    assert net.objective() <= other.objective() * (1 + 1e-6)


def test_signs_beyond_the_plane_are_proven_by_cells():
    X, _, given = rows(12, 3)
    net = model(3, rho=0.4, monotonic_cst=[1, 1, -1], method=Global(5e-2, 30.0)).fit(X, given)
    assert trace_of(net).steps[-1].residual <= 5e-2
    free = model(3, rho=0.4, method=Global(5e-2, 30.0)).fit(X, given)
    assert global_gap(free, X, given).bound <= net.objective()


def test_two_classes_that_rise_have_a_proven_optimum():
    X, y, _ = rows(40, 2)
    how: dict[str, Any] = {"rho": RHO, "monotonic_cst": [1, 0], "dtype": torch.float64}
    labels = torch.from_numpy(y > 0).long()
    net = LiftedMLP((2, 40, 2), ReLU(), CrossEntropy(), method="global", **how).fit(X, labels)
    assert global_gap(net, X, labels).relative < 2e-4
    line = torch.zeros(20, 2, dtype=torch.float64)
    line[:, 0] = torch.linspace(-1, 1, 20)
    assert float(net.predict_proba(line)[:, 1].diff().min()) >= -1e-12


def test_what_no_network_meets_or_what_is_not_convex_is_refused():
    X, y, given = rows()
    labels = torch.from_numpy(y > 0).long()
    how: dict[str, Any] = {"rho": RHO, "method": "global"}
    two, rates = LiftedMLP((1, 20, 2), **how), [GroupRates(np.arange(24) % 2, 0.1)]
    short = [Declared(lambda U: cp.norm(U) <= 1)]
    refuses(DeclarationError, "not convex", two.fit, X, labels, constraints=rates)
    refuses(DeclarationError, "CVXPY alone", model(1).fit, X, given, constraints=short)
    words, how = "this network has 2 outputs", {**how, "monotonic_cst": [1]}
    refuses(DeclarationError, words, LiftedMLP, (1, 20, 2), ReLU(), SquaredError(), **how)
    net = model(1).fit(X, given, constraints=[Budget(-0.4)])
    refuses(DataError, "without constraints", global_path, net, smallest=0.05)
