"""Penalties: prox against CVXPY, values against expressions, and fits against the reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cvxpy as cp
import pytest
import torch
from torch import Tensor

from liftednet import activations
from liftednet.divergences import joint, tight
from liftednet.errors import DataError, DeclarationError
from liftednet.penalties import (
    L1,
    Declared,
    GroupLasso,
    Nonnegative,
    Penalty,
    RowNorm,
    SpectralNorm,
    SquaredFrobenius,
)
from liftednet.solvers import solve
from tests.solvers.registry import weight_fit

PENALTIES: list[Penalty] = [
    SquaredFrobenius(0.3),
    SquaredFrobenius(0.3, torch.ones(4, 3, dtype=torch.float64)),
    L1(0.4),
    GroupLasso(0.5),
    Nonnegative(0.2),
    RowNorm(0.7),
    SpectralNorm(0.8),
]


def matrix(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("penalty", PENALTIES, ids=repr)
@pytest.mark.parametrize("t", [0.1, 3.0])
def test_prox_solves_its_problem(penalty: Penalty, t: float, generator: torch.Generator) -> None:
    w, p = matrix(generator, 4, 3), cp.Variable((4, 3))
    objective = t * penalty.expression(p) + cp.sum_squares(p - w.numpy()) / 2
    cp.Problem(cp.Minimize(objective), penalty.domain(p)).solve(solver="CLARABEL")
    assert torch.allclose(penalty.prox(w, t), torch.from_numpy(p.value), atol=1e-4)


@pytest.mark.parametrize("penalty", PENALTIES, ids=repr)
def test_value_is_the_expression(penalty: Penalty, generator: torch.Generator) -> None:
    w = penalty.prox(matrix(generator, 4, 3), 0.5)  # inside the domain
    constant = cp.Constant(w.numpy())
    stated: Any = penalty.expression(constant).value
    assert float(penalty.value(w)) == pytest.approx(float(stated))
    violations = [constraint.violation().max() for constraint in penalty.domain(constant)]
    assert max(violations, default=0.0) < 1e-12


@pytest.mark.parametrize("penalty", PENALTIES, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", [tight, joint])
def test_fit_agrees_with_the_reference(penalty: Any, dtype: torch.dtype, kind: Any) -> None:
    problem = replace(weight_fit(kind(activations.Sigmoid()), dtype), penalty=penalty)
    exact = replace(weight_fit(kind(activations.Sigmoid()), torch.float64), penalty=penalty)
    solution, reference = solve(problem, "proximal-weights"), solve(exact, "reference")
    gap = abs(solution.objective - reference.objective) / (1 + abs(reference.objective))
    assert gap < (1e-6 if dtype is torch.float64 else 1e-4)
    assert solution.residual <= (1e-8 if dtype is torch.float64 else 1e-5)
    assert solve(problem).residual <= (1e-8 if dtype is torch.float64 else 1e-5)


def test_l1_and_groups_set_weights_to_zero() -> None:
    problem = weight_fit(joint(activations.ReLU()), torch.float64)
    sparse = solve(replace(problem, penalty=L1(0.5))).value.matrix
    grouped = solve(replace(problem, penalty=GroupLasso(1.0))).value.matrix
    assert bool((sparse == 0).any()) and bool((sparse != 0).any())
    assert bool((grouped == 0).all(1).any()) and bool((grouped != 0).any())


def test_a_penalty_declared_in_cvxpy_goes_to_the_reference() -> None:
    declared = Declared(lambda w: 0.4 * cp.sum(cp.abs(w)))
    problem = weight_fit(tight(activations.ReLU()), torch.float64)
    ours, theirs = replace(problem, penalty=L1(0.4)), replace(problem, penalty=declared)
    solution = solve(theirs)
    assert solution.solver == "reference"
    assert solution.objective == pytest.approx(solve(ours).objective, rel=1e-6)
    bounded = Declared(cp.sum_squares, lambda w: [w <= 0.1])
    assert float(solve(replace(problem, penalty=bounded)).value.matrix.max()) <= 0.1 + 1e-6
    with pytest.raises(DeclarationError, match="prox"):
        solve(theirs, "proximal-weights")
    with pytest.raises(DeclarationError, match="prox"):
        declared.prox(torch.ones(4, 3), 1.0)


@pytest.mark.parametrize("kind", [L1, GroupLasso, Nonnegative, RowNorm, SpectralNorm])
def test_weights_and_bounds_must_be_positive(kind: Any) -> None:
    with pytest.raises(DataError, match="positive"):
        kind(0.0)
