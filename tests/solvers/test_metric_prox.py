"""Proximal steps in a metric: against CVXPY, by their own KKT conditions, and their exactness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import pytest
import torch
from torch import Tensor

from liftednet.errors import SolverError
from liftednet.penalties import (
    L1,
    ColumnNorm,
    Declared,
    GroupLasso,
    LinearEqualities,
    Nonnegative,
    Penalty,
    RowNorm,
    Signs,
    SimplexRows,
    SpectralNorm,
    SquaredFrobenius,
)
from liftednet.solvers import metric_prox
from liftednet.solvers.metric_prox import LowRankMetric, low_rank_prox, one_step_prox
from tests.solvers import dense_prox as judge
from tests.solvers.dense_prox import dense_prox

CENTER = torch.linspace(-1, 1, 40, dtype=torch.float64).reshape(8, 5)
PENALTIES: list[Penalty] = [
    SquaredFrobenius(0.3),
    SquaredFrobenius(0.3, CENTER),
    SquaredFrobenius(0.2) + SquaredFrobenius(0.1, CENTER),
    L1(0.4),
    GroupLasso(0.5),
    Nonnegative(),
    Nonnegative(0.2),
    RowNorm(0.7),
    SpectralNorm(0.8),
    L1(0.2) + Nonnegative(0.1),
    Nonnegative() + RowNorm(0.8),
    SquaredFrobenius(0.1, CENTER) + L1(0.1) + GroupLasso(0.2),
    Nonnegative() + SpectralNorm(0.8),
    ColumnNorm(0.7),
    Signs(torch.tensor([[1.0], [-1.0]]).repeat(4, 1)),
    SimplexRows(),
    LinearEqualities(torch.ones(1, 8)) + L1(0.1),
    Declared(lambda W: 0.2 * cp.norm1(W), lambda W: W >= -0.1),
]


@dataclass(frozen=True)
class Problem:
    weight: Tensor
    metric: LowRankMetric
    gram: Tensor
    t: float


def problem(largest: float, dtype: torch.dtype = torch.float64, inputs: int = 8) -> Problem:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(inputs, 3 * inputs // 8, generator=generator, dtype=torch.float64)
    vectors = torch.linalg.qr(drawn)[0]
    values = largest * torch.linspace(1, 0, vectors.shape[1], dtype=torch.float64)
    weight = torch.randn(inputs, 5 * inputs // 8, generator=generator, dtype=torch.float64)
    metric = LowRankMetric(0.7, vectors.to(dtype), values.to(dtype))
    gram = 0.7 * (torch.eye(inputs, dtype=torch.float64) + (vectors * values) @ vectors.T)
    return Problem(weight.to(dtype), metric, gram, 0.9)


def require_cvxpys(penalty: Penalty, weight: Tensor, gram: Tensor, found: Tensor) -> None:
    """Require a point near CLARABEL's at the tolerance that suits it best, and no higher."""
    p, root = cp.Variable(weight.shape), torch.linalg.cholesky(gram).T
    objective = penalty.expression(p) + cp.sum_squares(root.numpy() @ (p - weight.numpy())) / 2
    stated = cp.Problem(cp.Minimize(objective), penalty.domain(p))
    names, distances, values = ("tol_gap_abs", "tol_gap_rel", "tol_feas"), [], []
    for tolerance in (1e-13, 1e-12, 1e-11, 1e-10):
        stated.solve(solver="CLARABEL", **dict.fromkeys(names, tolerance))
        distances.append(float(abs(p.value - found.numpy()).max()))
        values.append(float(stated.value))
    moved = found - weight
    ours = float(penalty.value(found) + (moved * (gram @ moved)).sum() / 2)
    assert min(distances) < 1e-5  # its own error: ours agree with each other to 1e-8
    assert ours < min(values) + 1e-9


def name(value: Any) -> str:
    terms = getattr(value, "terms", (value,))
    return " + ".join(type(term).__name__ for term in terms)


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("penalty", PENALTIES, ids=name)
@pytest.mark.parametrize("largest", [2.0, 100.0])
def test_low_rank_against_cvxpy(penalty: Penalty, largest: float) -> None:
    given = problem(largest)
    found = low_rank_prox(penalty, given.weight, given.metric, given.t, tolerance=1e-8)
    assert penalty.holds(found)
    require_cvxpys(penalty, given.weight, given.gram / given.t, found)


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("penalty", PENALTIES[:-1], ids=name)
@pytest.mark.parametrize("largest", [2.0, 100.0])
def test_dense_against_cvxpy(penalty: Penalty, largest: float) -> None:
    given = problem(largest)
    found = dense_prox(penalty, given.weight, given.gram)
    assert penalty.holds(found)
    require_cvxpys(penalty, given.weight, given.gram, found)


@pytest.mark.parametrize("penalty", PENALTIES[:-1], ids=name)
@pytest.mark.parametrize("largest", [2.0, 100.0])
def test_low_rank_and_dense_agree(penalty: Penalty, largest: float) -> None:
    given = problem(largest)
    one = low_rank_prox(penalty, given.weight, given.metric, given.t, tolerance=1e-10)
    other = dense_prox(penalty, given.weight, given.gram / given.t, tolerance=1e-10)
    assert torch.allclose(one, other, atol=1e-8, rtol=0)


def stationary(penalty: Penalty, given: Problem, found: Tensor) -> float:
    """Return the prox-gradient mapping over the gradient, in float64."""
    found, gram = found.double(), given.gram / given.t
    gradient = gram @ (found - given.weight.double())
    return float(penalty.stationarity(found, gradient, 1.0).norm() / gradient.norm())


@pytest.mark.parametrize("penalty", [Nonnegative(), L1(0.5), L1(0.2) + Nonnegative(0.1)], ids=name)
@pytest.mark.parametrize("largest", [2.0, 30.0, 1000.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_many_inputs(penalty: Penalty, largest: float, dtype: torch.dtype) -> None:
    given = problem(largest, dtype, inputs=160)
    tolerance = 1e-8 if dtype is torch.float64 else 1e-4
    found = low_rank_prox(penalty, given.weight, given.metric, given.t, tolerance=tolerance)
    rounding = 10 * torch.finfo(dtype).eps * largest
    assert stationary(penalty, given, found) < 10 * tolerance + rounding
    assert found.dtype is dtype and penalty.holds(found)
    assert 0.1 < float((found == 0).double().mean()) < 0.9


@pytest.mark.parametrize("tolerance", [0.5, 1e-1, 1e-3])
def test_the_domain_is_held_whatever_the_tolerance(tolerance: float) -> None:
    given = problem(30.0, torch.float32, inputs=80)
    found = low_rank_prox(Nonnegative(), given.weight, given.metric, given.t, tolerance=tolerance)
    assert bool((found >= 0).all()) and bool((found == 0).any())


@pytest.mark.parametrize("penalty", [Nonnegative(), L1(0.5), L1(0.2) + Nonnegative(0.1)], ids=name)
@pytest.mark.parametrize("largest", [2.0, 30.0, 1000.0])
def test_one_step_is_in_the_domain_and_nearer_than_none(penalty: Penalty, largest: float) -> None:
    given = problem(largest, inputs=80)
    solution = low_rank_prox(penalty, given.weight, given.metric, given.t, tolerance=1e-10)
    one = one_step_prox(penalty, given.weight, given.metric, given.t)
    none = penalty.prox(given.weight, given.t / given.metric.scale)
    assert penalty.holds(one)
    assert float((one - solution).norm()) <= float((none - solution).norm())
    assert largest < 30 or not torch.equal(one, none)


def test_a_start_that_solves_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    given, penalty = problem(20.0), L1(0.3)
    found = low_rank_prox(penalty, given.weight, given.metric, given.t, tolerance=1e-10)
    dense = dense_prox(penalty, given.weight, given.gram / given.t, tolerance=1e-10)
    assert torch.allclose(found, dense, atol=1e-9)
    monkeypatch.setattr(metric_prox, "_EVALUATIONS", 0)
    monkeypatch.setattr(judge, "_BURSTS", 1)
    again = low_rank_prox(penalty, given.weight, given.metric, given.t, found, tolerance=1e-6)
    assert torch.allclose(again, found, atol=1e-6)
    again = dense_prox(penalty, given.weight, given.gram / given.t, found, tolerance=1e-6)
    assert torch.allclose(again, found, atol=1e-6)


def test_a_constraint_that_holds_anyway_leaves_the_step_alone() -> None:
    given = problem(20.0, torch.float32)
    weight = given.weight.abs()
    assert torch.equal(low_rank_prox(Nonnegative(), weight, given.metric, given.t), weight)
    assert torch.equal(dense_prox(Nonnegative(), weight, given.gram), weight)


@pytest.mark.parametrize("rank", [0, 3])
def test_a_metric_of_no_directions_is_the_identity(rank: int) -> None:
    weight = problem(1.0).weight
    metric = LowRankMetric(2.0, weight[:, :rank], weight.new_zeros(rank))
    for penalty in (L1(0.3), GroupLasso(0.3), SquaredFrobenius(0.3)):
        expected = penalty.prox(weight, 0.25)
        assert torch.allclose(low_rank_prox(penalty, weight, metric, 0.5), expected)


def test_an_ill_conditioned_gram_matrix() -> None:
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(30, 30, generator=generator, dtype=torch.float64)
    vectors = torch.linalg.qr(drawn)[0]
    gram = (vectors * torch.logspace(0, -7, 30, dtype=torch.float64)) @ vectors.T
    weight = torch.randn(30, 20, generator=generator, dtype=torch.float64)
    for penalty in (Nonnegative(), L1(1e-3)):
        found = dense_prox(penalty, weight, gram, tolerance=1e-9)
        gradient = gram @ (found - weight)
        left = penalty.stationarity(found, gradient, 1.0).norm() / gradient.norm()
        assert float(left) < 1e-8


def test_a_tolerance_out_of_reach_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_prox, "_EVALUATIONS", 3)
    monkeypatch.setattr(judge, "_BURST", 2)
    monkeypatch.setattr(judge, "_BURSTS", 1)
    given = problem(1000.0, inputs=80)
    for step in (
        lambda: low_rank_prox(RowNorm(0.5), given.weight, given.metric, given.t, tolerance=1e-12),
        lambda: dense_prox(RowNorm(0.5), given.weight, given.gram, tolerance=1e-12),
    ):
        with pytest.raises(SolverError, match="residual") as error:
            step()
        assert RowNorm(0.5).holds(error.value.solution)


@pytest.mark.parametrize("penalty", [Nonnegative(), RowNorm(0.5)], ids=name)
def test_a_step_that_is_not_finite_is_refused(penalty: Penalty) -> None:
    given = problem(10.0)
    weight = given.weight.clone()
    weight[0, 0] = torch.nan
    with pytest.raises(SolverError, match="nan"):
        low_rank_prox(penalty, weight, given.metric, given.t)
