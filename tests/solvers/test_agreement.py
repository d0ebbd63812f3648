"""Every solver times problem times activation times precision against the reference."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from liftednet.solution import Solution, Status
from liftednet.solvers import solve
from tests.solvers.registry import CASES, RUNS, Case


@cache
def reference(case: Case) -> Solution[Any]:
    return solve(case.build(torch.float64), "reference")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_reference_certifies_itself(case: Case) -> None:
    assert reference(case).residual <= 2e-4  # of the piecewise quadratic stand-ins
    assert reference(case).status in (Status.SOLVED, Status.STALLED)


@pytest.mark.parametrize(("case", "solver", "dtype"), RUNS, ids=str)
def test_agrees_with_the_reference(case: Case, solver: str, dtype: torch.dtype) -> None:
    expected, solution = reference(case), solve(case.build(dtype), solver)
    assert solution.status is Status.SOLVED
    assert solution.solver == solver
    gap = abs(solution.objective - expected.objective) / (1 + abs(expected.objective))
    assert gap <= (1e-6 if dtype is torch.float64 else 1e-4)
    assert solution.residual <= (1e-8 if dtype is torch.float64 else 1e-5)
    second = solve(case.build(dtype), solver, start=solution.value)  # returns at once
    assert second.status is Status.SOLVED
    if not solver.endswith(("closed-form", "simplex-dual", "-simplex")):  # which use no start
        assert second.iterations <= 4
