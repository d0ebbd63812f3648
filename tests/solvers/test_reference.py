"""The reference solver: compiled once, chosen freely, honest about failure."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import cvxpy as cp
import pytest
import torch

from liftednet import activations
from liftednet.divergences import joint, tight
from liftednet.errors import SolverError
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import Design, WeightFit
from liftednet.solvers import Reference, solve
from tests.solvers.registry import CASES, Case, state_fit, weight_fit


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_formulation_is_dpp(case: Case) -> None:
    statement = case.build(torch.float64).formulate().problem
    assert statement.is_dcp(dpp=True)


def test_a_second_solve_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    divergence = tight(activations.ReLU())
    first = weight_fit(divergence, torch.float64)
    second = replace(first, targets=first.targets.flip(0), design=Design(first.design.inputs * 2))
    solver = Reference()
    cache = solver.prepare(first)
    solver.solve(first, cache=cache)
    compiled: list[Any] = []
    construct = cp.Problem._construct_chain

    def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        compiled.append(self)
        return construct(self, *args, **kwargs)

    monkeypatch.setattr(cp.Problem, "_construct_chain", counting)
    assert solver.prepare(second, cache) is cache
    again = solver.solve(second, cache=cache)
    assert compiled == []
    fresh = solve(second, "reference")
    assert compiled != []
    assert again.objective == pytest.approx(fresh.objective, rel=1e-9)


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


def test_a_compiled_problem_is_not_used_for_another_center() -> None:
    generator = torch.Generator().manual_seed(0)
    x, v, first, second = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((6, 2), (6, 3), (2, 3), (2, 3))
    )
    fits = [
        WeightFit(joint(activations.Identity()), Design(x), v, SquaredFrobenius(1.0, center))
        for center in (first, second)
    ]
    reference = Reference()
    compiled = reference.prepare(fits[0])
    found = reference.solve(fits[1], None, compiled).value
    expected = solve(fits[1], "ridge").value
    assert torch.allclose(found.matrix, expected.matrix, atol=1e-6)
