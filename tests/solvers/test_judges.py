"""What judges promise: no verdict hides a loss; sums, objectives, residuals by autograd."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from liftednet import activations, penalties, problems
from liftednet.divergences import Divergence, joint, tight
from liftednet.losses import CrossEntropy, SimplexCrossEntropy
from liftednet.penalties import L1, Nonnegative, Penalty, SpectralNorm, SquaredFrobenius
from liftednet.problems import BlockFit, Design, OutputFit, StatesOverTime, WeightFit, Weights
from liftednet.problems.fit import NEAR
from liftednet.problems.priors import BoxedStates, PenalizedWeights
from liftednet.problems.states_over_time import LinearizedSteps, best_start, forward_states
from liftednet.sets.penalty import _judged
from liftednet.solvers import solve
from tests.draws import normal
from tests.solvers.registry import ACTIVATIONS, SAMPLES, link, state_fit, weight_fit

LINEAR = joint(activations.Identity())


PENALTIES: list[Penalty] = [
    L1(0.5), SquaredFrobenius(1e-3), SquaredFrobenius(0.3) + L1(2.0), Nonnegative(),
    SpectralNorm(0.05), SpectralNorm(5.0), Nonnegative() + SpectralNorm(0.05),
]  # fmt: skip
SOFTMAX = CrossEntropy().divergence
LOGISTIC = tight(activations.Sigmoid())
FITS = [(LINEAR, penalty) for penalty in PENALTIES]
FITS += [(LOGISTIC, PENALTIES[k]) for k in (0, 4)] + [(SOFTMAX, PENALTIES[k]) for k in (1, 6)]


def test_a_bias_that_saturates_a_loss_is_no_minimum_however_large_the_inputs() -> None:
    """Of sigmoids whose targets are all 1: moving b alone leads to a loss of 0."""
    x = -1e6 * normal(20, 2).abs()  # at W = 0 it pulls to what the bound forbids
    fit = WeightFit(LOGISTIC, Design(x), torch.ones(20, 1, dtype=torch.float64), Nonnegative())
    for bias in (10.0, 15.0):
        at = Weights(torch.zeros(2, 1, dtype=torch.float64), torch.full((1,), bias).double())
        found = fit.measure(at)
        assert found.residual * (len(x) + found.objective) >= 0.4 * found.objective


@pytest.mark.parametrize(("divergence", "penalty"), FITS, ids=repr)
def test_no_verdict_on_weights_hides_a_loss(divergence: Divergence, penalty: Penalty) -> None:
    """Off the minimizer by any size, the residual is no less than the share that is lost.

    Where it is far from one, it is not looked for: no tolerance is as coarse as `NEAR`.
    """
    y = divergence.activation.forward(2 * normal(12, 3, seed=1))
    x = normal(12, 4) * torch.tensor([1e2, 1.0, 1.0, 1e-2])
    problem = WeightFit(divergence, Design(x), y, penalty, 0.7)
    best = solve(problem).require_solved()
    least, far = best.objective, []
    for size in (1e-7, 1e-5, 1e-3):
        noise = size * normal(5, 3, seed=2) * best.value.stacked().abs().max()
        moved = problem.design.split(best.value.stacked() + noise)
        moved = replace(moved, matrix=penalty.project(moved.matrix))
        found = problem.measure(moved)
        lost = (found.objective - least) / (0.7 * 12 + abs(found.objective))
        assert found.residual >= min(0.99 * lost, NEAR) - 1e-8  # to which the least is known
        far.append(lost)
    assert max(far) > 1e-6


def over_time(seed: int, steps: int = 8, expands: float = 1.0) -> StatesOverTime:
    recurrent = expands * torch.linalg.qr(normal(2, 2, seed=seed)).Q
    counted = torch.ones(steps, 3, dtype=torch.bool)
    target = normal(steps, 3, 2, seed=seed + 2)
    weight, offset = normal(2, 2, seed=seed + 1), normal(2, seed=9)
    link = problems.TimeLink(LINEAR, weight, offset, target, counted, 0.4)
    lengths = torch.tensor([steps, steps - 2, steps])
    counted &= torch.arange(steps)[:, None] < lengths
    drive = normal(steps, 3, 2, seed=seed + 3)
    return StatesOverTime(joint(activations.ReLU()), drive, recurrent, (link,), lengths, 0.7)


@pytest.mark.parametrize("expands", [0.5, 1.5])
def test_no_verdict_on_states_over_time_hides_a_loss(expands: float) -> None:
    problem = over_time(0, expands=expands)
    best = solve(problem).require_solved().value
    blocks = problem.as_block
    assert blocks.measure(best).objective == pytest.approx(problem.measure(best).objective)
    least = problem.values(best)
    for size in (1e-6, 1e-4, 1e-2):
        for seed in (5, 6):
            moved = (best + size * normal(*best.shape, seed=seed)).clamp(min=0)
            moved = moved.where(problem.valid[..., None], 0.0)
            lost = (problem.values(moved) - least) / (0.7 + problem.values(moved).abs())
            assert problem.measure(moved).residual >= min(0.99 * float(lost.max()), NEAR) - 1e-9
            whole = float((problem.values(moved) - least).sum())
            share = whole / (0.7 + abs(blocks.measure(moved).objective))
            assert blocks.measure(moved).residual >= min(0.99 * share, NEAR) - 1e-9


def test_of_linear_states_without_a_link_the_bound_is_what_is_lost_at_the_violation() -> None:
    """It is quadratic in g, for which inertia / (inertia + lam) g stands: the prox has lam z^2."""
    problem = replace(over_time(0), divergence=joint(activations.Identity()))
    (link,) = problem.links
    problem = replace(problem, links=(replace(link, lam=1e-12),))
    best = solve(problem).require_solved().value
    moved = (best + normal(*best.shape, seed=5)).where(problem.valid[..., None], 0.0)
    point = LinearizedSteps(problem, moved)
    share = point.inertia / (point.inertia + problem.lam)
    lost = problem.values(moved) - problem.values(best)
    torch.testing.assert_close(point._bound(), share**2 * lost, rtol=1e-6, atol=0)


def test_sequences_are_judged_by_themselves() -> None:
    """One that is far off is as far beside two that are solved."""
    problem = over_time(0)
    states = solve(problem).require_solved().value.clone()
    states[:, 1] = (states[:, 1] + 1e-2 * normal(*states[:, 1].shape)).clamp(min=0)
    states = states.where(problem.valid[..., None], 0.0)
    whole = LinearizedSteps(problem, states).relative
    for n in range(3):
        alone = LinearizedSteps(problem.take(torch.tensor([n])), states[:, n : n + 1]).relative
        torch.testing.assert_close(whole[n : n + 1], alone, rtol=1e-6, atol=1e-12)
    assert NEAR < float(whole[1]) < 0.5


def test_gradients_of_blocks_are_those_of_autograd(generator: torch.Generator) -> None:
    weights, v = 0.2 + normal(SAMPLES, seed=4).abs(), normal(SAMPLES, 3, seed=5)
    prior = BoxedStates(joint(activations.ReLU()), 0.7, (SAMPLES, 3), None, v)
    plain, weighed = (link(LOGISTIC, generator, torch.float64) for _ in range(2))
    links = plain, replace(weighed, weights=weights)
    cases: list[tuple[BlockFit, Tensor]] = [
        (BlockFit(prior, normal(SAMPLES, 3, seed=6), links), v),
        (BlockFit(prior, None, links[1:]), v),
        (over_time(0).as_block, normal(8, 3, 2, seed=7)),
    ]
    for problem, at in cases:
        x = at.clone().requires_grad_()
        (wanted,) = torch.autograd.grad(problem.smooth_value(x), x)
        torch.testing.assert_close(sum(problem.terms(at)), wanted)
    rows = links[1].divergence.link_values(links[1].pre_activation(v), links[1].target)
    pulled = (normal(SAMPLES, 3, seed=6) * v).sum()
    written = 0.6 * (weights * rows).sum() + links[0].value(v) - pulled
    assert float(cases[0][0].smooth_value(v)) == pytest.approx(float(written))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_penalties_may_lose_is_fenchel_s_gap_and_nothing_where_that_is_rounding(dtype) -> None:
    """pi(W) - pi(P) - <W - P, S>, with S in dpi(P): in closed form of |.| and of a ball."""
    near, weight = 100 * torch.finfo(dtype).eps, 1e3 * normal(200, 3).to(dtype)
    calm = (0.3 * weight.sign()).unsqueeze(0)  # W moves by step (rho - .3), on its side
    assert _judged([L1(0.5)], weight, calm, 0.7).gap == 0.0
    below, up = weight.new_full((1, 3), -0.01), weight.new_full((1, 1, 3), 0.6)  # through 0
    assert _judged([L1(0.5)], below, up, 1.0).gap == pytest.approx(3 * 2 * 0.5 * 0.01, rel=near)
    ball, pull = penalties.RowNorm(2.0), normal(4, 3, seed=1).to(dtype)
    inside = 0.9 * ball.bound * normalize(pull)  # from .9 of the bound along a pull to the bound
    lost = 0.2 * float(pull.norm(dim=1).sum()) - 4 * 0.2**2 / 10.0
    found = _judged([ball], inside, pull.unsqueeze(0), 10.0).gap
    assert found == pytest.approx(lost, rel=10 * near)  # P is 64 eps within, W a tenth


def test_a_map_that_is_off_hides_no_gap() -> None:
    """At W = 1 the map leads to .1 where it should to .5: S = .9 is no subgradient there."""

    class Off(L1):
        def prox(self, weight: Tensor, t: float) -> Tensor:
            return 0.2 * super().prox(weight, t)

    one, pull = torch.ones(2, 1, dtype=torch.float64), torch.zeros(1, 2, 1, dtype=torch.float64)
    found = _judged([Off(0.5), L1(0.5)], one, torch.cat([pull, pull]), 1.0)
    assert found.gap == pytest.approx(2 * abs(0.5 - 0.05 - 0.9 * 0.9))


SMOOTH = [a for a in ACTIVATIONS if a.lipschitz is not None]


@pytest.mark.parametrize("activation", SMOOTH, ids=repr)
@pytest.mark.parametrize("kind", [tight, joint])
@pytest.mark.parametrize("bias", [True, False])
def test_weight_residual_is_the_gradient(activation, kind, bias, generator) -> None:
    problem = weight_fit(kind(activation), torch.float64, bias)
    rows = problem.design.features + bias
    value = problem.design.split(normal(rows, problem.units, seed=generator))
    if "from_function" in repr(activation) or not activation.declares("conjugate_value"):
        value = solve(problem).value  # values from quadrature have no autograd: judge the end
        assert problem.measure(value).residual <= 1e-7
        return
    stacked = value.stacked().clone().requires_grad_()
    weights = problem.design.split(stacked)
    u = weights.apply(problem.design.inputs)
    link_value = problem.lam * problem.divergence.link_value(u, problem.targets)
    (gradient,) = torch.autograd.grad(link_value + problem.penalty.value(weights.matrix), stacked)
    design = torch.cat([problem.design.inputs, torch.ones(len(u), int(bias), dtype=u.dtype)], 1)
    slope = design.T @ problem.divergence.link_gradient(u)
    terms = problem.lam * torch.stack([slope, design.T @ problem.targets]).detach()
    expected = float(gradient.abs().max() / terms.abs().max())  # over X'V lam or X'phi(u) lam
    assert problem.measure(value).residual == pytest.approx(expected, rel=1e-6)


def test_state_residual_is_the_kkt_violation_of_nonnegative_least_squares() -> None:
    problem = state_fit(joint(activations.ReLU()), (joint(activations.Identity()),), torch.float64)
    states = torch.rand(problem.samples, problem.units, dtype=torch.float64) + 1.0
    above, lam = problem.links[0], problem.lam
    push = above.lam * above.pre_activation(states) @ above.weight.T
    pull = above.lam * above.target @ above.weight.T
    terms = (lam * problem.pre_activation, push, pull)
    scale = torch.stack([term.abs().amax(1) for term in terms]).amax(0).clamp(min=lam)
    gradient = lam * states + push - pull - lam * problem.pre_activation
    smoothness = lam + above.lam * float(torch.linalg.matrix_norm(above.weight, 2)) ** 2
    gradient /= 1 + lam / smoothness  # where the step stays inside; elsewhere it ends at 0
    expected = (torch.minimum(gradient, smoothness * states).abs().amax(1) / scale).max()
    assert problem.measure(states).residual == pytest.approx(float(expected), rel=1e-6)


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
    draw = partial(normal, seed=generator)
    one = joint(activations.Sigmoid())
    weights = weight_fit(one, torch.float64, bias=False)
    states, counted = state_fit(one, (one,), torch.float64), torch.ones(12, 2, dtype=torch.bool)
    (above,) = states.links
    weighed = replace(above, weights=1 + draw(SAMPLES).abs())
    prior = BoxedStates(one, 0.5, (SAMPLES, 3), None, states.pre_activation)
    blocks = [BlockFit(prior, draw(SAMPLES, 3), links) for links in ((above,), (weighed, above))]
    next_link = problems.TimeLink(one, 0.1 * draw(2, 2), draw(2), draw(12, 2, 2), counted, 0.3)
    recurrent, lengths = -0.4 * torch.eye(2, dtype=torch.float64), torch.tensor([12, 12])
    over_time = StatesOverTime(one, draw(12, 2, 2), recurrent, (next_link,), lengths, 2.0)
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


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("samples", "inputs"), [(1, 1), (40, 300), (20_000, 257)])
def test_sums_are_those_of_the_dense_matrix(samples: int, inputs: int, bias: bool) -> None:
    x = normal(samples, inputs, dtype=torch.float32)
    v = normal(samples, 3, seed=1, dtype=torch.float32)
    dense = torch.cat([x.double(), torch.ones(samples, int(bias), dtype=torch.float64)], dim=1)
    design = Design(x, bias)
    found = design.gram, design.total, design.cross(v)
    expected = dense.T @ dense, dense.sum(0), dense.T @ v.double()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("apart", [1.0, 0.1])
def test_ridge_weights_do_not_suffer_from_float32_products(apart: float, generator) -> None:
    """Columns that are all but equal need sums in float64, which the certificate finds out."""
    common = torch.randn(3_000, 1, generator=generator)
    x = common + apart * torch.randn(3_000, 8, generator=generator)
    v = torch.randn(3_000, 2, generator=generator) + 20 * (x[:, :2] - x[:, 2:4]) / apart
    rho = 1e-3
    found = solve(WeightFit(LINEAR, Design(x), v, SquaredFrobenius(rho)), "ridge")
    wide = np.concatenate([x.double().numpy(), np.ones((3_000, 1))], 1)
    tail = np.sqrt(2 * rho) * np.eye(8, 9)
    right = np.concatenate([v.double().numpy(), np.zeros((8, 2))])
    expected = np.linalg.lstsq(np.concatenate([wide, tail]), right)[0]
    assert found.status.name == "SOLVED"
    np.testing.assert_allclose(found.value.stacked().numpy(), expected, rtol=2e-5, atol=1e-4)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("weighed", [False, True])
def test_of_a_quadratic_fit_what_is_still_to_gain_is_known_exactly(bias, weighed) -> None:
    weights = 0.5 + normal(12, seed=3).abs() if weighed else None
    design = Design(normal(12, 4) + 1.0, bias, weights)
    problem = WeightFit(LINEAR, design, normal(12, 3, seed=1), SquaredFrobenius(0.3), 0.7)
    best = solve(problem).require_solved().value
    for size in (1e-2, 1.0):
        moved = problem.design.split(best.stacked() + size * normal(4 + bias, 3, seed=2))
        excess = problem.measure(moved).objective - problem.measure(best).objective
        stacked = problem.design.centered.joined(moved)
        gradient, _ = problem.gradient(stacked)
        violation = gradient.clone()
        violation[:4] += 2 * 0.3 * moved.matrix
        assert problem._hidden(stacked, gradient, violation, 0.0) == pytest.approx(excess, rel=1e-6)
        assert problem._hidden(stacked, gradient, violation, 2 * excess) == 2 * excess
        below = problem._hidden(stacked, gradient, violation, 0.5 * excess)  # no way past H
        assert below == pytest.approx(excess, rel=1e-6)


def test_states_start_from_a_forward_pass_or_from_rest_whichever_is_better() -> None:
    """Weights that expand make states far above what the links ask for, and rest is better."""
    chosen = set()
    for seed, expands in ((0, 0.5), (1, 3.0), (2, 3.0)):
        problem = over_time(seed, 10, expands)
        if seed == 0:  # targets that a forward pass meets
            (link,) = problem.links
            met = replace(link, target=link.pre_activation(forward_states(problem)))
            problem = replace(problem, links=(met,))
        forward, rest = forward_states(problem), torch.zeros_like(problem.drive)
        values = torch.stack([problem.values(forward), problem.values(rest)])
        found = best_start(problem)
        torch.testing.assert_close(problem.values(found), values.amin(0))
        chosen |= set(values.argmin(0).tolist())
        for sample, which in enumerate(values.argmin(0).tolist()):
            assert found[:, sample].equal((forward, rest)[which][:, sample])
    assert chosen == {0, 1}
    far = replace(problem, recurrent=1e80 * problem.recurrent)  # no number after five steps
    assert not best_start(far).any()


def test_weights_of_a_block_are_judged_without_their_bias() -> None:
    """pi is of W alone, b is free: its prox is b, and its part of the violation the gradient."""
    weights = Weights(normal(3, 2), normal(2, seed=1))
    block = PenalizedWeights(L1(0.4), weights)
    v, gradient = block.packed(weights), normal(4, 2, seed=2)
    assert float(block.value(v)) == pytest.approx(0.4 * float(weights.matrix.abs().sum()))
    near = torch.sign(v[:3]) * (v[:3].abs() - 0.4 * 0.5).clamp(min=0)
    torch.testing.assert_close(block.prox(v, 0.5), torch.cat([near, v[3:]]))
    found = block.judged(v, gradient, 2.0).violation
    step = v[:3] - gradient[:3] / 2
    point = torch.sign(step) * (step.abs() - 0.2).clamp(min=0)
    torch.testing.assert_close(found, torch.cat([2 * (v[:3] - point), gradient[3:]]))


@pytest.mark.parametrize(
    ("dtype", "far"), [(torch.float64, 1.7e9), (torch.float64, 1e4), (torch.float32, 3e4)], ids=str
)
@pytest.mark.parametrize("penalty", [L1(2.0), penalties.GroupLasso(2.0), SquaredFrobenius(2.0)])
def test_targets_far_from_zero_hide_no_wrong_weights(penalty, dtype, far, generator) -> None:
    """The bias has their mean; what tells samples apart is judged beside its own terms."""
    x = normal(200, 30, seed=generator)
    y = (x[:, :3].sum(1) + 0.5 * normal(200, 1, seed=generator)[:, 0]).unsqueeze(1)
    fit = WeightFit(LINEAR, Design(x.to(dtype)), (y + far).to(dtype), penalty)
    own = fit.targets.double() - far
    near = solve(WeightFit(LINEAR, Design(fit.design.inputs.double()), own, penalty)).value
    found = solve(fit).require_solved().value
    close = 1e-6 if dtype is torch.float64 else 1e-3
    torch.testing.assert_close(found.matrix.double(), near.matrix, atol=close, rtol=0)
    for share in (0.0, 0.9):
        matrix = share * near.matrix
        bias = (own - fit.design.inputs.double() @ matrix).mean(0) + far
        wrong = Weights(matrix.to(dtype), bias.to(dtype))
        assert fit.measure(wrong).residual == pytest.approx(1 - share, rel=0.2)


def test_what_lies_across_a_far_mean_is_judged_by_terms_about_it(generator) -> None:
    """Without a bias terms of 1e8 would hide gradients that tell samples apart."""
    x = normal(40, 4, seed=generator)
    y = x @ normal(4, 2, seed=generator)
    x = x + 1e4
    problem = WeightFit(LINEAR, Design(x, False), y, SquaredFrobenius(0.1), 3.0)
    weight, mean = solve(problem).value.matrix, x.mean(0)
    step = normal(4, 2, seed=generator)
    weight = weight + 0.1 * (step - torch.outer(mean, mean @ step) / (mean @ mean))
    gradient = 3.0 * x.T @ (x @ weight - y) + 0.2 * weight
    across = gradient - torch.outer(mean, mean @ gradient) / (mean @ mean)
    expected = float(across.abs().max() / (3.0 * (x - mean).T @ y).abs().max())
    assert problem.measure(Weights(weight, None)).residual == pytest.approx(expected, rel=0.05)
