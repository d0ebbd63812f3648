"""How several penalties meet, and what tells how far they are from it: CVXPY, theory, autograd."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

from liftednet import activations
from liftednet.divergences import joint
from liftednet.penalties import (
    L1,
    ColumnNorm,
    Nonnegative,
    Penalty,
    RowNorm,
    SpectralNorm,
    SquaredFrobenius,
)
from liftednet.problems import Design, WeightFit
from liftednet.sets.splitting import Splitting, _Mixing
from liftednet.solvers import solve
from liftednet.solvers.accelerated import _splitting


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_mixing_ends_a_linear_map_in_as_many_changes_as_it_has_dimensions() -> None:
    """As GMRES does (Walker and Ni, 2011): the map itself, and half of its changes, go on."""
    basis, fixed = torch.linalg.qr(normal(6, 6)).Q, normal(6, seed=1)
    matrix = basis * torch.linspace(-0.9, 0.99, 6, dtype=torch.float64) @ basis.T
    mixing, value = _Mixing(), torch.zeros(6, dtype=torch.float64)
    for _ in range(9):
        value = mixing.following(value, fixed + matrix @ (value - fixed))
    torch.testing.assert_close(value, fixed, rtol=0, atol=1e-6)


def test_a_mixture_that_is_farther_from_rest_is_given_up() -> None:
    mixing = _Mixing()
    steps = [(0.0, 1.0, 1.0), (1.0, 1.5, 2.0), (2.0, 10.0, 1.5), (1.5, 1.6, 1.6)]
    for value, mapped, following in steps:  # T(z) - z falls to a half, a mixture, 8, and begin anew
        found = mixing.following(torch.tensor([value]), torch.tensor([mapped]))
        assert float(found) == pytest.approx(following)


# Twice the rounds that it takes; with rho as it is the first and the last do not end in a thousand.
@pytest.mark.parametrize(("rho", "most"), [(1e-3, 450), (0.1, 100), (1.0, 70), (1e3, 850)])
def test_penalties_meet_whatever_rho_they_begin_with(rho: float, most: int) -> None:
    target, members = normal(4, 3), [Nonnegative(), L1(0.2), SpectralNorm(0.8)]

    def model(value: Tensor, center: Tensor, weight: float) -> Tensor:
        return (target + weight * center) / (1 + weight)

    begin = target.expand(3, 4, 3)
    met = Splitting([member.prox for member in members], model, target, begin, rho).meeting(1e-11)
    assert met.apart <= 1e-11
    assert met.rounds <= most
    variable = cp.Variable((4, 3))
    terms = [member.expression(variable) for member in members]
    domain = [each for member in members for each in member.domain(variable)]
    goal = cp.sum_squares(variable - target.numpy()) / 2 + sum(terms)
    cp.Problem(cp.Minimize(goal), domain).solve(solver="CLARABEL", tol_gap_abs=1e-12)
    nearest = np.asarray(variable.value)
    for member, point, pull in zip(members, met.points, met.pulls, strict=True):
        np.testing.assert_allclose(point, nearest, atol=1e-5)
        torch.testing.assert_close(member.prox(point + pull, 1.0), point)  # a subgradient there
    torch.testing.assert_close(met.pulls.sum(0), target - met.points[-1])


def test_penalties_that_leave_nothing_meet_at_nothing() -> None:
    target = normal(4, 3)
    strong = L1(1e3) + SpectralNorm(0.8)
    met = strong._met(target, 1.0, 1e-12)
    assert met.rounds <= 20
    assert not strong.nearly(met).any()


@pytest.mark.parametrize("far", [1.0, 1e6])
def test_a_point_far_beyond_the_bounds_is_led_back_as_soon(far: float) -> None:
    penalty = Nonnegative() + SpectralNorm(1e-3)
    met = penalty._met(far * normal(4, 3), 1.0, 1e-13)
    assert met.apart <= 1e-13
    assert met.rounds <= 200


def fit_with_a_bias(penalty: Penalty) -> WeightFit:
    x, y = normal(30, 4) + 20, normal(30, 3, seed=1).sigmoid()
    weights = 0.5 + normal(30, seed=2).abs()
    design = Design(x, bias=True, weights=weights)
    return WeightFit(joint(activations.Sigmoid()), design, y, penalty, 0.7)


def test_a_round_ends_where_the_fit_and_the_distance_to_the_center_are_least() -> None:
    """Of a quadratic divergence the model is the fit itself, its squares and its bias included."""
    square = SquaredFrobenius(0.3)
    problem = fit_with_a_bias(square + Nonnegative() + SpectralNorm(0.8))
    center, value = normal(4, 3, seed=3), normal(5, 3, seed=4)
    assert isinstance(problem.penalty, Penalty)
    splitting = _splitting(problem, problem.penalty, value)  # type: ignore[arg-type]
    for weight in (1e-2, 1.0, 1e3):
        found = splitting._model(value, center, weight).requires_grad_()
        weights = problem.design.centered.split(found)
        u = weights.apply(problem.design.inputs)
        rows = problem.divergence.link_values(u, problem.targets)
        assert problem.design.weights is not None
        total = 0.7 * (problem.design.weights * rows).sum() + 0.3 * found[:4].square().sum()
        total = total + weight / 2 * (found[:4] - center).square().sum()
        (slope,) = torch.autograd.grad(total, found)
        assert float(slope.abs().max()) < 1e-9 * float(total.detach().abs())


def test_a_fit_under_several_penalties_takes_no_more_rounds_for_its_curvature() -> None:
    penalty = SquaredFrobenius(0.01) + Nonnegative() + SpectralNorm(0.1)
    solution = solve(fit_with_a_bias(penalty), "proximal-weights").require_solved()
    assert solution.iterations <= 100


def most_by_cvxpy(gradient: Tensor) -> Tensor:
    variable = cp.Variable((4, 3), nonneg=True)
    goal = cp.Maximize(-cp.sum(cp.multiply(gradient.numpy(), variable)))
    problem = cp.Problem(goal, [cp.sigma_max(variable) <= 0.8])
    return torch.tensor(problem.solve(solver="CLARABEL"))


BOUNDS: list[tuple[Penalty, Callable[[Tensor], Tensor]]] = [
    (SpectralNorm(0.8), lambda g: 0.8 * torch.linalg.matrix_norm(g, "nuc")),
    (RowNorm(0.8), lambda g: 0.8 * g.norm(dim=1).sum()),
    (ColumnNorm(0.8), lambda g: 0.8 * g.norm(dim=0).sum()),
    (Nonnegative() + RowNorm(0.8), lambda g: 0.8 * (-g).relu().norm(dim=1).sum()),
    (Nonnegative() + SpectralNorm(0.8), most_by_cvxpy),
]


@pytest.mark.parametrize(("penalty", "most"), BOUNDS, ids=[repr(x)[:60] for x, _ in BOUNDS])
def test_a_bounded_weight_has_no_more_to_lose_than_its_judgement_says(
    penalty: Penalty, most: Callable[[Tensor], Tensor]
) -> None:
    """<g, W - V> <= gap + |violation|'(|W| + |V|), V the W that is best by support functions."""
    for seed, smoothness in enumerate((0.0, 1e-3, 1.0, 1e3)):
        gradient = normal(4, 3, seed=seed)
        weight = penalty.project(normal(4, 3, seed=10 + seed))
        found = penalty.judged(weight, gradient, smoothness)
        lost = float((gradient * weight).sum() + most(gradient))
        around = float((found.violation.abs() * (weight.abs() + 0.8)).sum())
        assert lost <= (found.gap + around) * (1 + 1e-6)
        assert found.gap <= 2 * lost + around
        if most is not most_by_cvxpy:  # the best W is the slope of the support function
            best = -torch.func.grad(most)(gradient)
            nothing = penalty.judged(best, gradient, smoothness)
            assert float(nothing.violation.abs().max()) < 1e-9 and nothing.gap < 1e-9
        if penalty.signed:
            continue
        opposite = penalty.judged(-weight, -gradient, smoothness)  # the domain has no signs
        torch.testing.assert_close(opposite.violation.abs(), found.violation.abs())
        assert opposite.gap == pytest.approx(found.gap)
