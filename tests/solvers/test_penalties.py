"""Fits with penalties, against the reference, and by coordinates, against scikit-learn."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear
from sklearn.linear_model import ElasticNet, MultiTaskLasso
from torch import Tensor

from liftednet import activations, penalties
from liftednet.divergences import joint, tight
from liftednet.errors import DataError, DeclarationError
from liftednet.penalties import L1, Declared, GroupLasso, Nonnegative, Penalty, SquaredFrobenius
from liftednet.problems import BlockFit, Design, WeightFit
from liftednet.solution import Status
from liftednet.solvers import solve
from liftednet.solvers.newton_weights import proximal_newton
from tests.draws import normal
from tests.models.networks import refuses
from tests.solvers.registry import RIDGE, SIGNED, weight_fit

SETS: list[Penalty] = [
    Nonnegative(), Nonnegative(0.2) + RIDGE, penalties.FixedZeros(torch.eye(4, 3)),
    penalties.Signs(torch.tensor([[1.0], [-1.0], [1.0], [-1.0]])) + RIDGE,
    penalties.RowNorm(0.3), penalties.ColumnNorm(0.3), penalties.SpectralNorm(0.4),
]  # fmt: skip


@pytest.mark.parametrize("penalty", SETS, ids=repr)
@pytest.mark.parametrize("kind", [tight, joint])
def test_duals_of_a_set_of_weights_are_those_of_cvxpy(penalty: Any, kind: Any) -> None:
    problem = replace(weight_fit(kind(activations.Sigmoid()), torch.float64), penalty=penalty)
    stated = problem.formulate().problem
    stated.solve("CLARABEL", tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    wanted = torch.as_tensor(stated.constraints[0].dual_value, dtype=torch.float64)
    for solver in ("auto", "reference"):
        (found,) = solve(problem, solver).duals
        assert found.shape == wanted.shape and float(wanted.abs().max()) > 0.01  # some limit is met
        # a gap of 1e-10 leaves weights, and the gradient with them, off by its root
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5 * float(1 + wanted.abs().max()))
    if hasattr(penalty, "bound"):
        less, more = (
            solve(replace(problem, penalty=type(penalty)(penalty.bound + step))).objective
            for step in (-1e-3, 1e-3)
        )
        assert (less - more) / 2e-3 == pytest.approx(float(wanted.sum()), rel=1e-3)


def test_where_conditions_on_weights_are_not_told_apart_there_are_no_duals() -> None:
    problem = weight_fit(tight(activations.Sigmoid()), torch.float64)
    bounded = Nonnegative() + penalties.RowNorm(0.3)
    for penalty in (SquaredFrobenius(0.3), L1(0.2) + Nonnegative(), bounded):
        assert solve(replace(problem, penalty=penalty)).duals == ()


def test_a_fit_that_is_not_convex_ends_stationary_and_lower() -> None:
    penalty = penalties.Orthogonal()
    problem = replace(weight_fit(joint(activations.Sigmoid()), torch.float64), penalty=penalty)
    start = problem.zeros()
    start = replace(start, matrix=penalty.project(torch.eye(*start.matrix.shape).to(start.matrix)))
    solution = solve(problem, start=start)
    assert solution.residual <= 1e-8 and penalty.violation(solution.value.matrix) < 1e-12
    assert solution.objective < problem.measure(start).objective
    refuses(DeclarationError, "not convex", solve, problem, "reference")


def test_a_penalty_declared_in_cvxpy_goes_to_the_reference() -> None:
    declared = Declared(lambda w: 0.4 * cp.sum(cp.abs(w)))
    problem = weight_fit(tight(activations.ReLU()), torch.float64)
    ours, theirs = replace(problem, penalty=L1(0.4)), replace(problem, penalty=declared)
    solution = solve(theirs)
    assert solution.solver == "reference"
    assert solution.objective == pytest.approx(solve(ours).objective, rel=1e-6)
    bounded = Declared(cp.sum_squares, lambda w: [w <= 0.1])
    assert float(solve(replace(problem, penalty=bounded)).value.matrix.max()) <= 0.1 + 1e-6
    assert solution.residual < 1e-4  # by the prox, which CVXPY solves too
    refuses(DeclarationError, "closed form", solve, theirs, "proximal-weights")
    summed = solve(replace(problem, penalty=Declared(constraints=lambda w: w >= 0) + L1(0.4)))
    same = solve(replace(problem, penalty=Nonnegative() + L1(0.4)))
    assert summed.solver == "reference"
    assert summed.objective == pytest.approx(same.objective, rel=1e-6)


@pytest.mark.parametrize("bound", [1e-6, 1e-3, 0.1, 10.0])
@pytest.mark.parametrize("member", [Nonnegative(), SIGNED, L1(0.1)], ids=repr)
def test_a_sum_under_a_bound_of_any_size_is_solved_and_nothing_else_certified(member, bound):
    """CVXPY has the fit in units of the bound; what it lacks is over what W can gain at all."""
    x, y = normal(12, 4), normal(12, 3, seed=1)
    penalty = member + penalties.SpectralNorm(bound)
    fit = WeightFit(joint(activations.Identity()), Design(x, bias=False), y, penalty)
    solution = solve(fit).require_solved()
    unit = cp.Variable((4, 3))
    loss = cp.sum_squares(bound * (x.numpy() @ unit)) / bound / 2
    loss -= cp.sum(cp.multiply((x.T @ y).numpy(), unit))
    domain = [*member.domain(unit), cp.sigma_max(unit) <= 1]
    problem = cp.Problem(cp.Minimize(loss + member.expression(unit)), domain)
    assert solution.objective == pytest.approx(problem.solve(solver="CLARABEL") * bound, rel=1e-6)
    assert penalty.violation(solution.value.matrix) <= 1e-9 * bound
    for share in (0.99, 0.0):
        less = replace(solution.value, matrix=share * solution.value.matrix)
        assert fit.measure(less).residual > 1e-6  # of what was certified 38 % off


def test_a_block_of_weights_under_several_penalties_is_what_the_weight_fit_is():
    """Its steps lead as far beyond a small bound as the prox of a sum has to find back from."""
    fit = weight_fit(joint(activations.Identity()), torch.float64)
    fit = replace(fit, penalty=Nonnegative() + penalties.SpectralNorm(1e-6))
    block, expected = BlockFit(fit.block, None, tuple(fit.terms_above)), solve(fit)
    solution = solve(block).require_solved()
    assert solution.objective == pytest.approx(expected.require_solved().objective, rel=1e-7)
    less = replace(solution.value, matrix=0.9 * solution.value.matrix)
    assert block.measure(less).residual > 1e-6


def test_equal_singular_values_have_no_derivative_and_are_passed() -> None:
    """Newton's steps took one there, 0 / 0, of a column that the bias has all of."""
    target = torch.tensor([[-1.0, -1.0, 1.0], [-1.0, -1.0, 1.0]], dtype=torch.float64)
    penalty = SquaredFrobenius(1e-6) + penalties.SpectralNorm(1.0)
    design = Design(torch.full((2, 1), 3.0, dtype=torch.float64))
    fit = WeightFit(tight(activations.Tanh()), design, target, penalty)
    assert math.isfinite(solve(fit).objective)
    value, _ = proximal_newton(fit, fit.zeros().stacked(), 1e-8)
    assert float(fit.total(value)) < float(fit.total(fit.zeros().stacked()))


SQUARED = joint(activations.Identity())


def data(samples: int, inputs: int, units: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return inputs that go together, in units from 10 to .1 and away from 0, and targets."""
    drawn = partial(normal, seed=torch.Generator().manual_seed(seed))
    x, w, noise = drawn(samples, inputs), drawn(inputs, units), drawn(samples, units)
    x = (x + x.roll(1, 1)) * torch.logspace(1, -1, inputs, dtype=torch.float64) + 3
    return x, x @ (w * (w.abs() > 1)) + noise


def by_coordinates(fit: WeightFit) -> Any:
    """Return the weights that coordinate descent finds and solves the fit by."""
    found = solve(fit, "coordinate-descent")
    assert (found.solver, found.status) == ("coordinate-descent", Status.SOLVED)
    return found.value


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [1.0, 0.6])
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("shape", [(80, 30, 3), (1200, 900, 1), (40, 300, 2)])
def test_elastic_nets_are_those_of_scikit_learn(shape: tuple[int, int, int], seed, share, positive):
    """By a Gram matrix, by few inputs of rows, and of more inputs than rows."""
    (x, y), alpha, most = data(*shape, seed), 0.3, {"tol": 1e-12, "max_iter": 100_000}
    penalty: Penalty = L1(shape[0] * alpha * share)
    if share < 1:
        penalty = penalty + SquaredFrobenius(shape[0] / 2 * alpha * (1 - share))
    penalty = penalty + Nonnegative() if positive else penalty
    found = by_coordinates(WeightFit(SQUARED, Design(x), y, penalty))
    exact: Any = ElasticNet(alpha, l1_ratio=share, positive=positive, **most).fit(x, y)
    np.testing.assert_allclose(found.matrix, np.atleast_2d(exact.coef_).T, atol=1e-6)
    np.testing.assert_allclose(found.bias, exact.intercept_, atol=1e-5)


@pytest.mark.parametrize("copies", [1, 2])
def test_an_l1_penalty_that_is_all_but_none_leaves_as_many_inputs_as_rows(copies: int) -> None:
    """Sets with more inputs than rows have no inverse: damped steps leave what is too many.

    Of equal inputs nothing tells which are: there it ends where no slope misses its sign.
    """
    x, y = data(60, 600 // copies, 1, 0)
    x = x.repeat(1, copies)
    weights = torch.arange(60) % 3
    y = y - (weights[:, None] * y).sum(0) / weights.sum()
    for share in (0.01, 1e-3):
        rho = share * float((x.T @ (weights[:, None] * y)).abs().max())
        fit = WeightFit(SQUARED, Design(x, weights=weights.double()), y, L1(rho))
        solution = solve(fit, "coordinate-descent")  # or proximal gradient, by the last digits
        assert solution.status is Status.SOLVED
        found = solution.value
        start = replace(found, matrix=found.matrix * (torch.arange(600) % 3)[:, None])
        given = start.matrix.clone()
        again = solve(fit, "coordinate-descent", start).value
        assert torch.equal(start.matrix, given)
        torch.testing.assert_close(again.apply(x), found.apply(x), rtol=1e-5, atol=1e-6)
        assert int((found.matrix != 0).sum()) < 40 * copies
        w = found.matrix.numpy()
        slopes = (x.T @ (weights[:, None] * (y - found.apply(x)))).numpy()
        np.testing.assert_allclose(slopes[w != 0], rho * np.sign(w[w != 0]), rtol=1e-6)
        assert np.abs(slopes).max() <= rho * (1 + 1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_weights_of_given_signs_are_scipys_bounded_least_squares(dtype: torch.dtype) -> None:
    x, y = data(60, 9, 2, 0)
    signs = torch.tensor([1.0, -1.0, 0.0] * 3)[:, None] * torch.tensor([1.0, -1.0])
    fit = WeightFit(
        SQUARED, Design(x.to(dtype), bias=False), y.to(dtype), penalties.Signs(signs.to(dtype))
    )
    found = by_coordinates(fit)
    for unit, own in enumerate(signs.T.tolist()):
        ends = [(0 if s > 0 else -np.inf, 0 if s < 0 else np.inf) for s in own]
        exact = lsq_linear(x.numpy(), y[:, unit].numpy(), np.array(ends).T, tol=1e-14)
        close = 1e-6 if dtype is torch.float64 else 1e-3
        np.testing.assert_allclose(found.matrix[:, unit], exact.x, atol=close)


@pytest.mark.parametrize("seed", range(3))
def test_groups_are_those_of_scikit_learn(seed: int) -> None:
    (x, y), alpha = data(80, 30, 3, seed), 0.5
    fit = WeightFit(SQUARED, Design(x), y, GroupLasso(80 * alpha) + SquaredFrobenius(1e-12))
    found = by_coordinates(fit)
    exact = MultiTaskLasso(alpha, tol=1e-12, max_iter=100_000).fit(x.numpy(), y.numpy())
    np.testing.assert_allclose(found.matrix, exact.coef_.T, atol=1e-6)
    assert bool((found.matrix == 0).all(1).equal(torch.from_numpy((exact.coef_ == 0).all(0))))


def test_penalties_of_another_shape_or_of_columns_are_refused() -> None:
    (x, y), five = data(60, 6, 2, 0), torch.ones(5, 5)
    for one in (penalties.Signs(five), SquaredFrobenius(1.0, center=five)):
        refuses(DataError, r"\(5, 5\) cannot be", solve, WeightFit(SQUARED, Design(x), y, one))
    for of_columns in (penalties.ColumnNorm(1.0), GroupLasso(1.0) + Nonnegative()):
        fit = WeightFit(SQUARED, Design(x), y, of_columns)
        words = "each entry or row by itself, not"
        refuses(DeclarationError, words, solve, fit, "coordinate-descent")
