"""The reference solver: compiled once, chosen freely, honest about failure."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import cvxpy as cp
import pytest
import torch

from liftednet import Activation, activations
from liftednet.divergences import joint, tight
from liftednet.errors import DataError, DeclarationError, SolverError
from liftednet.losses import SimplexCrossEntropy
from liftednet.penalties import Declared, Penalty
from liftednet.problems import Link, OutputFit, StateFit, WeightFit
from liftednet.solution import Status
from liftednet.solvers import Reference, solve
from liftednet.solvers.dual import Dual
from tests.solvers.registry import state_fit, weight_fit


@pytest.mark.parametrize("backend", ["OSQP", "CLARABEL", "SCS"])
def test_the_backend_can_be_chosen(backend: str) -> None:
    problem = state_fit(joint(activations.ReLU()), (joint(activations.ReLU()),), torch.float64)
    chosen = solve(problem, Reference(backend))
    assert chosen.objective == pytest.approx(solve(problem).objective, rel=1e-6)


def test_a_failure_is_an_error_that_says_why() -> None:
    problem = state_fit(joint(activations.ReLU()), (joint(activations.ReLU()),), torch.float64)
    with pytest.raises(SolverError, match="OSQP reports"):
        solve(problem, Reference("OSQP", {"max_iter": 1}))


def test_a_float32_simplex_target_is_not_unbounded() -> None:
    divergence = tight(activations.SimplexProjection())
    single: WeightFit = weight_fit(divergence, torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exact = solve(single, "reference")
    assert exact.residual < 1e-6


class Stated(Penalty):
    """|W|_1 / 2 without a prox, which only the reference solver serves."""

    proximable = False

    def expression(self, weight: Any) -> Any:
        return cp.sum(cp.abs(weight)) / 2

    def value(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.abs().sum() / 2

    def prox(self, weight: torch.Tensor, t: float) -> torch.Tensor:
        raise NotImplementedError


def test_a_penalty_without_a_prox_is_certified_by_stationarity() -> None:
    fit = replace(weight_fit(joint(activations.Identity()), torch.float64), penalty=Stated())
    exact = solve(fit, "reference")
    assert exact.residual < 1e-6
    with torch.no_grad():  # soft thresholding by many plain steps, apart from CVXPY
        w, step = torch.zeros_like(exact.value.stacked()), 1 / (fit.lam * fit.design.squared_norm)
        for _ in range(4000):
            w = w - step * fit.lam * (fit.design.gram @ w - fit.design.cross(fit.targets))
            w[:-1] -= w[:-1].clamp(-step / 2, step / 2)
    torch.testing.assert_close(exact.value.stacked(), w, rtol=1e-6, atol=1e-7)
    loose = {"tol_gap_abs": 0.1, "tol_gap_rel": 0.1, "tol_feas": 0.1}
    off = solve(fit, Reference("CLARABEL", loose))
    assert off.objective > exact.objective * (1 + 1e-4)
    assert off.status is not Status.SOLVED


def test_what_an_ill_conditioned_residual_may_hide_is_not_solved() -> None:
    generator = torch.Generator().manual_seed(1)
    left, right, z = torch.randn(3, 30, 30, generator=generator, dtype=torch.float64)
    scales = torch.logspace(0, -3, 30, dtype=torch.float64)
    weight = torch.linalg.qr(left)[0] * scales @ torch.linalg.qr(right)[0]
    target = z[:1].relu() @ weight
    link = Link(joint(activations.Identity()), weight, torch.zeros(30).double(), target)
    fit = StateFit(joint(activations.ReLU()), torch.zeros(1, 30).double(), (link,), 3e-6)
    rough = solve(fit, Reference("OSQP", {"eps_abs": 1e-5, "eps_rel": 1e-5}))
    loss = solve(fit).objective + float(target.square().sum()) / 2
    assert rough.objective - solve(fit).objective > 0.1 * loss
    assert rough.residual < 1e-4
    assert rough.status is not Status.SOLVED
    assert solve(fit, "reference").status is Status.SOLVED


def test_a_start_at_rest_is_kept_and_a_better_one_than_cvxpy_s_too() -> None:
    fit = state_fit(joint(activations.ReLU()), (joint(activations.ReLU()),), torch.float64)
    exact = solve(fit, Dual(tolerance=1e-12))
    assert exact.residual <= 1e-10
    at_rest = solve(fit, "reference", start=exact.value)
    assert at_rest.iterations == 0
    assert torch.equal(at_rest.value, exact.value)
    near = exact.value * (1 + 1e-9)  # not at rest, but better than a few steps from nowhere
    loose = Reference("SCS", {"eps_abs": 1e-2, "eps_rel": 1e-2})
    assert solve(fit, loose).residual > fit.measure(near).residual > 1e-10
    assert torch.equal(solve(fit, loose, start=near).value, near)
    far = solve(fit, "reference", start=exact.value + 1.0)
    assert far.residual < 1e-6
    assert far.objective == pytest.approx(exact.objective, rel=1e-9)
    outside = solve(fit, "reference", start=exact.value - 9.0)
    assert outside.objective == pytest.approx(exact.objective, rel=1e-9)


class Odd(Activation):
    """A map beside what CVXPY is told of it."""

    lipschitz = 1.0

    def __init__(self, potential: Any, domain: Any = None) -> None:
        self._potential, self._domain = potential, domain

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        return u

    def potential(self, v: Any) -> Any:
        return self._potential(v)

    def domain(self, v: Any) -> Any:
        return [] if self._domain is None else self._domain(v)


ODD = {
    "concave": Odd(lambda v: -cp.sum_squares(v)),
    "no scalar": Odd(cp.square),
    "an error of its own": Odd(lambda v: v.nothing),
    "text": Odd(lambda v: "x"),
    "domain not convex": Odd(cp.sum_squares, lambda v: [cp.square(v) >= 1]),
}


@pytest.mark.parametrize("case", ODD)
def test_what_cvxpy_cannot_take_is_a_declaration_error(case: str) -> None:
    fit = StateFit(tight(ODD[case]), torch.zeros(3, 2, dtype=torch.float64))
    with pytest.raises(DeclarationError, match="this StateFit cannot be stated"):
        solve(fit, "reference")


def test_backends_and_options_that_are_not_there_are_named() -> None:
    fit = StateFit(tight(activations.ReLU()), torch.zeros(3, 2, dtype=torch.float64))
    with pytest.raises(DeclarationError, match=r"'NOPE' here; there are .*OSQP"):
        solve(fit, Reference("NOPE"))
    for backend in ("CLARABEL", "SCS"):
        with pytest.raises(DeclarationError, match=f"{backend} does not take"):
            solve(fit, Reference(backend, {"nope": 1}))


def test_numbers_and_penalties_that_do_not_fit_are_refused_by_name() -> None:
    u = torch.ones(3, 2, dtype=torch.float64)
    simplex = joint(activations.SimplexProjection())
    with pytest.raises(DataError, match=r"not negative, got -1\.0"):
        solve(OutputFit(SimplexCrossEntropy(), -u, simplex, u), "reference")
    wrongs: tuple[Any, ...] = (lambda W: W.nothing, lambda W: "a")
    for wrong in wrongs:
        with pytest.raises(DeclarationError, match=r"pi\(W\) of Declared"):
            Declared(wrong).prox(u, 1.0)
    with pytest.raises(DeclarationError, match="constraints of Declared"):
        Declared(None, lambda W: [W @ W >= 0]).prox(u, 1.0)


class Empty(Odd):
    """Coupled, and with nothing in its domain."""

    per_unit = False


def test_an_empty_domain_has_no_nearest_point() -> None:
    empty = Empty(cp.sum_squares, lambda v: [v >= 1, v <= 0])
    with pytest.raises(SolverError, match="no point of a domain"):
        empty.project(torch.zeros(3, 2, dtype=torch.float64))
    with pytest.raises(DeclarationError, match="potential of Empty"):
        Empty(lambda v: v.nothing).potential_value(torch.zeros(3, 2, dtype=torch.float64))
