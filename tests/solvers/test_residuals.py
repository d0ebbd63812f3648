"""The judges themselves: objectives and residuals against autograd and against moved points."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from liftednet import activations
from liftednet.divergences import joint, tight
from liftednet.losses import SimplexCrossEntropy
from liftednet.problems import OutputFit, StateFit, WeightFit, Weights
from liftednet.solvers import solve
from tests.solvers.registry import (
    ACTIVATIONS,
    CASES,
    Case,
    link,
    state_fit,
    weight_fit,
)

SMOOTH = [a for a in ACTIVATIONS if a.lipschitz is not None]


def relative_gradient(problem: WeightFit, value: Weights) -> float:
    """Return the largest gradient by autograd over the largest term, X'V lam or X'phi(u) lam."""
    stacked = value.stacked().clone().requires_grad_()
    weights = problem.design.split(stacked)
    u = weights.apply(problem.design.inputs)
    link_value = problem.lam * problem.divergence.link_value(u, problem.targets)
    (gradient,) = torch.autograd.grad(link_value + problem.penalty.value(weights.matrix), stacked)
    ones = torch.ones(len(u), 1, dtype=u.dtype)
    design = (
        torch.cat([problem.design.inputs, ones], 1)
        if problem.design.bias
        else (problem.design.inputs)
    )
    slope = design.T @ problem.divergence.link_gradient(u)
    terms = torch.stack([slope, design.T @ problem.targets])
    return float(gradient.abs().max() / (problem.lam * terms.abs().max().detach()))


@pytest.mark.parametrize("activation", SMOOTH, ids=repr)
@pytest.mark.parametrize("kind", [tight, joint])
@pytest.mark.parametrize("bias", [True, False])
def test_weight_residual_is_the_gradient(
    activation: Any, kind: Any, bias: bool, generator: torch.Generator
) -> None:
    problem = weight_fit(kind(activation), torch.float64, bias)
    rows = problem.design.features + bias
    shape = (rows, problem.units)
    value = problem.design.split(torch.randn(shape, generator=generator, dtype=torch.float64))
    if "from_function" in repr(activation) or not activation.declares("conjugate_value"):
        value = solve(problem).value  # values from quadrature have no autograd: judge the end
        assert problem.measure(value).residual <= 1e-7
        return
    expected = relative_gradient(problem, value)
    assert problem.measure(value).residual == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_moving_off_the_minimizer_raises_objective_and_residual(
    case: Case, generator: torch.Generator
) -> None:
    problem = case.build(torch.float64)
    solution = solve(problem)
    moved = _moved(problem, solution.value, generator)
    away = problem.measure(moved)
    assert away.objective >= solution.objective - 1e-7 * (1 + abs(solution.objective))
    if away.residual == away.residual:  # Sign is not smooth and has none
        assert away.residual > 10 * solution.residual


def _moved(problem: Any, value: Any, generator: torch.Generator) -> Any:
    def noise(x: Tensor) -> Tensor:
        return 0.05 * torch.randn(x.shape, generator=generator, dtype=x.dtype)

    if isinstance(value, Weights):
        return Weights(value.matrix + noise(value.matrix), value.bias)
    return problem.divergence.activation.project(value + noise(value))


def test_state_residual_is_the_kkt_violation_of_nonnegative_least_squares() -> None:
    problem = state_fit(joint(activations.ReLU()), (joint(activations.Identity()),), torch.float64)
    states = torch.rand(problem.samples, problem.units, dtype=torch.float64) + 1.0
    above, lam = problem.links[0], problem.lam
    push = above.lam * above.pre_activation(states) @ above.weight.T
    pull = above.lam * above.target @ above.weight.T
    terms = (lam * problem.pre_activation, push, pull)
    scale = max(lam, *(float(term.abs().max()) for term in terms))
    gradient = lam * states + push - pull - lam * problem.pre_activation
    smoothness = lam + above.lam * float(torch.linalg.matrix_norm(above.weight, 2)) ** 2
    gradient /= 1 + lam / smoothness  # where the step stays inside; elsewhere it ends at 0
    expected = torch.minimum(gradient, smoothness * states).abs().max() / scale
    assert problem.measure(states).residual == pytest.approx(float(expected), rel=1e-6)


def test_state_objective_is_the_written_sum(generator: torch.Generator) -> None:
    divergence = tight(activations.Sigmoid())
    problem = StateFit(
        divergence,
        torch.randn(9, 3, generator=generator, dtype=torch.float64),
        (link(divergence, generator, torch.float64),),
        0.5,
    )
    z = torch.rand(9, 3, generator=generator, dtype=torch.float64)
    above = problem.links[0]
    a = z @ above.weight + above.offset
    entropy = (z * z.log() + (1 - z) * (1 - z).log()).sum()
    written = 0.5 * (entropy - (z * problem.pre_activation).sum())
    written += above.lam * (torch.log1p(a.exp()) - a * above.target).sum()
    assert problem.measure(z).objective == pytest.approx(float(written), rel=1e-12)


@pytest.mark.parametrize("last", [[0.3] * 4, [-0.1, 0.4, 0.4, 0.3], [0.0, 0.4, 0.3, 0.3]])
def test_outputs_off_the_simplex_or_zero_below_a_target_are_infinitely_bad(
    last: list[float],
) -> None:
    z = torch.tensor([[0.25] * 4, last], dtype=torch.float64)
    y = torch.eye(4, dtype=torch.float64)[[1, 0]]
    u = torch.zeros(2, 4, dtype=torch.float64)
    fit = OutputFit(SimplexCrossEntropy(), y, joint(activations.SimplexProjection()), u)
    assert math.isfinite(fit.measure(z[:1].repeat(2, 1)).objective)
    assert fit.measure(z).objective == math.inf
