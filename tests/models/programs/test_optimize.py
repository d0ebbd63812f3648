"""Proven optima: against CVXPY's own solution, grids and samples; and what is refused."""

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import nn

from liftednet import LiftedRegressor, optimize, to_cvxpy
from liftednet.errors import DataError, DeclarationError, SolverError
from tests.models.networks import refuses
from tests.models.programs.networks import by_highs, chain, drawn, grid, stated, values

RNG = np.random.default_rng(0)


def test_a_proven_maximum_is_attained_and_above_all_samples() -> None:
    network = chain(4, 12, 8, 1)
    x, found = stated(network, 4)
    best = optimize(found, cp.Maximize(found.output[0]), gap=1e-6)
    assert best.proven and best.gap <= 1e-6 and best.bound >= best.value - 1e-9 * abs(best.value)
    assert values(network, x.value)[0][0] == pytest.approx(best.value, rel=1e-9)
    assert found.output.value[0] == pytest.approx(best.value, rel=1e-12)
    assert values(network, best.x)[0][0] >= best.first[0] - 1e-9
    assert values(network, RNG.uniform(-1, 1, (20_000, 4))).max() <= best.bound
    assert by_highs(cp.Maximize(found.output[0]), found) == pytest.approx(best.value, rel=1e-5)


@pytest.mark.parametrize("size", [1e-9, 1e9])
def test_proofs_are_relative_to_the_objectives_own_size(size: float) -> None:
    network = chain(3, 8, 1, activation=nn.Tanh(), seed=2)
    with torch.no_grad():
        last: Any = network[-1]
        last.weight *= size
        last.bias *= size
    for direction in (cp.Minimize, cp.Maximize):
        _, found = stated(network, 3)
        best = optimize(found, direction(found.output[0]))
        seen = values(network, RNG.uniform(-1, 1, (20_000, 3)))
        sign = 1 if direction is cp.Minimize else -1
        assert best.proven and abs(best.value - best.bound) <= 1e-3 * np.ptp(seen)
        assert sign * best.bound <= (sign * seen).min()


SLACK: Any = cp.Variable(nonneg=True)
LIMITED: dict[str, tuple[Any, Any, Any, float]] = {
    "halved boxes": (
        chain(3, 8, 6, 2, seed=4), lambda x, y: y[0] - 0.5 * y[1] + x[2],
        lambda x, _: [cp.sum(x) == 0.3, x[0] - 2 * x[1] <= 0.4, x[2] <= 0.5], 2e-5,
    ),
    "split units": (
        chain(20, 6, 1, seed=1), lambda x, y: y[0] - x[3],
        lambda x, y: [cp.sum(x) <= 1, x[0] + x[1] >= 0.5, y[0] <= 20], 2e-4,
    ),
    "split units that bend both ways": (
        chain(20, 6, 1, activation=nn.Hardtanh()), lambda x, y: y[0] - x[3],
        lambda x, _: [cp.sum(x) <= 1], 2e-4,
    ),
    "other variables": (
        chain(3, 8, 2, seed=1), lambda x, y: y[0] - 5 * SLACK,
        lambda x, y: [cp.sum(x) == 0.3, y[1] <= 0.2 + SLACK, cp.norm(x, 1) <= 1.5], 2e-4,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("network", "aim", "limits", "near"), LIMITED.values(), ids=LIMITED)
def test_what_is_proven_under_constraints_is_what_highs_finds(network, aim, limits, near) -> None:
    x, found = stated(network, network[0].in_features)
    objective, held = cp.Maximize(aim(x, found.output)), limits(x, found.output)
    best = optimize(found, objective, held, gap=near / 2)
    assert best.proven
    assert all(np.max(one.violation()) < 1e-6 for one in held)
    wanted = by_highs(objective, found, *held)
    assert best.value == pytest.approx(wanted, rel=near) and best.bound >= wanted * (1 - 1e-9)


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Tanh()], ids=repr)
def test_a_target_that_is_attained_is_proven_by_its_sign(activation) -> None:
    network = chain(5, 20, 20, 1, activation=activation, seed=4)
    x, found = stated(network, 5, mixed_integer=True)
    distance = cp.sum_squares(found.output - values(network, [0.3] * 5)[0])
    best = optimize(found, cp.Minimize(distance))
    assert best.proven and best.bound == 0 and best.nodes < 100
    assert values(network, x.value)[0] == pytest.approx(values(network, [0.3] * 5)[0], abs=1e-4)


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.GELU()], ids=repr)
def test_smooth_networks_are_refined_until_the_gap(activation) -> None:
    network = chain(2, 5, 1, activation=activation, seed=3)
    x, found = stated(network, 2, mixed_integer=True)
    best = optimize(found, cp.Maximize(found.output[0]), gap=1e-3)
    assert best.proven
    most = values(network, grid(-1, 1, 201)).max()
    assert most <= best.bound + 1e-9 and best.value >= most - 1e-6
    assert values(network, x.value)[0][0] == pytest.approx(best.value, rel=1e-9)


@pytest.mark.parametrize(("center", "width", "size"), [(1e5, 1e3, 1e-3), (1e6, 2e4, 1e-3)])
def test_the_bound_of_a_convex_problem_holds_in_any_units(center, width, size) -> None:
    draw = np.random.default_rng(1)
    z = draw.uniform(-1, 1, (200, 2))
    y = size * (np.sin(4 * z[:, 0]) + 4 * z[:, 1] ** 2)
    model = LiftedRegressor((10,), "softplus", convex=True, random_state=0)
    rows = center + width * z
    model.fit(rows, y)
    ends, x = (rows.min(0), rows.max(0)), cp.Variable(2)
    network = to_cvxpy(model, x, box=ends)
    best = optimize(network, cp.Minimize(network.output[0]))
    found = model.predict(draw.uniform(*ends, (50_000, 2)))
    assert best.x is not None and best.proven and best.bound <= found.min() + 1e-6 * np.ptp(found)
    rows = [x >= ends[0], x <= ends[1]]  # of which no units are read
    plain = to_cvxpy(model, x)
    assert not optimize(plain, cp.Minimize(plain.output[0]), rows).proven
    assert (best.x >= ends[0]).all() and (best.x <= ends[1]).all()
    assert best.value == pytest.approx(float(model.predict(best.x[None])[0]), abs=1e-6 * size)


def test_a_convex_problem_has_the_bound_of_its_dual() -> None:
    network = chain(6, 10, 1)
    with torch.no_grad():
        network[2].weight.abs_()
    x: Any = cp.Variable(6)
    found = to_cvxpy(network, x)
    best = optimize(found, cp.Minimize(found.output[0] + cp.sum_squares(x)), gap=1e-7)
    assert best.proven and abs(best.value - best.bound) <= 1e-7 * abs(best.value)
    refuses(DeclarationError, "mixed_integer=True", optimize, found, cp.Maximize(found.output[0]))


@pytest.mark.parametrize("convex", [False, True])
def test_what_variables_are_by_themselves_is_a_constraint(convex) -> None:
    network = chain(2, 5, 1, seed=1)
    if convex:
        network[2].weight.data.abs_()
    alone = to_cvxpy(network, cp.Variable((2, 2), symmetric=True), box=(-1, 1))
    X, found = stated(network, (2, 2))
    aim, own = (
        cp.Minimize(cp.sum(one.output) + 2 * one.x[0, 1] - 3 * one.x[1, 0] - one.x[0, 0])
        for one in (found, alone)
    )
    best = optimize(found, aim, [X == X.T])
    assert best.proven and best.value == pytest.approx(by_highs(own, alone), rel=2e-4)
    refuses(DeclarationError, "symmetric.* X == X.T", optimize, alone, own)
    other = cp.Variable((2, 2), diag=True)
    refuses(DeclarationError, "diag=", optimize, found, aim, [other <= X])


WIDE, FLAT, BESIDE = cp.Variable(6), cp.Variable(2), cp.Variable(nonneg=True)
PLACES = [(10 * WIDE, 0), (np.arange(12).reshape(6, 2) / 99 @ FLAT, 0), (WIDE + 0.3, BESIDE)]


@pytest.mark.parametrize(("x", "other"), PLACES)
def test_a_point_to_begin_from_is_one_of_x_whatever_x_is_made_of(x, other) -> None:
    """A peak so narrow that nothing but the point that is given leads to it."""
    FLAT.value, WIDE.value = np.array([1.0, 2.0]), np.linspace(-0.05, 0.05, 6)
    peak = x.value
    network = drawn(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1), nn.ReLU())
    with torch.no_grad():
        network[0].weight.copy_(1e4 * torch.cat([torch.eye(6), -torch.eye(6)]))
        network[0].bias.copy_(network[0].weight @ -torch.from_numpy(peak))
        network[2].weight.fill_(-1.0)
        network[2].bias.fill_(1.0)
    found = to_cvxpy(network, x, box=(-1, 1))
    aim, limits = cp.Maximize(found.output[0] - other), [x[0] - 1 <= other]
    for x0, first in ((None, 0.0), (peak, 1.0)):
        best = optimize(found, aim, limits, x0, seconds=0.01)
        assert best.first[0] == pytest.approx(first, abs=1e-6)


BORDERED: dict[str, tuple[Any, Any]] = {
    "inv_pos": (lambda y: cp.inv_pos(y[0]), lambda y, z: 1 / y),
    "quad_over_lin": (lambda y: cp.quad_over_lin(y[1] - 1, y[0]), lambda y, z: (z - 1) ** 2 / y),
    "sqrt": (lambda y: -cp.sqrt(y[0]) - y[1], lambda y, z: -np.sqrt(y) - z),
    "log": (lambda y: -cp.log(y[0]) - y[1], lambda y, z: -np.log(y) - z),
    "kl_div": (lambda y: cp.kl_div(y[0], 0.2) + y[1], lambda y, z: y * np.log(5 * y) - y + 0.2 + z),
}


@pytest.mark.parametrize(("aim", "of"), BORDERED.values(), ids=BORDERED)
def test_what_has_values_on_one_side_alone_is_proven_there(aim, of) -> None:
    """Outputs change their signs; an atom may still have a value where it is not convex."""
    network = drawn(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2), seed=3)
    _, found = stated(network, 2)
    best = optimize(found, cp.Minimize(aim(found.output)))
    y, z = values(network, grid(-1, 1, 401)).T
    least = of(*np.where(y > 0, (y, z), np.nan))
    assert (y < 0).any() and best.proven
    assert best.bound <= np.nanmin(least) and best.value == pytest.approx(
        np.nanmin(least), abs=1e-3
    )


def test_equal_sides_leave_a_region_to_search() -> None:
    """And what is given to begin from is kept."""
    network = chain(10, 20, 1, seed=1)
    x, found = stated(network, 10)
    aim, limits = cp.Maximize(found.output[0]), [x[0] == x[1], cp.sum(x) == 0.3]
    wanted = by_highs(aim, found, *limits)
    start: Any = np.clip(np.array(x.value), -1, 1)
    assert optimize(found, aim, limits, seconds=10).value == pytest.approx(wanted, rel=1e-3)
    assert optimize(found, aim, limits, start).first[0] >= wanted - 1e-4 * abs(wanted)


def test_answers_lie_in_the_box_whatever_solvers_leave() -> None:
    network = chain(2, 8, 2, seed=5)
    with torch.no_grad():
        network[-1].weight *= 1e6
        network[-1].bias *= 1e6
    _, found = stated(network, 2)
    target = values(network, np.zeros(2))[0] + np.array([3e6, -5e6])
    best = optimize(found, cp.Minimize(cp.sum_squares(found.output - target)))
    assert best.x is not None and np.abs(best.x).max() <= 1 + 1e-9


def test_a_limit_of_time_leaves_a_bound() -> None:
    network = chain(10, 40, 40, 1)
    _, found = stated(network, 10, seconds=0.2)
    best = optimize(found, cp.Maximize(found.output[0]), seconds=0.5)
    assert not best.proven and "not proven" in str(best)
    assert best.value < best.bound
    assert values(network, best.x)[0][0] == pytest.approx(best.value, rel=1e-9)


def test_what_cannot_be_solved_is_refused() -> None:
    network = chain(2, 4, 1)
    free: Any = cp.Variable()
    x, found = stated(network, 2)
    y, best = found.output[0], cp.Maximize(found.output[0])
    p: Any = cp.Parameter()
    (_, line), constant = stated(nn.Linear(2, 1), 2), to_cvxpy(network, np.zeros(2), box=(-1, 1))
    steep, lowest = cp.Maximize(p * x[0] + y), cp.Minimize(line.output[0])
    given = to_cvxpy(network, cp.hstack([p, x[1]]), box=(-1, 1))
    other = to_cvxpy(chain(2, 3, 1), x, box=(-1, 1)).output[0]
    whole = to_cvxpy(nn.Linear(2, 1), cp.Variable(2, integer=True), box=(-1, 1))
    column, row = cp.reshape(x, (2, 1), order="F"), cp.reshape(x, (1, 2), order="F")
    refused: list[tuple[Any, Any, Any, Any, str]] = [
        (found, steep, [], DataError, "param.* no value"),
        (found, best, [x[0] <= p], DataError, "param.* no value"),
        (line, lowest, [line.x[0] <= p], DataError, "param.* no value"),
        (given, cp.Maximize(given.output[0]), [], DataError, "param.* no value"),
        (constant, cp.Maximize(constant.output[0]), [], DeclarationError, "nothing to choose"),
        (found, best, [[x <= 1]], DeclarationError, "must be a list"),
        (found, best, [x[0]], DeclarationError, "must be a list"),
        (found, best, None, DeclarationError, "must be a list.* got None"),
        (line, lowest, [True], DeclarationError, r"must be a list.* got \[True\]"),
        (found, best, [cp.sum(x) >= 3], SolverError, "no input meets"),
        (found, best, [other <= 1], DeclarationError, "of another network"),
        (line, cp.Minimize(line.output[0] + other), [], DeclarationError, "of another network"),
        (found, cp.Maximize(y + found.states[0][0]), [], DeclarationError, "of another network"),
        (whole, cp.Minimize(whole.output[0]), [], DeclarationError, "whole numbers"),
        (found, best, [cp.sum(cp.maximum(column, row)) <= 1], DeclarationError, "several shapes"),
        (found, cp.Maximize(y + free), [], SolverError, "no best value"),
        (found, cp.Maximize(cp.square(y)), [], DeclarationError, "not convex"),
        (found, cp.Maximize(found.output), [], DeclarationError, "one number"),
        (found, best, cp.sum(x) <= 1, DeclarationError, "must be a list"),
        (found, y, [], DeclarationError, r"cp\.Minimize"),
        (network, best, [], DataError, r"to_cvxpy\(model.* returns, got Sequential"),
    ]
    for given, objective, limits, error, words in refused:
        refuses(error, words, optimize, given, objective, limits)
    for one, aim in ((found, best), (line, lowest)):
        for x0, words in (
            (np.zeros(3), r"shape \(2,\) of x, got \(3,\)"),
            ([0.0, 1.1], "in the box"),
            (["a", "b"], "numbers"),
        ):
            refuses(DataError, f"x0.* {words}", optimize, one, aim, x0=x0)
    refuses(DataError, "gap", optimize, found, best, gap=0.0)
