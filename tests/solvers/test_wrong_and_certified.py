"""What once was certified and wrong: recurrences that expand, inputs with a large mean."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from liftednet import activations
from liftednet.divergences import joint, tight
from liftednet.losses import CrossEntropy, SimplexCrossEntropy
from liftednet.penalties import L1, Nonnegative, SquaredFrobenius
from liftednet.problems import (
    Design,
    Link,
    OutputFit,
    StateFit,
    StatesOverTime,
    TimeLink,
    WeightFit,
    Weights,
)
from liftednet.problems.states_over_time import forward_states
from liftednet.solution import Status
from liftednet.solvers import GeneralizedLinear, get_solver, solve, solver_names


def expanding(activation, steps=20, factor=2.5):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    target = torch.eye(2, dtype=torch.float64)[(draw(steps, 1) > 0).long()]
    counted = torch.ones(steps, 1, dtype=torch.bool)
    link = TimeLink(CrossEntropy().divergence, draw(1, 2), draw(2), target, counted)
    recurrent = torch.full((1, 1), factor, dtype=torch.float64)
    lengths = torch.tensor([steps])
    return StatesOverTime(joint(activation), draw(steps, 1, 1), recurrent, (link,), lengths)


@pytest.mark.parametrize("activation", [activations.Identity(), activations.ReLU()], ids=repr)
def test_an_expanding_recurrence_is_solved_and_its_forward_pass_is_not_certified(activation):
    problem = expanding(activation)
    solution = solve(problem)
    assert solution.status is Status.SOLVED
    assert solution.objective <= problem.measure(torch.zeros_like(problem.drive)).objective
    assert problem.measure(forward_states(problem)).residual > 1e-4


def test_a_long_forward_pass_is_not_certified_by_rounding():
    problem = expanding(activations.Identity(), steps=40)
    wrong = solve(problem, start=forward_states(problem))
    right = solve(problem)
    assert right.status is Status.SOLVED
    assert wrong.status is not Status.SOLVED or wrong.objective < 1.001 * right.objective


def test_the_objective_of_a_forward_pass_does_not_cancel():
    problem = expanding(activations.Identity(), factor=3.0)
    alone = StatesOverTime(
        tight(activations.ReLU()), problem.drive.abs(), problem.recurrent, (), problem.lengths
    )
    assert alone.measure(forward_states(alone)).objective == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("mean", "seed"), [(0.0, 0), (1.0, 0), (1e4, 0), *((1e6, seed) for seed in range(6))]
)
def test_ridge_weights_keep_their_digits_whatever_the_mean(mean, seed):
    """A bias of 1e6 is off by 1e-10, which the gradient in the weights feels, too."""
    rng = np.random.default_rng(seed)
    left, _ = np.linalg.qr(rng.normal(size=(500, 20)))
    right, _ = np.linalg.qr(rng.normal(size=(20, 20)))
    x = (left * np.logspace(0, -3, 20)) @ right * 500**0.5 + mean * (1 + np.arange(20) / 20)
    y = rng.normal(size=(500, 3))
    problem = WeightFit(
        joint(activations.Identity()), Design(torch.tensor(x)), torch.tensor(y),
        SquaredFrobenius(1e-3),
    )  # fmt: skip
    solution = solve(problem)
    expected = Ridge(alpha=2e-3, solver="svd").fit(x, y)
    assert solution.status is Status.SOLVED
    scale = np.abs(expected.coef_).max()
    np.testing.assert_allclose(solution.value.matrix, expected.coef_.T, atol=2e-10 * scale)
    found = torch.tensor(x) @ solution.value.matrix + solution.value.bias
    np.testing.assert_allclose(found, expected.predict(x), atol=1e-13 * mean * scale + 1e-9)


@pytest.mark.parametrize("mean", [1e2, 1e3])
def test_float32_weights_are_certified_at_a_large_mean(mean):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 8, generator=generator) + mean
    y = torch.randn(300, 2, generator=generator)
    problem = WeightFit(joint(activations.Identity()), Design(x), y, SquaredFrobenius(0.1))
    assert solve(problem).status is Status.SOLVED


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


def test_weights_that_begin_at_rest_leave_it_once_the_bias_has_moved():
    x = torch.tensor([[-1.5], [0.0]], dtype=torch.float64)
    y = torch.tensor([[-1.0], [0.9]], dtype=torch.float64)
    problem = WeightFit(joint(activations.Arctan()), Design(x), y, Nonnegative(0.01), 22.0)
    solution, reference = solve(problem), solve(problem, "reference")
    assert solution.status is Status.SOLVED
    assert solution.objective == pytest.approx(reference.objective, rel=1e-6)


@pytest.mark.parametrize("lam", [1e-3, 1.0, 1e3])
def test_soft_labels_may_be_denormal(lam):
    y = torch.tensor([[1.0, 1e-45, 0.0], [0.5, 0.5, 1e-40]])
    u = torch.tensor([[1.0, -2.0, 0.5], [0.3, 1.0, -1.0]])
    problem = OutputFit(SimplexCrossEntropy(), y, joint(activations.SimplexProjection()), u, lam)
    assert solve(problem).status is Status.SOLVED


FAR = [
    activations.ReLU(),
    activations.Clipped(0.0, 1.0),
    activations.Sigmoid(),
    activations.Softplus(),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("above", [joint(activations.Identity()), tight(activations.Softmax())])
@pytest.mark.parametrize("activation", FAR, ids=repr)
def test_a_unit_driven_far_away_hides_nothing_of_the_others(activation, above, dtype):
    generator = torch.Generator().manual_seed(0)

    def fit(last: float) -> StateFit:
        generator.manual_seed(0)
        u = torch.randn(12, 4, generator=generator, dtype=torch.float64)
        weight = torch.randn(4, 3, generator=generator, dtype=torch.float64)
        target = torch.eye(3, dtype=torch.float64)[torch.arange(12) % 3]
        u[:, 3] = last
        link = Link(above, weight.to(dtype), torch.zeros(3, dtype=dtype), target.to(dtype), 0.5)
        return StateFit(tight(activation), u.to(dtype), (link,), 3.0)

    far, near = fit(-4e9), fit(-100.0)  # phi is the same at both
    expected = solve(near, "reference").value
    assert far.measure(expected + 0.01 * (expected > 0.1)).residual > 1e-4
    names = [name for name in solver_names() if get_solver(name).obstacle(far) is None]
    if above.activation == activations.Identity():  # interpreted, which takes seconds
        names = [name for name in names if not name.startswith("fused")]
    for name in {*names, "auto"} - {"reference"}:
        solution = solve(far, name)
        assert solution.status is Status.SOLVED, name
        torch.testing.assert_close(solution.value, expected, atol=2e-4, rtol=2e-4, msg=name)


def test_a_unit_at_its_minimizer_stays_there():
    """Squares of gradients of 1e-22 vanish in float32, and steps are ratios of these."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(12, 5, generator=generator)
    y = torch.rand(12, 4, generator=generator) * torch.tensor([1.0, 1.0, 1.0, 0.0])
    small = 1e-20 * torch.randn(5, 1, generator=generator)
    start = Weights(torch.cat([torch.zeros(5, 3), small], 1), torch.tensor([0.0, 0.0, 0.0, -0.6]))
    problem = WeightFit(tight(activations.Clipped(0.0, 1.0)), Design(x), y, SquaredFrobenius(0.1))
    solution = solve(problem, GeneralizedLinear(1e-7), start=start)
    assert solution.value.bias is not None
    assert float(solution.value.bias[3]) == pytest.approx(-0.6)
