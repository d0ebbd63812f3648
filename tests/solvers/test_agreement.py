"""Every solver times problem times activation times precision against the reference; who serves."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from liftednet import activations
from liftednet.divergences import joint, tight
from liftednet.problems import Link, StateFit, WeightFit, Weights
from liftednet.solution import Status
from liftednet.solvers import choose, solve
from tests.draws import normal
from tests.solvers.registry import CASES, Case, solvers_of


def moved(problem: Any, value: Any) -> Any:
    """Return a value as far away as its noise."""
    at = value.matrix if isinstance(value, Weights) else value
    at = at + 0.05 * normal(*at.shape, dtype=at.dtype)
    if isinstance(value, Weights):
        return replace(value, matrix=problem.penalty.project(at))
    at = problem.divergence.activation.project(at)
    bounds = getattr(problem, "bounds", None)
    return at if bounds is None else at.clamp(*bounds)


def written(fit: WeightFit, weights: Weights) -> float:
    """Return the objective of weights as it is written, sample by sample."""
    u = weights.apply(fit.design.inputs) + (0.0 if fit.offset is None else fit.offset)
    link = fit.lam * fit.divergence.link_value(u, fit.targets)
    return float(link + fit.penalty.value(weights.matrix))


# Solvers that use no start; the sum of three penalties finds its dual variables again.
ANEW = ("closed-form", "simplex-dual", "-simplex")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_solver_agrees_with_the_reference(case: Case) -> None:
    expected = solve(case.build(torch.float64), "reference")
    assert expected.residual <= 2e-4  # of the piecewise quadratic stand-ins
    assert expected.status in (Status.SOLVED, Status.STALLED)
    runs = list(solvers_of(case))
    assert runs or "Sign" in case.name  # which CVXPY alone serves
    for solver, dtype in runs:
        run, double = (solver, dtype), dtype is torch.float64
        solution = solve(case.build(dtype), solver)
        assert (solution.status, solution.solver) == (Status.SOLVED, solver), run
        gap = abs(solution.objective - expected.objective) / (1 + abs(expected.objective))
        assert gap <= (1e-6 if double else 1e-4), run
        assert solution.residual <= (1e-8 if double else 1e-5), run
        if isinstance(solution.value, Weights):
            by_hand = written(case.build(dtype), solution.value)
            assert solution.objective == pytest.approx(by_hand, rel=1e-6 if double else 1e-4), run
        if double:
            away = case.build(dtype).measure(moved(case.build(dtype), solution.value))
            assert away.objective >= solution.objective - 1e-7 * (1 + abs(solution.objective)), run
            assert not away.residual <= 10 * solution.residual, run  # Sign has none
        if "between bounds" in case.name:
            assert torch.equal(solution.value, solution.value.clamp(0.2, 0.6)), run
        second = solve(case.build(dtype), solver, start=solution.value)  # returns at once
        assert second.status is Status.SOLVED, run
        if not solver.endswith(ANEW) and "SpectralNorm(bound=0.4)" not in case.name:
            assert second.iterations <= 4, run


ROOTS = [
    activations.Sigmoid(), activations.Tanh(), activations.Arctan(), activations.Sine(),
    activations.Softplus(), activations.ELU(),
]  # fmt: skip


def test_weights_of_a_torch_layer_are_numbers() -> None:
    layer, u = torch.nn.Linear(3, 2).double(), normal(5, 3, seed=1)
    for divergence in (tight(activations.ReLU()), joint(activations.ReLU())):
        link = Link(divergence, layer.weight.T, layer.bias, normal(5, 2, seed=2).relu())
        numbers = replace(link, weight=link.weight.detach(), offset=layer.bias.detach())
        found, wanted = (solve(StateFit(divergence, u, (one,))) for one in (link, numbers))
        assert torch.equal(found.value, wanted.value) and not found.value.requires_grad


def _fit(divergence, bounds=None):
    target = divergence.activation.forward(torch.zeros(100, 50))
    link = Link(divergence, torch.eye(50), torch.zeros(50), target)
    return StateFit(divergence, torch.zeros(100, 50), (link,), bounds=bounds)


@pytest.mark.parametrize("bounds", [None, (0.1, 0.6)])
@pytest.mark.parametrize("activation", ROOTS, ids=repr)
def test_steps_that_need_few_roots_are_chosen(activation, bounds):
    assert choose(_fit(joint(activation), bounds)).name == "dual"
    assert choose(_fit(tight(activation), bounds)).name == "newton"


def test_a_closed_prox_is_taken():
    assert choose(_fit(joint(activations.SimplexProjection()))).name == "proximal"
    assert activations.ReLU().closed_prox and activations.LeakyReLU(0.1).closed_prox
