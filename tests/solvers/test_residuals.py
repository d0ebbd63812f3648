"""The judges themselves: sums, objectives and residuals against autograd and moved points."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from liftednet import activations
from liftednet.activations import Identity
from liftednet.divergences import joint, tight
from liftednet.losses import SimplexCrossEntropy
from liftednet.penalties import SpectralNorm, SquaredFrobenius
from liftednet.problems import (
    BlockFit,
    Design,
    Link,
    OutputFit,
    StateFit,
    StatesOverTime,
    TimeLink,
    WeightFit,
    Weights,
)
from liftednet.problems.priors import BoxedStates
from liftednet.solvers import solve
from tests.solvers.registry import ACTIVATIONS, CASES, Case, link, state_fit, weight_fit

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
def test_outputs_off_the_simplex_or_zero_below_a_target_are_no_solutions(last: list[float]) -> None:
    z = torch.tensor([[0.25] * 4, last], dtype=torch.float64)
    y = torch.eye(4, dtype=torch.float64)[[1, 0]]
    u = torch.zeros(2, 4, dtype=torch.float64)
    fit = OutputFit(SimplexCrossEntropy(), y, joint(activations.SimplexProjection()), u)
    assert math.isfinite(fit.measure(z[:1].repeat(2, 1)).objective)
    assert not math.isfinite(fit.measure(z).objective)


def test_smoothness_is_a_lipschitz_constant_and_hardly_more(generator: torch.Generator) -> None:
    """Of quadratic divergences the gradient of all but g is linear: its matrix has a norm."""

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    one = joint(activations.Sigmoid())
    x, counted = draw(9, 4), torch.ones(12, 2, dtype=torch.bool)
    weights = WeightFit(one, Design(x, False), draw(9, 3), SquaredFrobenius(0.1), 0.7)
    above = Link(one, draw(3, 2), draw(2), draw(9, 2), 0.6)
    states = StateFit(one, draw(9, 3), (above,), 0.5)
    weighed = replace(above, weights=1 + draw(9).abs())
    prior = BoxedStates(one, 0.5, (9, 3), None, x)
    blocks = [BlockFit(prior, draw(9, 3), links) for links in ((above,), (weighed, above))]
    link = TimeLink(one, 0.1 * draw(2, 2), draw(2), draw(12, 2, 2), counted, 0.3)
    recurrent, lengths = -0.4 * torch.eye(2, dtype=torch.float64), torch.tensor([12, 12])
    over_time = StatesOverTime(one, draw(12, 2, 2), recurrent, (link,), lengths, 2.0)
    cases: list[tuple[Any, Any, float]] = [
        (weights, lambda fit, v: fit.gradient(v)[0], 0.0),
        (states, lambda fit, v: fit._terms(v)[1], 0.0),
        (blocks[0], lambda fit, v: sum(fit.terms(v)), 0.0),
        (blocks[1], lambda fit, v: sum(fit.terms(v)), 0.5),  # the sum of two norms
        (over_time, lambda fit, v: sum(fit.terms(v)), 0.1),  # of a step and of those beside it
        (over_time.as_block, lambda fit, v: sum(fit.terms(v)), 0.1),
    ]
    for problem, slope, slack in cases:
        like = torch.zeros(problem.like().shape, dtype=torch.float64)
        units = torch.eye(like.numel(), dtype=torch.float64).unflatten(1, like.shape)
        columns = [(slope(problem, unit) - slope(problem, like)).flatten() for unit in units]
        norm = float(torch.linalg.matrix_norm(torch.stack(columns), 2))
        assert norm <= problem.smoothness * (1 + 1e-9)
        assert problem.smoothness <= norm * (1 + slack) * (1 + 1e-9)


@pytest.mark.parametrize("bound", [1e-3, 0.5])
def test_the_residual_under_a_bound_is_a_duality_gap(bound: float) -> None:
    """By singular values: the largest entries of the violation, or the gap over all terms."""
    generator = torch.Generator().manual_seed(0)
    x, y, off = (torch.randn(12, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    problem = WeightFit(
        joint(activations.Identity()), Design(x, False), y, SpectralNorm(bound), 0.7
    )

    def inside(matrix: Tensor) -> Tensor:
        left, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
        found: Tensor = left * sizes.clamp(max=bound) @ right
        return found

    for share in (1e-4, 1.0):
        weight = inside(solve(problem).value.matrix + share * bound * off[:4])
        slope, pull = x.T @ (x @ weight), x.T @ y
        gradient = 0.7 * (slope - pull)
        smoothness = 0.7 * float(torch.linalg.matrix_norm(x, 2)) ** 2
        step = 1 / max(smoothness, float(gradient.abs().max()) / bound)
        point = inside(weight - step * gradient)
        moved = weight - point
        gap = -float((moved * (moved / step - gradient)).sum())
        terms = 0.7 * float((weight.abs() * (slope.abs() + pull.abs())).sum())
        largest = 0.7 * max(float(slope.abs().max()), float(pull.abs().max()))
        expected = max(gap / terms, float(moved.abs().max()) / step / largest)
        found = problem.measure(Weights(weight, None)).residual
        assert found == pytest.approx(expected, rel=1e-3 if share == 1 else 1.0)


def test_what_lies_across_a_far_mean_is_judged_by_terms_about_it() -> None:
    """Without a bias terms of 1e8 would hide gradients that tell samples apart."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 4, generator=generator, dtype=torch.float64)
    y = x @ torch.randn(4, 2, generator=generator, dtype=torch.float64)
    x = x + 1e4
    problem = WeightFit(
        joint(activations.Identity()), Design(x, False), y, SquaredFrobenius(0.1), 3.0
    )
    weight, mean = solve(problem).value.matrix, x.mean(0)
    step = torch.randn(4, 2, generator=generator, dtype=torch.float64)
    weight = weight + 0.1 * (step - torch.outer(mean, mean @ step) / (mean @ mean))
    gradient = 3.0 * x.T @ (x @ weight - y) + 0.2 * weight
    across = gradient - torch.outer(mean, mean @ gradient) / (mean @ mean)
    terms = 3.0 * (x - mean).T @ y
    expected = float(across.abs().max() / terms.abs().max())
    assert problem.measure(Weights(weight, None)).residual == pytest.approx(expected, rel=0.05)


def test_sums_in_float32_count_what_their_rounding_hides(generator: torch.Generator) -> None:
    x, y = torch.randn(5_000, 6, generator=generator), torch.randn(5_000, 3, generator=generator)
    x *= torch.tensor([100.0, 10.0, 1.0, 1.0, 0.1, 0.01])
    problem = WeightFit(joint(activations.Identity()), Design(x), y, SquaredFrobenius(0.1), 0.7)
    value = problem.design.centered.joined(solve(problem).value)
    hidden = (problem.rough.gradient(value)[0] - problem.gradient(value)[0]).abs().max()
    assert 0 < float(hidden) <= problem.rough._unseen(value) <= 1e3 * float(hidden)


def test_inputs_that_say_nothing_leave_what_the_penalty_pulls() -> None:
    x, y = torch.zeros(1000, 2, dtype=torch.float64), torch.ones(1000, 1, dtype=torch.float64)
    problem = WeightFit(joint(activations.Identity()), Design(x, False), y, SquaredFrobenius(0.3))
    value = Weights(torch.tensor([[1.0], [-2.0]], dtype=torch.float64), None)
    assert problem.measure(value).residual == pytest.approx(2 * 0.3 * 2)


@pytest.mark.parametrize("size", [0.1, 1.0])
def test_states_that_expand_are_judged_by_what_they_may_still_gain(size: float) -> None:
    """Steps from 0, which is best, are 1e-6 of their terms; the quadratic objective tells."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    linear, lengths = joint(activations.Identity()), torch.tensor([16, 15])
    first, offset = (torch.arange(16) < 2)[:, None].expand(16, 2), draw(2)
    link = TimeLink(linear, draw(2, 2), offset, offset.expand(16, 2, 2), first, 0.3)
    recurrent = 2.5 * torch.linalg.qr(draw(2, 2)).Q
    drive = torch.zeros(16, 2, 2, dtype=torch.float64)
    problem = StatesOverTime(linear, drive, recurrent, (link,), lengths, 0.7)
    states = [size * draw(2, 2)]
    for _ in range(15):
        states.append(states[-1] @ recurrent)
    wrong = torch.stack(states).where(problem.valid[..., None], 0.0)
    pulled = (wrong[:2] @ link.weight).square().sum((0, 2))
    excess = (0.7 * wrong[0].square().sum(1) + 0.3 * pulled) / 2
    share = excess / (0.7 + problem.values(wrong).abs())
    assert problem.measure(wrong).residual == pytest.approx(float(share.max()), rel=1e-3)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("samples", "inputs"), [(1, 1), (40, 300), (20_000, 257)])
def test_sums_are_those_of_the_dense_matrix(samples: int, inputs: int, bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, inputs, generator=generator)
    v = torch.randn(samples, 3, generator=generator)
    dense = torch.cat([x.double(), torch.ones(samples, int(bias), dtype=torch.float64)], dim=1)
    design = Design(x, bias)
    for found, expected in (
        (design.gram, dense.T @ dense),
        (design.total, dense.sum(0)),
        (design.cross(v), dense.T @ v.double()),
    ):
        assert torch.allclose(found, expected, rtol=1e-12, atol=1e-9)


def test_rough_sums_are_those_of_float32_products() -> None:
    x = torch.randn(20_000, 70, generator=torch.Generator().manual_seed(0)).relu()
    exact, rough = Design(x).gram, Design(x).rough.gram
    lengths = exact.diagonal().sqrt()
    off = ((rough - exact) / lengths.outer(lengths)).abs().max()
    assert 0 < float(off) < 4e-7
    assert torch.equal(Design(x.double()).rough.gram, exact)


@pytest.mark.parametrize("apart", [1.0, 0.1])
def test_ridge_weights_do_not_suffer_from_float32_products(apart: float) -> None:
    """Columns that are all but equal need sums in float64, which the certificate finds out."""
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(3_000, 1, generator=generator)
    x = common + apart * torch.randn(3_000, 8, generator=generator)
    v = torch.randn(3_000, 2, generator=generator) + 20 * (x[:, :2] - x[:, 2:4]) / apart
    rho = 1e-3
    found = solve(WeightFit(joint(Identity()), Design(x), v, SquaredFrobenius(rho)), "ridge")
    wide = np.concatenate([x.double().numpy(), np.ones((3_000, 1))], 1)
    tail = np.sqrt(2 * rho) * np.eye(8, 9)
    right = np.concatenate([v.double().numpy(), np.zeros((8, 2))])
    expected = np.linalg.lstsq(np.concatenate([wide, tail]), right)[0]
    assert found.status.name == "SOLVED"
    np.testing.assert_allclose(found.value.stacked().numpy(), expected, rtol=2e-5, atol=1e-4)
