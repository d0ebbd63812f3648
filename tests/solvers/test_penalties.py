"""Fits with penalties against the reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cvxpy as cp
import pytest
import torch

from liftednet import activations
from liftednet.divergences import joint, tight
from liftednet.errors import DeclarationError
from liftednet.penalties import (
    L1,
    ColumnNorm,
    Declared,
    FixedZeros,
    GroupLasso,
    Nonnegative,
    Orthogonal,
    Penalty,
    RowNorm,
    Signs,
    SpectralNorm,
    SquaredFrobenius,
)
from liftednet.problems import BlockFit, Design, WeightFit
from liftednet.solution import Status
from liftednet.solvers import solve
from tests.solvers.registry import weight_fit

PENALTIES: list[Penalty] = [
    SquaredFrobenius(0.3), SquaredFrobenius(0.3, torch.ones(4, 3, dtype=torch.float64)), L1(0.4),
    GroupLasso(0.5), Nonnegative(), Nonnegative(0.2), RowNorm(0.7), SpectralNorm(0.8),
    L1(0.2) + Nonnegative(0.1), SquaredFrobenius(0.1) + GroupLasso(0.2) + RowNorm(0.7),
    Nonnegative() + SpectralNorm(0.8), ColumnNorm(0.5),
    Signs(torch.tensor([[1.0], [-1.0], [0.0], [1.0]])),
    FixedZeros(torch.tensor([[1.0, 0.0, 0.0]])) + L1(0.2),
]  # fmt: skip


@pytest.mark.parametrize("penalty", PENALTIES, ids=repr)
@pytest.mark.parametrize(
    ("kind", "dtype"), [(tight, torch.float64), (joint, torch.float64), (joint, torch.float32)]
)
def test_fit_agrees_with_the_reference(penalty: Any, kind: Any, dtype: torch.dtype) -> None:
    problem = replace(weight_fit(kind(activations.Sigmoid()), dtype), penalty=penalty)
    exact = replace(weight_fit(kind(activations.Sigmoid()), torch.float64), penalty=penalty)
    solution, reference = solve(problem, "proximal-weights"), solve(exact, "reference")
    gap = abs(solution.objective - reference.objective) / (1 + abs(reference.objective))
    assert gap < (1e-6 if dtype is torch.float64 else 1e-4)
    assert solution.residual <= (1e-8 if dtype is torch.float64 else 1e-5)
    assert solve(problem).residual <= (1e-8 if dtype is torch.float64 else 1e-5)


SETS: list[Penalty] = [
    Nonnegative(), Nonnegative(0.2) + SquaredFrobenius(0.1), FixedZeros(torch.eye(4, 3)),
    Signs(torch.tensor([[1.0], [-1.0], [1.0], [-1.0]])) + SquaredFrobenius(0.1),
    RowNorm(0.3), ColumnNorm(0.3), SpectralNorm(0.4),
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
    for penalty in (SquaredFrobenius(0.3), L1(0.2) + Nonnegative(), Nonnegative() + RowNorm(0.3)):
        assert solve(replace(problem, penalty=penalty)).duals == ()


def test_a_fit_that_is_not_convex_ends_stationary_and_lower() -> None:
    penalty = Orthogonal()
    problem = replace(weight_fit(joint(activations.Sigmoid()), torch.float64), penalty=penalty)
    start = problem.zeros()
    start = replace(start, matrix=penalty.project(torch.eye(*start.matrix.shape).to(start.matrix)))
    solution = solve(problem, start=start)
    assert solution.residual <= 1e-8 and penalty.violation(solution.value.matrix) < 1e-12
    assert solution.objective < problem.measure(start).objective
    with pytest.raises(DeclarationError, match="not convex"):
        solve(problem, "reference")


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
    with pytest.raises(DeclarationError, match="closed form"):
        solve(theirs, "proximal-weights")
    summed = solve(replace(problem, penalty=Declared(constraints=lambda w: w >= 0) + L1(0.4)))
    same = solve(replace(problem, penalty=Nonnegative() + L1(0.4)))
    assert summed.solver == "reference"
    assert summed.objective == pytest.approx(same.objective, rel=1e-6)


@pytest.mark.parametrize("penalty", [Nonnegative(1.0), L1(2.0)], ids=repr)
def test_the_mean_of_the_inputs_costs_no_steps(penalty: Any) -> None:
    """Where there is a bias, inputs moved by twice their deviations are the same problem."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 20, generator=generator, dtype=torch.float64)
    y = (x @ torch.randn(20, 5, generator=generator, dtype=torch.float64)).relu()
    near, moved = (
        solve(WeightFit(joint(activations.Identity()), Design(z), y, penalty)).require_solved()
        for z in (x, x + 2)
    )
    assert torch.allclose(near.value.matrix, moved.value.matrix, atol=1e-6)
    assert moved.iterations <= 1.2 * near.iterations


def test_an_ill_conditioned_lasso_is_solved():
    """First-order steps alone stall on columns of sizes from 1 to 1e-4."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    x = x * torch.logspace(0, -4, 4, dtype=torch.float64)
    targets = 20 * torch.randn(12, 1, generator=generator, dtype=torch.float64)
    fit = WeightFit(joint(activations.Identity()), Design(x, bias=False), targets, L1(1e-4))
    found = solve(fit, "proximal-weights")
    assert found.status is Status.SOLVED
    gradient = (x.T @ (x @ found.value.matrix - targets))[:, 0]  # is -rho sign(w), or within rho
    w = found.value.matrix[:, 0]
    assert torch.allclose(gradient[w != 0], -1e-4 * w[w != 0].sign(), rtol=0, atol=1e-8)
    assert bool((gradient[w == 0].abs() <= 1e-4).all())


SIGNED = Signs(torch.tensor([[1.0], [-1.0], [0.0], [1.0]]))


@pytest.mark.parametrize("bound", [1e-6, 1e-3, 0.1, 10.0])
@pytest.mark.parametrize("member", [Nonnegative(), SIGNED, L1(0.1)], ids=repr)
def test_a_sum_under_a_bound_of_any_size_is_solved_and_nothing_else_certified(member, bound):
    """CVXPY has the fit in units of the bound; what it lacks is over what W can gain at all."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    y = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    penalty = member + SpectralNorm(bound)
    fit = WeightFit(joint(activations.Identity()), Design(x, bias=False), y, penalty)
    solution = solve(fit).require_solved()
    unit = cp.Variable((4, 3))
    loss = cp.sum_squares(bound * (x.numpy() @ unit)) / bound / 2
    loss -= cp.sum(cp.multiply((x.T @ y).numpy(), unit))
    domain = [*member.domain(unit), cp.sigma_max(unit) <= 1]
    problem = cp.Problem(cp.Minimize(loss + member.expression(unit)), domain)
    least = problem.solve(solver="CLARABEL") * bound
    assert solution.objective == pytest.approx(least, rel=1e-6)
    assert penalty.violation(solution.value.matrix) <= 1e-9 * bound
    for share in (0.99, 0.0):
        less = replace(solution.value, matrix=share * solution.value.matrix)
        assert fit.measure(less).residual > 1e-6  # of what was certified 38 % off


def test_a_block_of_weights_under_several_penalties_is_what_the_weight_fit_is():
    """Its steps lead as far beyond a small bound as the prox of a sum has to find back from."""
    fit = weight_fit(joint(activations.Identity()), torch.float64)
    fit = replace(fit, penalty=Nonnegative() + SpectralNorm(1e-6))
    block, expected = BlockFit(fit.block, None, tuple(fit.terms_above)), solve(fit)
    solution = solve(block).require_solved()
    assert solution.objective == pytest.approx(expected.require_solved().objective, rel=1e-7)
    less = replace(solution.value, matrix=0.9 * solution.value.matrix)
    assert block.measure(less).residual > 1e-6
