"""Hard cases, drawn by hypothesis: degenerate sizes and ranks, weights of any scale, bad starts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.optimize import brentq, nnls
from torch import Tensor

from liftednet import activations
from liftednet.divergences import joint, tight
from liftednet.losses import CrossEntropy, SimplexCrossEntropy
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import Design, Link, OutputFit, StateFit, WeightFit
from liftednet.solution import Status
from liftednet.solvers import Dual, GeneralizedLinear, NewtonStates, Proximal, solve

RELU, SQUARED = joint(activations.ReLU()), joint(activations.Identity())
SIZES = st.sampled_from([1, 2, 5, 9])
SCALES = st.sampled_from([1e-8, 1e-4, 1.0, 1e4, 1e8])
KINDS = st.sampled_from(["zero", "rank one", "tiny", "plain", "equal rows"])
SEEDS = st.integers(0, 2**31 - 1)
STATE_SOLVERS = ["compiled-newton", "compiled-descent", "dual", "proximal"]


def draw(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def matrix(kind: str, seed: int, rows: int, columns: int) -> Tensor:
    plain = draw(seed, rows, columns)
    return {
        "zero": torch.zeros_like(plain),
        "rank one": plain[:, :1] * plain[:1],
        "tiny": 1e-9 * plain,
        "plain": plain,
        "equal rows": plain[:1].expand(rows, columns).clone(),
    }[kind]


def nonnegative_least_squares(
    weights: Tensor, ratio: float, samples: int, seed: int
) -> tuple[StateFit, Tensor]:
    """Return a fit with lam_1 / lam = ratio, and its solution by scipy, sample by sample."""
    units, above = weights.shape
    u, v = 2 * draw(seed + 1, samples, units), draw(seed + 2, samples, above)
    lam, lam_above = (1.0, ratio) if ratio <= 1 else (1 / ratio, 1.0)
    link = Link(SQUARED, weights, torch.zeros(above, dtype=torch.float64), v, lam_above)
    problem = StateFit(RELU, u, (link,), lam)
    stacked = np.vstack([np.eye(units), ratio**0.5 * weights.numpy().T])
    rows = [
        nnls(stacked, np.concatenate([a, ratio**0.5 * b]))[0]
        for a, b in zip(u.numpy(), v.numpy(), strict=True)
    ]
    return problem, torch.from_numpy(np.array(rows))


@pytest.mark.parametrize("solver", STATE_SOLVERS)
@given(samples=SIZES, units=SIZES, above=SIZES, kind=KINDS, seed=SEEDS)
def test_states_are_scipys_nnls(
    solver: str, samples: int, units: int, above: int, kind: str, seed: int
) -> None:
    problem, expected = nonnegative_least_squares(
        matrix(kind, seed, units, above), 1.0, samples, seed
    )
    solution = solve(problem, solver)
    assert solution.status is Status.SOLVED
    assert torch.allclose(solution.value, expected, atol=1e-6)


@pytest.mark.parametrize("solver", ["compiled-newton", "auto", "dual"])
@given(units=SIZES, above=SIZES, ratio=SCALES, seed=SEEDS)
def test_states_at_any_weight(solver: str, units: int, above: int, ratio: float, seed: int) -> None:
    weights = draw(seed, units, above)
    problem, expected = nonnegative_least_squares(weights, ratio, 3, seed)
    solution = solve(problem, solver)
    least = problem.measure(expected).objective
    assert solution.residual <= 1e-6
    assert solution.objective <= least + 1e-6 * (1 + abs(least))


@pytest.mark.parametrize("activation", [activations.ReLU(), activations.Tanh()], ids=repr)
@given(
    units=SIZES,
    above=SIZES,
    kind=KINDS,
    ratio=st.sampled_from([1e-8, 1e-4, 1.0, 1e2]),
    hard=st.booleans(),
    seed=SEEDS,
)
def test_states_below_a_cross_entropy_reach_stationarity(
    activation: Any, units: int, above: int, kind: str, ratio: float, hard: bool, seed: int
) -> None:
    u, v = 2 * draw(seed + 1, 5, units), (3 * draw(seed + 2, 5, above)).softmax(-1)
    v = torch.eye(above, dtype=torch.float64)[v.argmax(-1)] if hard else v
    weight, offset = matrix(kind, seed, units, above), draw(seed + 3, above)
    link = Link(CrossEntropy().divergence, weight, offset, v, ratio)
    solution = solve(StateFit(tight(activation), u, (link,)), "newton")
    assert solution.status is Status.SOLVED
    assert solution.residual <= 1e-8


@given(
    samples=SIZES,
    inputs=SIZES,
    units=SIZES,
    kind=KINDS,
    rho=SCALES,
    bias=st.booleans(),
    centered=st.booleans(),
    sigmoid=st.booleans(),
    seed=SEEDS,
)
def test_ridge_is_least_squares_on_the_stacked_system(
    samples: int,
    inputs: int,
    units: int,
    kind: str,
    rho: float,
    bias: bool,
    centered: bool,
    sigmoid: bool,
    seed: int,
) -> None:
    """With lam L |X W + b - (v - c) / L|^2 / 2 + rho |W - W_0|^2 as it is derived."""
    x, v = matrix(kind, seed, samples, inputs), draw(seed + 1, samples, units).sigmoid()
    divergence, smooth, offset = (
        (joint(activations.Sigmoid()), 0.25, 0.5) if sigmoid else (SQUARED, 1.0, 0.0)
    )
    center = draw(seed + 2, inputs, units) * centered
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
def test_generalized_linear_fits_reach_stationarity(
    samples: int, inputs: int, kind: str, rho: float, lam: float, hard: bool, seed: int
) -> None:
    x = matrix(kind, seed, samples, inputs)
    v = draw(seed + 1, samples, 3).softmax(-1)
    v = torch.eye(3, dtype=torch.float64)[v.argmax(-1)] if hard else v
    for divergence in (CrossEntropy().divergence, tight(activations.Sigmoid())):
        problem = WeightFit(divergence, Design(x), v, SquaredFrobenius(rho), lam)
        solution = solve(problem)
        assert solution.status is Status.SOLVED  # also where softmax all but interpolates
        assert solution.residual <= 1e-8
        assert bool(solution.value.stacked().isfinite().all())


@pytest.mark.parametrize("solver", ["compiled-simplex", "simplex-dual"])
@given(
    outputs=st.sampled_from([1, 2, 10]),
    lam=SCALES,
    size=st.sampled_from([0.0, 1.0, 1e6]),
    hard=st.booleans(),
    seed=SEEDS,
)
def test_simplex_states_are_the_root_of_the_dual(
    solver: str, outputs: int, lam: float, size: float, hard: bool, seed: int
) -> None:
    u, soft = size * draw(seed, 4, outputs), (3 * draw(seed + 1, 4, outputs)).softmax(-1)
    y = torch.eye(outputs, dtype=torch.float64)[soft.argmax(-1)] if hard else soft
    problem = OutputFit(SimplexCrossEntropy(), y, joint(activations.SimplexProjection()), u, lam)
    z = solve(problem, solver).value
    for row, label, pre in zip(z.numpy(), y.numpy(), u.numpy(), strict=True):
        a, low = label / lam, -1.0 - (label / lam).max() * outputs - np.abs(pre).max()

        def states(nu: float, a: Any = a, pre: Any = pre) -> Any:
            s = pre - pre.max() + nu
            return np.where(s > 0, s + np.sqrt(s * s + 4 * a), 0) / 2 + np.where(
                s > 0, 0, 2 * a / np.maximum(np.sqrt(s * s + 4 * a) - s, 1e-300)
            )

        root = brentq(lambda nu: states(nu).sum() - 1, low * 4, 2.0, xtol=1e-13, rtol=1e-15)
        expected = states(root)
        assert np.allclose(row, expected / expected.sum(), atol=1e-6)


@pytest.mark.parametrize("solver", STATE_SOLVERS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@given(seed=SEEDS, size=st.sampled_from([0.0, 1.0, 1e6]))
def test_a_start_on_the_wrong_face_is_forgotten(
    solver: str, dtype: torch.dtype, seed: int, size: float
) -> None:
    problem, expected = nonnegative_least_squares(draw(seed, 6, 3), 1.0, 5, seed)
    link = problem.links[0]
    cast = Link(
        SQUARED, link.weight.to(dtype), link.offset.to(dtype), link.target.to(dtype), link.lam
    )
    cast_problem = StateFit(RELU, problem.pre_activation.to(dtype), (cast,), problem.lam)
    wrong = torch.where(expected > 0, 0.0, size).to(dtype)
    solution = solve(cast_problem, solver, start=wrong)
    assert solution.status is Status.SOLVED
    tolerance = 1e-6 if dtype is torch.float64 else 1e-3
    assert torch.allclose(solution.value.double(), expected, atol=tolerance)


def test_a_design_of_condition_number_4e6_keeps_its_digits() -> None:
    x = draw(3, 400, 12) @ torch.diag(torch.logspace(0, -6.6, 12, dtype=torch.float64))
    wanted = draw(4, 12, 2)
    problem = WeightFit(SQUARED, Design(x, bias=False), x @ wanted, SquaredFrobenius(1e-14))
    found = solve(problem).value.matrix
    assert torch.allclose(x @ found, x @ wanted, atol=1e-8)


def weights_that_resist() -> WeightFit:
    """Return a fit that all but interpolates its labels, which Newton's steps finish."""
    labels = torch.eye(3, dtype=torch.float64)[torch.arange(24) % 3]
    return WeightFit(
        CrossEntropy().divergence, Design(draw(1, 24, 20)), labels, SquaredFrobenius(1e-7)
    )


def weights_to_sample(samples: int = 500) -> WeightFit:
    """Return a fit with more samples than the preconditioner is made of."""
    labels = torch.eye(3, dtype=torch.float64)[torch.arange(samples) % 3]
    return WeightFit(
        CrossEntropy().divergence, Design(draw(0, samples, 5)), labels, SquaredFrobenius(0.1)
    )


def states_of_all_kinds() -> StateFit:
    """Return a fit whose samples are solved after a few steps, or after many, or by proximal ones.

    The pre-activations are of any size, and the layer above has kinks.
    """
    size = torch.logspace(-3, 3, 300, dtype=torch.float64).unsqueeze(1)
    target, above = draw(6, 300, 6).clamp(min=0), tight(activations.ReLU())
    link = Link(above, draw(4, 12, 6), draw(5, 6), target, 5.0)
    return StateFit(tight(activations.Tanh()), size * draw(7, 300, 12), (link,), 0.5)


def states_that_resist() -> StateFit:
    """Return a fit with quadratic links so ill-conditioned that Newton's steps finish it."""
    weight = draw(8, 9, 6) * torch.logspace(0, 2, 6, dtype=torch.float64)
    link = Link(RELU, weight, draw(9, 6), draw(10, 30, 6).clamp(min=0), 10.0)
    return StateFit(tight(activations.Sigmoid()), 3 * draw(11, 30, 9), (link,), 1.0)


@pytest.mark.parametrize(
    ("solver", "build"),
    [
        (GeneralizedLinear(), weights_to_sample),
        (GeneralizedLinear(), weights_that_resist),
        (NewtonStates(), states_of_all_kinds),
        (NewtonStates(max_iterations=3), states_of_all_kinds),
        (Proximal(), states_of_all_kinds),
        (Dual(), states_that_resist),
        (Dual(max_iterations=5), states_that_resist),
    ],
)
def test_fits_that_take_every_turn_are_solved(solver: Any, build: Any) -> None:
    assert solver.solve(build()).status is Status.SOLVED


def test_a_limit_of_steps_is_told() -> None:
    found = GeneralizedLinear(max_iterations=3).solve(weights_to_sample(50))
    assert (found.status, found.iterations) == (Status.ITERATION_LIMIT, 3)
    with pytest.raises(Exception, match="max_iterations"):
        found.require_solved()


@pytest.mark.parametrize("solver", [Dual(), Proximal()])
def test_what_links_share_serves_until_they_change(solver: Any) -> None:
    problem = states_that_resist()
    shared = solver.prepare(problem)
    assert solver.prepare(problem, shared) is shared
    problem.links[0].weight.mul_(0.9)
    assert solver.prepare(problem, shared) is not shared
