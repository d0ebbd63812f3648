"""A short form of `make torture`: some of its drawn subproblems, and the judge itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import nnls

from liftednet.problems import Weights
from liftednet.solution import Status
from liftednet.solvers import choose, solve
from tests.torture.judge import Convex, Term, solved
from tests.torture.subproblems import KINDS, findings, verdict


def test_no_drawn_subproblem_is_certified_and_wrong():
    for finding in findings(0.01):
        assert finding.wrong == 0, finding.example


@pytest.mark.parametrize("seed", [1442, 1658, 11384, 11468, 21802, 22213])
def test_weight_fits_that_were_certified_and_wrong(seed):
    make, _ = KINDS["weight fits"]
    assert verdict(make(seed)) == ("SOLVED", "")


def test_a_block_fit_whose_small_violation_cost_a_share_of_the_objective():
    make, _ = KINDS["block fits"]  # float32, curvature 7e4 beside that of its states
    assert verdict(make(910087)) == ("SOLVED", "")


@pytest.mark.parametrize("seed", [5013, 5024, 5035, 5051])
def test_small_slopes_that_were_certified_and_wrong(seed):
    make, _ = KINDS["slope fits"]
    drawn = make(seed)
    solution = solve(drawn.problem, "reference")
    found, least, size = drawn.judge(solution.value)
    assert solution.status is not Status.SOLVED or found - least <= 1e-6 * size
    off = drawn.problem.measure(solution.value * 1.001 if solution.value < 0.5 else 0.99).residual
    assert off > 1e-4


@pytest.mark.parametrize("kind, seed", [("state fits", 600330), ("weight fits", 600341)])
def test_auto_solves_what_its_first_solver_does_not(kind, seed):
    make, _ = KINDS[kind]
    problem = make(seed).problem
    assert choose(problem).solve(problem).status is not Status.SOLVED
    assert verdict(make(seed)) == ("SOLVED", "")


def test_the_judge_solves_nonnegative_least_squares():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(8, 4)), rng.normal(size=8)
    wanted, norm = nnls(a, b)
    term = Term("Identity", True, a.astype(np.longdouble), 0 * b, b, 1.0)
    problem = Convex(4, [term], lower=np.zeros(4))
    _, least = problem.improved(np.ones(4))
    assert float(least) == pytest.approx((norm**2 - b @ b) / 2, abs=1e-12)
    assert float(problem.improved(wanted)[0]) == pytest.approx(float(least), abs=1e-12)


@pytest.mark.parametrize("kind", ["state fits", "weight fits", "states over time"])
def test_the_judge_sees_what_is_certified_and_wrong(monkeypatch, kind):
    monkeypatch.setattr("tests.torture.subproblems.solve", _hasty)
    make = next(make for name, (make, _) in KINDS.items() if name.startswith(kind))
    assert any(verdict(make(seed))[1] for seed in range(20))


def _hasty(problem):
    """Return a solution that is off by a tenth and says that it is solved."""
    solution = solve(problem)
    value = solution.value
    off = Weights(0.9 * value.matrix, value.bias) if isinstance(value, Weights) else 0.9 * value
    return replace(solution, value=off, residual=0.0)


def test_a_system_is_solved_in_long_double():
    rng = np.random.default_rng(1)
    root = rng.normal(size=(6, 6)).astype(np.longdouble)
    matrix, wanted = root @ root.T, np.ones(6, np.longdouble)
    found = solved(matrix, matrix @ wanted)
    assert float(abs(found - wanted).max()) < 1e-13


def test_a_singular_system_is_not_solved_by_a_huge_step():
    rng = np.random.default_rng(2)
    root = rng.normal(size=(6, 3)).astype(np.longdouble)
    matrix = root @ root.T
    right = matrix @ np.ones(6, np.longdouble)
    found = solved(matrix, right + 1e-19 * rng.normal(size=6))
    assert float(abs(matrix @ found - right).max()) < 1e-13
    assert float(abs(found).max()) < 1e3
