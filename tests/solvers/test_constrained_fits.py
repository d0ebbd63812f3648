"""Fits under constraints on their scores, against CVXPY, closed forms and finite differences."""

from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch

from liftednet import problems
from liftednet.activations import Identity, ReLU, Sigmoid, SimplexProjection, Softmax
from liftednet.constraints import Bounds, Budget, Declared, GroupMeans, Linear, Order, Values
from liftednet.divergences import joint, tight
from liftednet.errors import DataError, DeclarationError, SolverError
from liftednet.losses import Huber, SimplexCrossEntropy, SquaredError
from liftednet.penalties import L1, Nonnegative, SquaredFrobenius
from liftednet.problems import ConstrainedFit, Design, OutputFit, StateFit, WeightFit, Weights
from liftednet.solvers import InteriorPoint, Status, choose, solve
from liftednet.solvers.interior_point import _Smooth, _without_room
from tests.draws import normal
from tests.models.networks import refuses

GENERATOR = torch.Generator().manual_seed(0)
M = 40
X = normal(M, 5, seed=GENERATOR) + 4  # far from 0: sums are shifted
Y = normal(M, 3, seed=GENERATOR)
U = normal(M, 3, seed=GENERATOR)
LABELS = torch.nn.functional.one_hot(torch.randint(0, 3, (M,), generator=GENERATOR), 3).double()
WEIGHTS = torch.rand(M, generator=GENERATOR, dtype=torch.float64)
WEIGHTS[0] = 0.0
GROUPS = (X[:, 0] > 4).long().numpy() + (X[:, 1] > 4.5).long().numpy()
PAIRS = np.array([(0, 1), (2, 3), (5, 4), (7, 9)])

SQUARED = WeightFit(tight(Identity()), Design(X), Y, SquaredFrobenius(0.1))
BINARY = WeightFit(tight(Sigmoid()), Design(X), LABELS[:, :1], SquaredFrobenius(0.1))
CLASSES = WeightFit(tight(Softmax()), Design(X, weights=WEIGHTS), LABELS, SquaredFrobenius(0.1),
                    2.0, U)  # fmt: skip


CASES: dict[str, Any] = {
    "equal means": (BINARY, GroupMeans(GROUPS)),
    "near means": (BINARY, GroupMeans(GROUPS, 0.05)),
    "order, bounds": (BINARY, Order(PAIRS, 0.1), Bounds(-1.0, 0.5)),
    "total": (SQUARED, Linear(np.ones(3), equal=2 * X[:, 2].numpy() - 1), Budget(2.4)),
    "order of outputs": (SQUARED, Linear([[1.0, 0], [-1, 1], [0, -1]], upper=0.0),
                         Values([3], [[0.0, 0.5, 0.75]])),
    "classes": (CLASSES, GroupMeans(GROUPS, 0.1), Bounds(upper=3.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_weight_fit_and_its_prices_are_those_of_the_reference(name: str) -> None:
    fit, *constraints = CASES[name]
    problem = ConstrainedFit(fit, tuple(constraints))
    fast, slow = solve(problem), solve(problem, "reference")
    assert fast.solver == "interior-point"
    assert fast.status is slow.status is Status.SOLVED
    assert fast.objective == pytest.approx(slow.objective, rel=1e-7, abs=1e-6)
    found, scores = (problem.scores(x.value).numpy() for x in (fast, slow))
    if fit is CLASSES:  # a bias for all classes alike changes nothing
        found, scores = (u - u.mean(1, keepdims=True) for u in (found, scores))
    np.testing.assert_allclose(found, scores, atol=2e-5)
    assert max(problem.violations(fast.value)) <= 1e-10
    assert problem.gap(fast.value, fast.duals) <= 1e-7
    assert max(float(price.abs().max()) for price in fast.duals) > 1e-3  # some limit is met
    pulled = [X.T @ problem.slopes(x.duals) for x in (fast, slow)]
    np.testing.assert_allclose(pulled[0], pulled[1], atol=1e-4)  # unique, prices need not be
    assert [x.shape for x in fast.duals] == [x.shape for x in slow.duals]


def test_a_price_is_the_rate_at_which_the_objective_falls() -> None:
    def least(*moved: float):
        limits = GroupMeans(GROUPS, 0.05 + moved[0]), Budget(-1.5 + moved[1])
        return solve(ConstrainedFit(BINARY, limits))

    h, at = 1e-4, least(0.0, 0.0)
    for price, step in zip(at.duals, ((h, 0.0), (0.0, h)), strict=True):
        rate = (least(*(-x for x in step)).objective - least(*step).objective) / (2 * h)
        assert float(price.abs().sum()) == pytest.approx(rate, rel=1e-4)
        assert rate > 0.1


def test_many_limits_are_taken_in_as_they_are_passed() -> None:
    x = normal(3_000, 2, seed=1)
    fit = WeightFit(tight(Identity()), Design(x), x @ torch.ones(2, 2, dtype=x.dtype),
                    SquaredFrobenius(1e-3))  # fmt: skip
    problem = ConstrainedFit(fit, (Bounds(-3.0, 3.0),))  # 6,000 limits
    solution, slow = solve(problem), solve(problem, "reference")
    assert solution.status is Status.SOLVED
    torch.testing.assert_close(solution.value.matrix, slow.value.matrix, atol=1e-5, rtol=0)


def test_what_the_layer_cannot_meet_is_said() -> None:
    for constraint, by in ((Linear(np.ones(3), equal=Y[:, 0].numpy()), r"Linear\(.*\) by"),
                           (Order([(i, i + 1) for i in range(20)], 1.0), "Order")):  # fmt: skip
        words = ["no weights of this layer meet all constraints", "to the last layer's inputs", by]
        refuses(SolverError, words, solve, ConstrainedFit(SQUARED, (constraint,)))


def test_a_limit_that_no_weight_moves_has_no_price() -> None:
    same = torch.cat([X[:1], X])  # rows 0 and 1 have one score
    fit = WeightFit(tight(Identity()), Design(same), torch.cat([Y[:1], Y]), SquaredFrobenius(0.1))
    solution = solve(ConstrainedFit(fit, (Order([(0, 1)]), Budget(-1.0))))
    assert solution.status is Status.SOLVED and not solution.duals[0].any()
    words = r"what gives way is Order\(1 pairs, margin=1\) by 1"
    refuses(SolverError, words, solve, ConstrainedFit(fit, (Order([(0, 1)], 1.0),)))


def test_equalities_that_float32_misses_are_told() -> None:
    sums = (X @ torch.ones(5, 1).double()).float().double()
    first = WeightFit(tight(Identity()), Design(X), Y[:, :1], SquaredFrobenius(0.1))
    with pytest.raises(SolverError, match="give X, y and the constraint in float64"):
        solve(ConstrainedFit(first, (Values(np.arange(M), sums),)))


def test_float32_keeps_its_own_precision() -> None:
    fit = WeightFit(tight(Sigmoid()), Design(X.float()), LABELS[:, :1].float(),
                    SquaredFrobenius(0.1))  # fmt: skip
    problem = ConstrainedFit(fit, (GroupMeans(GROUPS, 0.05),))
    solution = solve(problem)
    exact = solve(ConstrainedFit(BINARY, problem.constraints))
    assert solution.value.matrix.dtype is torch.float32
    assert solution.status is Status.SOLVED
    assert solution.objective == pytest.approx(exact.objective, rel=1e-6)
    assert problem.violations(solution.value)[0] <= 1e-5


LINK = problems.Link(tight(ReLU()), normal(3, 2, seed=GENERATOR),
            torch.zeros(2, dtype=torch.float64), U[:, :2].clamp(min=0))  # fmt: skip
STATES = {
    "outputs, squared, ReLU": OutputFit(SquaredError(), Y, tight(ReLU()), U, 0.7),
    "outputs, squared, sigmoid": OutputFit(SquaredError(), Y, tight(Sigmoid()), U, 0.7),
    "outputs, Huber": OutputFit(Huber(), Y, tight(Identity()), U, 0.7),
    "outputs, simplex": OutputFit(SimplexCrossEntropy(), LABELS, joint(SimplexProjection()), U),
    "states, ReLU": StateFit(tight(ReLU()), U, (LINK,), 0.5),
    "states, sigmoid": StateFit(tight(Sigmoid()), U, (LINK,), 0.5),
    "states, bounds": StateFit(tight(ReLU()), U, (LINK,), 0.5, (0.0, 0.8)),
}


@pytest.mark.parametrize("name", STATES)
def test_states_and_outputs_are_certified_with_their_prices(name: str) -> None:
    held = (GroupMeans(GROUPS, 0.02), Linear([1.0, 1.0, 0.0], upper=0.7), Order(PAIRS))
    problem = ConstrainedFit(STATES[name], held)
    found = solve(problem)
    assert found.solver == "reference"
    assert found.residual <= (3e-6 if "simplex" in name else 1e-9)  # exponentials are rougher
    assert max(problem.violations(found.value)) <= 1e-9
    assert max(float(price.abs().max()) for price in found.duals) > 1e-3


def test_any_cvxpy_constraint_is_held_by_the_reference() -> None:
    short = Declared(lambda u: cp.norm(u, 2, axis=1) <= 0.5)
    outputs = ConstrainedFit(OutputFit(SquaredError(), Y, tight(Identity()), Y), (short,))
    assert choose(outputs).name == "reference"
    solution = solve(outputs)
    lengths = Y.norm(dim=1, keepdim=True)
    torch.testing.assert_close(solution.value, Y * (0.5 / lengths).clamp(max=1), atol=1e-5, rtol=0)
    slack = 2 * (lengths[:, 0] - 0.5).clamp(min=0)  # what a longer sample gains by 2 |z - y|
    torch.testing.assert_close(solution.duals[0], slack, atol=1e-4, rtol=0)
    weights = ConstrainedFit(replace(SQUARED, penalty=Nonnegative(0.1)), (Budget(0.2),))
    found = solve(weights)
    assert found.solver == "reference"
    assert found.status is Status.SOLVED
    assert bool((found.value.matrix >= -1e-9).all())
    assert weights.violations(found.value)[0] <= 1e-8


def test_solvers_say_what_they_need() -> None:
    declared = ConstrainedFit(SQUARED, (Declared(lambda u: u >= 0),))
    rough = ConstrainedFit(replace(SQUARED, penalty=L1(1.0)), (Budget(1.0),))
    states = ConstrainedFit(STATES["states, ReLU"], (Budget(1.0),))
    assert "CVXPY alone knows one" in str(InteriorPoint().obstacle(declared))
    assert "SquaredFrobenius" in str(InteriorPoint().obstacle(rough))
    assert "weight fits" in str(InteriorPoint().obstacle(states))
    assert "under constraints alone" in str(InteriorPoint().obstacle(SQUARED))
    refuses(DeclarationError, "cannot serve this ConstrainedFit", solve, declared, "interior-point")


def test_what_does_not_fit_is_refused() -> None:
    kinds = "a WeightFit, a StateFit or an OutputFit"
    refuses(DeclarationError, kinds, ConstrainedFit, problems.StatesOverTime, (Budget(1.0),))
    refuses(DataError, "is of 2 samples", ConstrainedFit, SQUARED, (GroupMeans([0, 1]),))
    bad = Weights(torch.ones(2, 3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64))
    refuses(DataError, "the start", solve, ConstrainedFit(SQUARED, (Budget(1.0),)), start=bad)


@pytest.mark.parametrize("far", [10.0, 1e5])
def test_a_start_that_is_too_far_changes_nothing(far: float) -> None:
    x = normal(60, 3)
    fit = WeightFit(tight(Sigmoid()), Design(x), (x[:, :1] > 0).double(), SquaredFrobenius(0.1))
    held = ConstrainedFit(fit, (Budget(-0.5),))
    start = Weights(torch.full((3, 1), far).double(), torch.full((1,), -far).double())
    found, known = (InteriorPoint().solve(held, start=x) for x in (start, None))
    torch.testing.assert_close(found.value.matrix, known.value.matrix, rtol=1e-6, atol=1e-8)
    assert found.residual <= 1e-8


def test_limits_that_leave_no_room_are_told_from_rounding() -> None:
    """Few weights order all samples by making them equal."""
    pairs = [(i, i + 1) for i in range(M - 1)]
    said = _without_room(_Smooth(ConstrainedFit(SQUARED, (Order(pairs),))))
    assert said is not None and "leave no room in Order(39 pairs" in said
    assert _without_room(_Smooth(ConstrainedFit(SQUARED, (Order(PAIRS),)))) is None
