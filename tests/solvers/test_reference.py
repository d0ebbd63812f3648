"""The reference solver, and what every solver refuses before any work."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch

from liftednet import Activation, activations
from liftednet.divergences import joint, tight
from liftednet.errors import DataError, DeclarationError, SolverError
from liftednet.losses import CrossEntropy, Poisson, SimplexCrossEntropy, SquaredError
from liftednet.penalties import Penalty, SquaredFrobenius
from liftednet.problems import Design, Link, OutputFit, StateFit, WeightFit
from liftednet.solution import Status
from liftednet.solvers import Reference, get_solver, solve, solver_names
from liftednet.solvers.dual import Dual
from liftednet.validation import require_device, require_finite, require_seed
from tests.draws import normal
from tests.models.networks import refuses
from tests.solvers.registry import SAMPLES, state_fit, weight_fit


@pytest.mark.parametrize("backend", ["OSQP", "CLARABEL", "SCS"])
def test_the_backend_can_be_chosen(backend: str) -> None:
    problem = state_fit(joint(activations.ReLU()), (joint(activations.ReLU()),), torch.float64)
    chosen = solve(problem, Reference(backend))
    assert chosen.objective == pytest.approx(solve(problem).objective, rel=1e-6)


def test_a_failure_is_an_error_that_says_why() -> None:
    problem = state_fit(joint(activations.ReLU()), (joint(activations.ReLU()),), torch.float64)
    refuses(SolverError, "OSQP reports", solve, problem, Reference("OSQP", {"max_iter": 1}))


def test_a_float32_simplex_target_is_not_unbounded() -> None:
    single: WeightFit = weight_fit(tight(activations.SimplexProjection()), torch.float32)
    with warnings.catch_warnings(action="error"):
        exact = solve(single, "reference")
    assert exact.residual < 1e-6


class Stated(Penalty):
    """|W|_1 / 2 without a prox, which only the reference solver serves."""

    proximable = False

    def expression(self, weight: Any) -> Any:
        return cp.sum(cp.abs(weight)) / 2

    def value(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.abs().sum() / 2

    def prox(self, weight: torch.Tensor, t: float) -> torch.Tensor:
        raise NotImplementedError


def test_a_penalty_without_a_prox_is_certified_by_stationarity() -> None:
    fit = replace(weight_fit(joint(activations.Identity()), torch.float64), penalty=Stated())
    exact = solve(fit, "reference")
    assert exact.residual < 1e-6
    with torch.no_grad():  # soft thresholding by many plain steps, apart from CVXPY
        w, step = torch.zeros_like(exact.value.stacked()), 1 / (fit.lam * fit.design.squared_norm)
        for _ in range(4000):
            w = w - step * fit.lam * (fit.design.gram @ w - fit.design.cross(fit.targets))
            w[:-1] -= w[:-1].clamp(-step / 2, step / 2)
    torch.testing.assert_close(exact.value.stacked(), w, rtol=1e-6, atol=1e-7)
    loose = {"tol_gap_abs": 0.1, "tol_gap_rel": 0.1, "tol_feas": 0.1}
    off = solve(fit, Reference("CLARABEL", loose))
    assert off.objective > exact.objective * (1 + 1e-4)
    assert off.status is not Status.SOLVED


def test_states_that_cvxpy_leaves_off_their_domain_by_rounding_are_judged() -> None:
    """Where the potential of the sigmoid is infinite."""
    draw = np.random.default_rng(17)
    n, h = int(draw.integers(1, 8)), int(draw.integers(1, 5))
    w, c = torch.tensor(2 * draw.normal(size=(h, 1))), torch.tensor(draw.normal(size=1))
    y = torch.tensor(draw.poisson(3, size=(n, 1))).double()
    u = torch.tensor(2 * draw.normal(size=(n, h)))
    link = Link(Poisson().divergence, w, c, y)
    fit = StateFit(tight(activations.Sigmoid()), u, (link,), float(draw.choice([0.1, 1.0, 10.0])))
    assert solve(fit, "reference").status is Status.SOLVED


def test_what_an_ill_conditioned_residual_may_hide_is_not_solved() -> None:
    left, right, z = normal(3, 30, 30, seed=1)
    scales = torch.logspace(0, -3, 30, dtype=torch.float64)
    weight = torch.linalg.qr(left)[0] * scales @ torch.linalg.qr(right)[0]
    target = z[:1].relu() @ weight
    link = Link(joint(activations.Identity()), weight, torch.zeros(30).double(), target)
    fit = StateFit(joint(activations.ReLU()), torch.zeros(1, 30).double(), (link,), 3e-6)
    rough = solve(fit, Reference("OSQP", {"eps_abs": 1e-5, "eps_rel": 1e-5}))
    loss = solve(fit).objective + float(target.square().sum()) / 2
    assert rough.objective - solve(fit).objective > 0.1 * loss
    assert rough.residual < 1e-4
    assert rough.status is not Status.SOLVED
    assert solve(fit, "reference").status is Status.SOLVED


def test_a_start_at_rest_is_kept_and_a_better_one_than_cvxpy_s_too() -> None:
    fit = state_fit(joint(activations.ReLU()), (joint(activations.ReLU()),), torch.float64)
    exact = solve(fit, Dual(tolerance=1e-12))
    assert exact.residual <= 1e-10
    at_rest = solve(fit, "reference", start=exact.value)
    assert at_rest.iterations == 0
    assert torch.equal(at_rest.value, exact.value)
    near = exact.value * (1 + 1e-9)  # not at rest, but better than a few steps from nowhere
    loose = Reference("SCS", {"eps_abs": 1e-2, "eps_rel": 1e-2})
    assert solve(fit, loose).residual > fit.measure(near).residual > 1e-10
    assert torch.equal(solve(fit, loose, start=near).value, near)
    far = solve(fit, "reference", start=exact.value + 1.0)
    assert far.residual < 1e-6
    assert far.objective == pytest.approx(exact.objective, rel=1e-9)
    outside = solve(fit, "reference", start=exact.value - 9.0)
    assert outside.objective == pytest.approx(exact.objective, rel=1e-9)


class Odd(Activation):
    """A map beside what CVXPY is told of it."""

    lipschitz = 1.0

    def __init__(self, potential: Any, domain: Any = None) -> None:
        self._potential, self._domain = potential, domain

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        return u

    def potential(self, v: Any) -> Any:
        return self._potential(v)

    def domain(self, v: Any) -> Any:
        return [] if self._domain is None else self._domain(v)


POTENTIALS: Any = (lambda v: -cp.sum_squares(v), cp.square, lambda v: v.nothing, lambda v: "x")
ODD = [*map(Odd, POTENTIALS), Odd(cp.sum_squares, lambda v: [cp.square(v) >= 1])]  # not convex


def test_an_empty_domain_has_no_nearest_point() -> None:
    empty = Odd(cp.sum_squares, lambda v: [v >= 1, v <= 0])
    empty.per_unit = False
    refuses(SolverError, "no point of a domain", empty.project, torch.zeros(3, 2).double())


RELU, IDENTITY = joint(activations.ReLU()), joint(activations.Identity())
PENALTY = SquaredFrobenius(0.1)


LINK = {"weight": (3, 2), "offset": (2,), "target": (5, 2)}


def ones(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype)


def a_link(lam: float = 1.0, divergence: Any = IDENTITY, **shapes: tuple[int, ...]) -> Link:
    parts = {name: ones(*shape) for name, shape in {**LINK, **shapes}.items()}
    return Link(divergence, **parts, lam=lam)


def weights(design, rows, penalty=PENALTY, lam=1.0, divergence=RELU) -> WeightFit:
    return WeightFit(divergence, design, rows, penalty, lam)


def state(*links: Any, units: int = 3, lam: Any = 1.0) -> StateFit:
    return StateFit(RELU, ones(5, units), links, lam)


X, V, FORGOTTEN = ones(5, 4), ones(5, 3), activations.ReLU()
SIMPLEX = joint(activations.SimplexProjection())
FIT = state_fit(RELU, (IDENTITY,), torch.float64)
BELOW = V - 1.5 * torch.eye(5, 3, dtype=torch.float64).flip(0)  # the first negative one in row 2
ANY: Any = None  # what is no value of the type that is asked for
BAD: list[tuple[Callable[[], Any], str]] = [
    *((lambda odd=odd: solve(StateFit(tight(odd), V), "reference"), "this StateFit cannot be")
      for odd in ODD),
    (lambda: weights(Design(X), ones(6, 3)), r"\(6, 3\)"),
    (lambda: weights(Design(X), ones(5, 3, dtype=torch.float32)), "one type and device"),
    (lambda: weights(Design(X), V, lam=0.0), "lam.*0.0"),
    (lambda: weights(Design(X), V, penalty=0.1), "penalty must be a Penalty"),
    (lambda: weights(X, V), "design must be a Design"),
    (lambda: Design(ones(0, 4)), r"empty.*\(0, 4\)"),
    (lambda: Design(ones(4)), r"two dimensions.*\(4,\)"),
    (lambda: Design(ones(5, 4, dtype=torch.float16)), r"float32 or.*float16"),
    (lambda: Design([[1.0]]), r"torch tensor.*list"),  # type: ignore[arg-type]
    (lambda: Design(X.to_sparse()), r"dense.*to_dense"),
    (lambda: state(lam=float("nan")), "lam.*nan"),
    (lambda: state(lam=np.bool_(True)), "must be a real number"),
    (lambda: state(a_link(), units=4), r"\(4, 2\).*\(3, 2\)"),
    (lambda: state(a_link(offset=(3,))), r"\(2,\).*\(3,\)"),
    (lambda: state(a_link(offset=(4, 2))), r"\(5, 2\).*\(4, 2\)"),
    (lambda: state(a_link(target=(5, 4))), r"\(5, 2\).*\(5, 4\)"),
    (lambda: state(a_link(-2.0)), "link 0.*-2.0"),
    (lambda: state(V), "Link"),
    (lambda: StateFit(RELU, V, a_link()), r"links=\(link,\)"),  # type: ignore[arg-type]
    (lambda: StateFit(RELU, V, (), 1.0, (1.0, 0.5)), "bound"),
    (lambda: StateFit(joint(activations.Sigmoid()), V, (), 1.0, (2.0, 3.0)), "bound"),
    (lambda: solve(OutputFit(SimplexCrossEntropy(), -V, SIMPLEX, V), "reference"), "not negative"),
    (lambda: Activation.from_potential(torch.square, 2, 1), "lower < upper"),
    (lambda: OutputFit(SquaredError(), V, RELU, ones(5, 2)), r"\(5, 2\)"),
    (lambda: OutputFit(CrossEntropy(), V, RELU, V), "SquaredError"),  # type: ignore[arg-type]
    (lambda: StateFit(FORGOTTEN, V), r"tight\(ReLU\(\)\) or joint"),  # type: ignore[arg-type]
    (lambda: state(a_link(divergence=FORGOTTEN)), r"tight\(ReLU\(\)\) or joint"),
    (lambda: activations.Clipped(ANY, 1.0), "needs.*got"),
    (lambda: activations.MaxPooling(ANY), "needs.*got"),
    (lambda: solve(ANY), "WeightFit"),
    (lambda: solve(state(), solver=ANY), "'auto'"),
    (lambda: solve(state(), "simplex"), "ridge.*reference"),
    (lambda: solve(FIT, start=torch.full((SAMPLES, 3), torch.inf).double()), "start"),
    (lambda: solve(FIT, start=torch.zeros(SAMPLES, 2).double()), r"start.*\(5, 3\).*\(5, 2\)"),
    (lambda: solve(weights(Design(X), V), start=torch.zeros(SAMPLES, 3).double()), "start"),
    (
        lambda: solve(weights(Design(X), BELOW, divergence=tight(FORGOTTEN))),
        r"domain of ReLU.*\(2, 2\).*-0.5",
    ),
    (lambda: solve(FIT, Reference("NOPE")), r"'NOPE' here; there are .*OSQP"),
    (lambda: solve(FIT, Reference("CLARABEL", {"nope": 1})), "CLARABEL does not take"),
    (lambda: solve(FIT, Reference("SCS", {"nope": 1})), "SCS does not take"),
    (lambda: require_device("meta"), "no numbers"),
    (lambda: require_seed(True), "seed must be an integer"),
]  # fmt: skip


@pytest.mark.parametrize(("build", "words"), BAD, ids=[words for _, words in BAD])
def test_what_is_no_problem_is_refused(build: Callable[[], Any], words: str) -> None:
    refuses((DataError, DeclarationError), words, build)


def test_numbers_of_numpy_become_numbers_of_python() -> None:
    half: Any = np.float32(0.5)
    for found in (state(lam=half).lam, SquaredFrobenius(half).rho):
        assert type(found) is float and found == 0.5
    assert type(require_seed(np.int64(1))) is int  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused_with_their_place(bad: float) -> None:
    x = ones(5, 4)
    x[3, 1] = bad
    problem = WeightFit(RELU, Design(x), ones(5, 3), PENALTY)
    require_finite("X", torch.full((2, 3), torch.finfo(torch.float32).max))  # their sum is not
    refuses(DataError, r"inputs X.*\(3, 1\)", solve, problem)
    refuses(DataError, r"link 0", solve, state(replace(a_link(), weight=x[2:5, :2])))


def test_every_solver_names_what_keeps_it_from_a_problem() -> None:
    problem = weight_fit(tight(activations.Sign()), torch.float64)
    for name in set(solver_names()) - {"reference"}:
        assert get_solver(name).obstacle(problem) is not None
        refuses(DeclarationError, name, solve, problem, name)
