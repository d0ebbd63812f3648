"""Hard cases: degenerate sizes, any scale, bad starts, and what once was certified and wrong."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.optimize import nnls
from sklearn.linear_model import Ridge
from torch import Tensor

from liftednet import activations, solvers
from liftednet.divergences import joint, tight
from liftednet.losses import BinaryCrossEntropy, CrossEntropy
from liftednet.maps import Rows
from liftednet.penalties import L1, ColumnNorm, Nonnegative, SpectralNorm, SquaredFrobenius
from liftednet.problems import BlockFit, Design, Link, StateFit, WeightFit, Weights
from liftednet.problems.priors import PenalizedWeights
from liftednet.solution import Status
from liftednet.solvers import Dual, GeneralizedLinear, NewtonStates, Proximal, solve, solver_names
from tests.draws import normal
from tests.models.networks import refuses

RELU, SQUARED = joint(activations.ReLU()), joint(activations.Identity())
SIZES = st.sampled_from([1, 2, 5, 9])
SCALES = st.sampled_from([1e-8, 1e-4, 1.0, 1e4, 1e8])
KINDS = st.sampled_from(["zero", "rank one", "tiny", "plain", "equal rows"])
SEEDS = st.integers(0, 2**31 - 1)
STARTS = st.sampled_from([None, 0.0, 1.0, 1e6])
HOW = st.tuples(st.booleans(), st.booleans(), st.booleans())


def matrix(kind: str, seed: int, rows: int, columns: int) -> Tensor:
    plain = normal(rows, columns, seed=seed)
    if kind == "rank one":
        return plain[:, :1] * plain[:1]
    if kind == "equal rows":
        return plain[:1].expand(rows, columns).clone()
    return {"zero": 0.0, "tiny": 1e-9, "plain": 1.0}[kind] * plain


@pytest.mark.parametrize("solver", ["compiled-newton", "compiled-descent", "dual", "proximal"])
@given(samples=SIZES, units=SIZES, above=SIZES, kind=KINDS, seed=SEEDS, size=STARTS)
def test_states_are_scipys_nnls_from_any_start(solver, samples, units, above, kind, seed, size):
    """Also from one on the wrong face."""
    weights, zero = matrix(kind, seed, units, above), torch.zeros(above, dtype=torch.float64)
    u, v = 2 * normal(samples, units, seed=seed + 1), normal(samples, above, seed=seed + 2)
    problem = StateFit(RELU, u, (Link(SQUARED, weights, zero, v, 1.0),), 1.0)
    stacked, rights = np.vstack([np.eye(units), weights.numpy().T]), np.hstack([u, v])
    expected = torch.from_numpy(np.array([nnls(stacked, right)[0] for right in rights]))
    start = None if size is None else size * (expected <= 0).double()
    solution = solve(problem, solver, start=start)
    assert solution.status is Status.SOLVED
    assert torch.allclose(solution.value, expected, atol=1e-6)


@given(shape=st.tuples(SIZES, SIZES, SIZES), kind=KINDS, rho=SCALES, seed=SEEDS, how=HOW)
def test_ridge_is_least_squares_on_the_stacked_system(shape, kind, rho, seed, how) -> None:
    """With lam L |X W + b - (v - c) / L|^2 / 2 + rho |W - W_0|^2 as it is derived."""
    (samples, inputs, units), (bias, centered, sigmoid) = shape, how
    x, v = matrix(kind, seed, samples, inputs), normal(samples, units, seed=seed + 1).sigmoid()
    divergence, smooth, offset = (
        (joint(activations.Sigmoid()), 0.25, 0.5) if sigmoid else (SQUARED, 1.0, 0.0)
    )
    center = normal(inputs, units, seed=seed + 2) * centered
    penalty = SquaredFrobenius(rho, center if centered else None)
    problem = WeightFit(divergence, Design(x, bias), v, penalty)
    solution = solve(problem)
    design = torch.cat([x, torch.ones(samples, int(bias), dtype=torch.float64)], 1)
    lower = (2 * rho) ** 0.5 * torch.eye(inputs + bias, dtype=torch.float64)[:inputs]
    right = torch.cat([(v - offset) / smooth**0.5, (2 * rho) ** 0.5 * center])
    expected = torch.linalg.lstsq(
        torch.cat([smooth**0.5 * design, lower]), right, driver="gelsd"
    ).solution
    least = problem.measure(problem.design.split(expected)).objective
    assert solution.objective <= least + 1e-9 * (1 + abs(least))


@given(
    samples=SIZES, inputs=SIZES, kind=KINDS, rho=SCALES, lam=SCALES, hard=st.booleans(), seed=SEEDS
)
@example(samples=2, inputs=1, kind="rank one", rho=1e-8, lam=1e8, hard=True, seed=0)
@example(samples=5, inputs=9, kind="plain", rho=1e-8, lam=1e8, hard=True, seed=154425668)
def test_generalized_linear_fits_reach_stationarity(samples, inputs, kind, rho, lam, hard, seed):
    x = matrix(kind, seed, samples, inputs)
    v = normal(samples, 3, seed=seed + 1).softmax(-1)
    v = torch.eye(3, dtype=torch.float64)[v.argmax(-1)] if hard else v
    for divergence in (CrossEntropy().divergence, tight(activations.Sigmoid())):
        solution = solve(WeightFit(divergence, Design(x), v, SquaredFrobenius(rho), lam))
        # Softmax all but interpolates; at u of 1e5, to which a rho below eps lam leads, float64
        # tells gradients of 1e-8 no more, and the solution says so.
        hidden = rho / lam < torch.finfo(torch.float64).eps
        assert solution.residual <= (1e-6 if hidden else 1e-8)
        assert hidden or solution.status is Status.SOLVED
        assert bool(solution.value.stacked().isfinite().all())


def weights_of_classes(samples: int, inputs: int, rho: float, seed: int = 0) -> WeightFit:
    labels = torch.eye(3, dtype=torch.float64)[torch.arange(samples) % 3]
    design = Design(normal(samples, inputs, seed=seed))
    return WeightFit(CrossEntropy().divergence, design, labels, SquaredFrobenius(rho))


def states_of_all_kinds() -> StateFit:
    """Return a fit whose samples are solved after a few steps, or after many, or by proximal ones.

    The pre-activations are of any size, and the layer above has kinks.
    """
    size = torch.logspace(-3, 3, 300, dtype=torch.float64).unsqueeze(1)
    target, above = normal(300, 6, seed=6).clamp(min=0), tight(activations.ReLU())
    link = Link(above, normal(12, 6, seed=4), normal(6, seed=5), target, 5.0)
    return StateFit(tight(activations.Tanh()), size * normal(300, 12, seed=7), (link,), 0.5)


def states_that_resist() -> StateFit:
    """Return a fit with quadratic links so ill-conditioned that Newton's steps finish it."""
    weight = normal(9, 6, seed=8) * torch.logspace(0, 2, 6, dtype=torch.float64)
    link = Link(RELU, weight, normal(6, seed=9), normal(30, 6, seed=10).clamp(min=0), 10.0)
    return StateFit(tight(activations.Sigmoid()), 3 * normal(30, 9, seed=11), (link,), 1.0)


TURNS: list[tuple[Any, Any]] = [
    (GeneralizedLinear(), weights_of_classes(500, 5, 0.1)),  # more than it is prepared by
    (GeneralizedLinear(), weights_of_classes(24, 20, 1e-7, seed=1)),  # all but interpolated
    *((solver, states_of_all_kinds())
      for solver in (NewtonStates(), NewtonStates(max_iterations=3), Proximal())),
    *((solver, states_that_resist()) for solver in (Dual(), Dual(max_iterations=5))),
]  # fmt: skip


@pytest.mark.parametrize(("solver", "problem"), TURNS)
def test_fits_that_take_every_turn_are_solved(solver: Any, problem: Any) -> None:
    assert solver.solve(problem).status is Status.SOLVED


def test_a_limit_of_steps_is_told() -> None:
    found = GeneralizedLinear(max_iterations=3).solve(weights_of_classes(50, 5, 0.1))
    assert (found.status, found.iterations) == (Status.ITERATION_LIMIT, 3)
    refuses(Exception, "max_iterations", found.require_solved)


@pytest.mark.parametrize("mean, seed", [(0, 0), (1, 0), (1e4, 0), *((1e6, n) for n in range(6))])
def test_ridge_weights_keep_their_digits_whatever_the_mean(mean, seed):
    """A bias of 1e6 is off by 1e-10, which the gradient in the weights feels, too."""
    rng = np.random.default_rng(seed)
    left, _ = np.linalg.qr(rng.normal(size=(500, 20)))
    right, _ = np.linalg.qr(rng.normal(size=(20, 20)))
    x = (left * np.logspace(0, -3, 20)) @ right * 500**0.5 + mean * (1 + np.arange(20) / 20)
    y = rng.normal(size=(500, 3))
    problem = WeightFit(SQUARED, Design(torch.tensor(x)), torch.tensor(y), SquaredFrobenius(1e-3))
    solution = solve(problem)
    expected = Ridge(alpha=2e-3, solver="svd").fit(x, y)
    assert solution.status is Status.SOLVED
    scale = np.abs(expected.coef_).max()
    np.testing.assert_allclose(solution.value.matrix, expected.coef_.T, atol=2e-10 * scale)
    found = torch.tensor(x) @ solution.value.matrix + solution.value.bias
    np.testing.assert_allclose(found, expected.predict(x), atol=1e-13 * mean * scale + 1e-9)


def test_a_bias_that_float32_cannot_hold_is_not_certified():
    """Weights of 26,000 at a mean of 1e4 leave b, of 1.9e8, no digit below 16."""
    first = [10000.0010, 10000.0088, 10000.0400, 9999.9355, 9999.9756, 10000.0078]
    second = [10000.0039, 10000.0312, 10000.1465, 9999.7656, 9999.9131, 10000.0283]
    x, y = torch.tensor([first, second]).T, torch.tensor([[-1.0, 3.5, -1.0, 44.6, 7.1, 46.2]]).T
    problem = WeightFit(joint(activations.ELU()), Design(x), y, L1(0.15), 130.0)
    exact = WeightFit(joint(activations.ELU()), Design(x.double()), y.double(), L1(0.15), 130.0)
    solution, best = solve(problem), solve(exact)
    assert best.status is Status.SOLVED
    lost = (solution.objective - best.objective) / abs(best.objective)
    assert solution.status is not Status.SOLVED or lost < 1e-4
    assert solution.residual >= 0.5 * lost


def test_weights_that_a_softmax_does_not_tell_apart_stay_small():
    """What both columns gain alike the loss does not see, and a far mean hides what L1 says."""
    x = torch.tensor([[10001.0, 9988.7], [9991.4, 10002.1]], dtype=torch.float64)
    y, offset = torch.eye(2).double(), torch.tensor([[0.5, 0.8], [-0.1, 1.2]]).double()
    divergence = tight(activations.Softmax())
    problem = WeightFit(divergence, Design(x, bias=False), y, L1(0.3), 400.0, offset)
    zero = problem.measure(problem.zeros())
    far = Weights(torch.tensor([[-7e4, -7e4], [7e4, 7e4]], dtype=torch.float64), None)
    assert solve(problem).objective < zero.objective / 100
    assert problem.measure(far).residual > 1e-8


FAR = [activations.ReLU(), activations.Clipped(), activations.Sigmoid(), activations.Softplus()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("above", [joint(activations.Identity()), tight(activations.Softmax())])
@pytest.mark.parametrize("activation", FAR, ids=repr)
def test_a_unit_driven_far_away_hides_nothing_of_the_others(activation, above, dtype):
    def fit(last: float) -> StateFit:
        u, weight = normal(6, 4), normal(4, 3, seed=1)
        target = torch.eye(3, dtype=torch.float64).repeat(2, 1)
        u[:, 3] = last
        link = Link(above, weight.to(dtype), torch.zeros(3, dtype=dtype), target.to(dtype), 0.5)
        return StateFit(tight(activation), u.to(dtype), (link,), 3.0)

    far, near = fit(-4e9), fit(-100.0)  # phi is the same at both
    expected = solve(near, "reference").value
    assert far.measure(expected + 0.01 * (expected > 0.1)).residual > 1e-4
    names = {name for name in solver_names() if solvers.get_solver(name).obstacle(far) is None}
    if above.activation == activations.Identity():  # interpreted, which takes seconds
        names -= {"fused-states"}
    for name in {*names, "auto"} - {"reference"}:
        solution = solve(far, name)
        assert solution.status is Status.SOLVED, name
        torch.testing.assert_close(solution.value, expected, atol=2e-4, rtol=2e-4, msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("above", [joint(activations.Identity()), tight(activations.Softmax())])
@pytest.mark.parametrize("activation", [activations.ReLU(), activations.LeakyReLU(0.5)], ids=repr)
def test_a_sample_of_large_numbers_hides_nothing_of_the_others(activation, above, dtype):
    u, weight = normal(40, 4).to(dtype), normal(4, 3, seed=1).to(dtype)
    target = torch.eye(3, dtype=dtype).repeat(14, 1)[:40]

    def fit(far: float, rows: slice = slice(None)) -> StateFit:
        large = u.clone()
        large[5] *= far
        link = Link(above, weight, torch.zeros(3, dtype=dtype), target[rows], 5.0)
        return StateFit(joint(activation), large[rows], (link,))

    far, others = fit(1e6 if dtype is torch.float32 else 1e9), slice(6, None)
    expected = solve(fit(1.0, others), "reference").value
    for name in {*solver_names(), "auto"} - {"reference"}:
        if name == "auto" or solvers.get_solver(name).obstacle(far) is None:
            solution = solve(far, name)
            assert solution.status is Status.SOLVED, name
            torch.testing.assert_close(
                solution.value[others], expected, atol=2e-4, rtol=2e-4, msg=name
            )
    off = solution.value.clone()
    off[others] += 0.01 * (off[others] > 0)
    assert far.measure(off).residual > 1e-3


@pytest.mark.parametrize("wide", [False, True])
def test_how_good_weights_are_is_told_in_any_unit_of_the_targets(wide: bool) -> None:
    """Of weights that leave inputs of small numbers aside, whose gradient is next to none."""
    x = normal(6 if wide else 40, 9, seed=1) * 10.0 ** torch.arange(-4, 5)
    targets = normal(len(x), 2, seed=2) / 2

    def fit(unit: float, seen: Tensor) -> WeightFit:
        return WeightFit(SQUARED, Design(seen), unit * targets, ColumnNorm(unit), lam=10.0)

    aside = solve(fit(1.0, x * (torch.arange(9) > 3))).value
    assert aside.bias is not None
    found = [
        fit(unit, x).measure(Weights(unit * aside.matrix, unit * aside.bias)).residual
        for unit in (1.0, 1e-3, 1e-9)
    ]
    assert found == pytest.approx(found[:1] * 3, rel=1e-3) and found[0] > 1e-7


@pytest.mark.parametrize("units", [1, 2])
@pytest.mark.parametrize("bound", [0.1, 1.0, 100.0])
def test_a_column_of_zeros_hides_no_optimum_below_a_spectral_norm(bound: float, units: int) -> None:
    x = normal(60, 3, seed=0)
    x[:, 0] = 0
    fit = WeightFit(SQUARED, Design(x), 100 * normal(60, units, seed=1), SpectralNorm(bound))
    assert solve(fit).status is Status.SOLVED


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_targets_that_carry_gradients_are_taken_as_they_are(dtype: torch.dtype) -> None:
    x, v = normal(2_000, 9, seed=1).to(dtype), normal(2_000, 2, seed=2).to(dtype)
    fits = (
        WeightFit(SQUARED, Design(x), y, SquaredFrobenius(1.0))
        for y in (v.clone(), v.requires_grad_())
    )
    assert torch.equal(*(solve(fit).value.matrix.detach() for fit in fits))


@pytest.mark.parametrize("seed", range(3))
def test_rough_sums_say_no_less_than_what_exact_ones_find(seed: int) -> None:
    """Of weights that are next to nothing, and stationary by sums of float32."""
    x, v = normal(20_000, 8, seed=seed).abs().float(), normal(20_000, 2, seed=seed + 1).float()
    fit = WeightFit(SQUARED, Design(x, bias=False), v, SquaredFrobenius(1e9))
    system = fit.rough.design.gram + 2e9 * torch.eye(8)
    value = Weights(torch.linalg.solve(system, fit.rough.cross), None)
    assert 1e-9 < fit.measure(value).residual <= fit.rough.measure(value).residual < 1e-4


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e9])
def test_large_inputs_hide_no_bias_of_a_block(scale: float) -> None:
    """A residual is relative to the largest terms, those of W, and once was to them alone."""
    design = Design(scale * normal(40, 1, seed=0))
    labels = (normal(40, 1, seed=1) > -1).double()
    divergence, penalty = BinaryCrossEntropy().divergence, SquaredFrobenius(1e-3)
    zeros = Weights(torch.zeros(1, 1).double(), torch.zeros(1).double())
    link = Link(divergence, Rows(design), torch.zeros(1).double(), labels)
    fit = BlockFit(PenalizedWeights(penalty, zeros), None, (link,))
    least = solve(WeightFit(divergence, design, labels, penalty)).objective
    found = solve(fit, solvers.Accelerated(max_iterations=300))
    assert found.objective >= least - 1e-9 * least
    assert found.objective <= (1 + 1e-6) * least or found.status is not Status.SOLVED


def test_a_bias_that_nothing_but_tiny_targets_holds_does_not_run_away() -> None:
    """Where phi is 0 for all samples the objective rises with -b, next to nothing for each."""
    for seed in (72, 103, 125):
        draw = torch.Generator().manual_seed(seed)
        x = torch.randn(30, 2, generator=draw, dtype=torch.float64)
        v = (x @ torch.randn(2, 3, generator=draw, dtype=torch.float64)).relu()
        tiny = 10.0 ** -float(torch.randint(4, 10, (1,), generator=draw))
        v[:, 2] = tiny * (torch.rand(30, generator=draw) < 0.2)
        fit = WeightFit(tight(activations.ReLU()), Design(x), v, SquaredFrobenius(0.3), 10.0)
        matrix = 0.5 * torch.randn(2, 3, generator=draw, dtype=torch.float64)
        begin = Weights(matrix, torch.randn(3, generator=draw, dtype=torch.float64))
        right = solve(fit, "reference").objective
        for tolerance in (1e-3, 1e-5, 1e-8):
            found = GeneralizedLinear(tolerance).solve(fit, begin)
            solved = found.objective == pytest.approx(right, rel=1e-2)
            assert solved or found.status is not Status.SOLVED
            assert found.objective <= fit.measure(begin).objective


@pytest.mark.parametrize("penalty", [Nonnegative(), Nonnegative(0.1), L1(0.1)], ids=repr)
def test_inputs_that_are_all_zero_ask_for_no_weights(penalty) -> None:
    design = Design(torch.zeros(6, 3, dtype=torch.float64), bias=False)
    found = solve(WeightFit(joint(activations.Identity()), design, normal(6, 2), penalty))
    assert found.status is Status.SOLVED and not found.value.matrix.any()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("far", [20.0, 1e4])
def test_far_targets_hide_nothing_of_what_float32_sums_leave(far: float, bias: bool) -> None:
    x = 20 + normal(4_000, 15)
    y = far + 0.05 * (x[:, :1] - 20 + normal(4_000, 1, seed=1)) if bias else x @ normal(15, 1)
    design = Design(x.float(), bias)
    fit = WeightFit(SQUARED, design, y.float(), SquaredFrobenius(1e-3))
    found = solve(fit, "ridge")
    whole = Ridge(2e-3, fit_intercept=bias).fit(design.inputs.double(), fit.targets.double())
    assert found.status is Status.SOLVED and fit.measure(found.value).residual < 1e-5
    assert found.value.matrix.flatten().numpy() == pytest.approx(whole.coef_.ravel(), rel=1e-4)
