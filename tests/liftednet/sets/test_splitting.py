"""How several penalties meet, nearest points of polyhedra: CVXPY, theory, autograd."""

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch
from sklearn.isotonic import isotonic_regression
from torch import Tensor

from liftednet import penalties
from liftednet.activations import SimplexProjection
from liftednet.errors import DataError
from liftednet.penalties import ColumnNorm, Nonnegative, Penalty, RowNorm, SpectralNorm, Sum
from liftednet.sets.polyhedron import nearest_in_polyhedron
from liftednet.sets.splitting import Splitting
from tests.draws import normal
from tests.liftednet.sets.test_penalties import distance_to_cvxpy
from tests.models.networks import refuses


# Twice the rounds that it takes; with rho as it is the first and the last do not end in a thousand.
@pytest.mark.parametrize(("rho", "most"), [(1e-3, 450), (0.1, 100), (1.0, 70), (1e3, 850)])
def test_penalties_meet_whatever_rho_they_begin_with(rho: float, most: int) -> None:
    target, members = normal(4, 3), [Nonnegative(), penalties.L1(0.2), SpectralNorm(0.8)]

    def model(value: Tensor, center: Tensor, weight: float) -> Tensor:
        return (target + weight * center) / (1 + weight)

    begin = target.expand(3, 4, 3)
    met = Splitting([member.prox for member in members], model, target, begin, rho).meeting(1e-11)
    assert met.apart <= 1e-11
    assert met.rounds <= most
    assert distance_to_cvxpy(Sum(tuple(members)), target, 1.0, met.points[0]) < 1e-5
    for member, point, pull in zip(members, met.points, met.pulls, strict=True):
        torch.testing.assert_close(member.prox(point + pull, 1.0), point)  # a subgradient there
    torch.testing.assert_close(met.pulls.sum(0), target - met.points[-1])


def most_by_cvxpy(gradient: Tensor) -> Tensor:
    variable = cp.Variable((4, 3), nonneg=True)
    goal = cp.Maximize(-cp.sum(cp.multiply(gradient.numpy(), variable)))
    return torch.tensor(cp.Problem(goal, [cp.sigma_max(variable) <= 0.8]).solve(solver="CLARABEL"))


BOUNDS: list[tuple[Penalty, Callable[[Tensor], Tensor]]] = [
    (SpectralNorm(0.8), lambda g: 0.8 * torch.linalg.matrix_norm(g, "nuc")),
    (RowNorm(0.8), lambda g: 0.8 * g.norm(dim=1).sum()),
    (ColumnNorm(0.8), lambda g: 0.8 * g.norm(dim=0).sum()),
    (Nonnegative() + RowNorm(0.8), lambda g: 0.8 * (-g).relu().norm(dim=1).sum()),
    (Nonnegative() + SpectralNorm(0.8), most_by_cvxpy),
]


@pytest.mark.parametrize(("penalty", "most"), BOUNDS, ids=[repr(x)[:60] for x, _ in BOUNDS])
def test_a_bounded_weight_has_no_more_to_lose_than_its_judgement_says(penalty, most) -> None:
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
            nothing = penalty.judged(-torch.func.grad(most)(gradient), gradient, smoothness)
            assert float(nothing.violation.abs().max()) < 1e-9 and nothing.gap < 1e-9
        if penalty.signed:
            continue
        opposite = penalty.judged(-weight, -gradient, smoothness)  # the domain has no signs
        torch.testing.assert_close(opposite.violation.abs(), found.violation.abs())
        assert opposite.gap == pytest.approx(found.gap)


SIMPLEX = torch.cat([torch.ones(1, 4), torch.eye(4)]).double()


def ends(total: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ends of nonnegative rows with these sums."""
    lower = torch.zeros(len(total), 5, dtype=torch.float64)
    upper = torch.full_like(lower, torch.inf)
    lower[:, 0] = upper[:, 0] = total
    return lower, upper


@pytest.mark.parametrize("seed", range(6))
def test_it_is_the_nearest_point(seed) -> None:
    """By the variational inequality at CVXPY's point, and no farther than it."""
    generator = torch.Generator().manual_seed(seed)
    rows = normal(6, 4, seed=generator)
    rows[5] = 2 * rows[4]  # which says the same as another
    inside = normal(3, 4, seed=generator)
    room = torch.rand(3, 6, generator=generator, dtype=torch.float64)
    lower, upper = inside @ rows.T - room, inside @ rows.T + room
    lower[:, 0] = upper[:, 0] = (inside @ rows.T)[:, 0]
    upper[:, 1], lower[:, 2] = torch.inf, -torch.inf
    u = inside + 3 * normal(3, 4, seed=generator)
    found = nearest_in_polyhedron(rows, u, lower, upper)
    values = found @ rows.T
    assert float(torch.maximum(lower - values, values - upper).max()) < 1e-10
    for x, low, high, v in zip(u, lower, upper, found, strict=True):
        w, low, high = cp.Variable(4), low.numpy(), high.numpy()
        reached = rows.numpy() @ w
        limits = [
            *(reached[i] >= low[i] for i in range(6) if np.isfinite(low[i])),
            *(reached[i] <= high[i] for i in range(6) if np.isfinite(high[i])),
        ]
        problem = cp.Problem(cp.Minimize(cp.sum_squares(w - x.numpy())), limits)
        problem.solve(solver="CLARABEL")
        assert w.value is not None
        assert np.abs(w.value - v.numpy()).max() < 1e-4 * (1 + np.abs(w.value).max())
        assert float((v - x).square().sum()) < problem.value + 1e-6


def test_simplex_and_isotonic_regression() -> None:
    u = normal(50, 4)
    found = nearest_in_polyhedron(SIMPLEX, u, *ends(torch.ones(50)))
    assert torch.allclose(found, SimplexProjection().forward(u), atol=1e-10)
    rising = torch.diff(torch.eye(30, dtype=torch.float64), dim=0)
    u = normal(20, 30, seed=1)
    found = nearest_in_polyhedron(rising, u, torch.zeros(20, 29), torch.full((20, 29), torch.inf))
    for x, v in zip(u, found, strict=True):
        assert np.abs(isotonic_regression(x.numpy()) - v.numpy()).max() < 1e-9


def test_its_derivatives_are_those_of_differences() -> None:
    generator = torch.Generator().manual_seed(2)
    u = torch.randn(3, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    low, high = ends(torch.linspace(0.5, 4.0, 3))
    assert torch.autograd.gradcheck(
        lambda x: nearest_in_polyhedron(SIMPLEX, x, low, high), (u,), check_forward_ad=True
    )


def test_limits_at_right_angles_are_met_as_beside_one_that_says_the_same() -> None:
    """One more row, and they are no more at right angles: which bind is then searched for."""
    rows = torch.tensor([[3.0, 0, 0, 0], [0, 0.5, 0, 0], [0, 0, 1, -1]]).double()
    u = normal(40, 4, seed=3).requires_grad_()
    low, high = -0.5 + 0 * u[:, :3].detach(), 0.4 + 0 * u[:, :3].detach()
    low[::2, 0], high[1::2, 1], low[:, 2] = -torch.inf, torch.inf, 0.4  # the last of equal ends
    push, found = normal(40, 4, seed=4), []
    for more in (0, 1):
        both = [torch.cat([x, 2 * x[..., :more]], -1) for x in (low, high)]
        v = nearest_in_polyhedron(torch.cat([rows, 2 * rows[:more]]), u, *both)
        found.append((v, torch.autograd.grad((v * push).sum(), u)[0]))
    torch.testing.assert_close(*found, rtol=0, atol=1e-9)
    far = torch.tensor([[1e18], [-1e18]]).double()  # where 1 is less than a rounding
    near = nearest_in_polyhedron(
        torch.ones(1, 1), far, *torch.tensor([1.3, 5.1]).double().view(2, 1, 1).expand(2, 2, 1)
    )
    torch.testing.assert_close(near[:, 0], torch.tensor([5.1, 1.3]).double())
    there = torch.tensor([[0.5]]).double().requires_grad_()
    end = torch.tensor([[1.5]]).double()
    (slope,) = torch.autograd.grad(nearest_in_polyhedron(3 * end / end, there, end, end), there)
    assert slope == 0  # of a point that is where it has to be
    high[1, 0] = -1
    refuses(DataError, "sample 1", nearest_in_polyhedron, rows, u, low, high)
