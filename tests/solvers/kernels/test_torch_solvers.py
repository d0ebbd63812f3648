"""The solvers in torch, as on a GPU: no loop reads a number, and the answers are a CPU's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from liftednet import activations
from liftednet.divergences import joint, tight
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import Design, Link, StateFit, StatesOverTime, TimeLink, WeightFit
from liftednet.solution import Solution, Status
from liftednet.solvers import (
    Dual,
    GeneralizedLinear,
    NewtonOverTime,
    NewtonStates,
    Proximal,
    Solver,
    device_loops,
    named,
)
from tests.solvers.kernels.readings import Readings
from tests.solvers.registry import RUNS, Case

RELU, TANH, SOFTMAX = activations.ReLU(), activations.Tanh(), activations.Softmax()
SIGMOID = activations.Sigmoid()
LATE = {"dual", "generalized-linear", "newton", "newton-over-time", "proximal", "simplex-dual"}
IN_TORCH = [run for run in RUNS if run[1] in LATE]


@pytest.fixture(autouse=True)
def tabulated() -> None:
    """Make the tables of the maps used here, which is done on the CPU, once for all."""
    for activation in (SIGMOID, TANH._sigmoid):
        assert activation.scalar_map.lipschitz


def normal(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch, solver: Any, problem: Any) -> Solution[Any]:
    """Return a solution as a GPU would find it, and see to it that no loop reads a number."""
    with monkeypatch.context() as patched:
        patched.setattr(device_loops, "stays_on_device", lambda value: isinstance(value, Tensor))
        with Readings() as readings:
            solution: Solution[Any] = solver.solve(problem)
    assert len(readings.names) <= 1  # the goal of the loop
    return solution


def require_agreement(found: Solution[Any], expected: Solution[Any], dtype: torch.dtype) -> None:
    assert found.status is expected.status is Status.SOLVED
    close = 1e-6 if dtype is torch.float64 else 1e-4
    assert found.objective == pytest.approx(expected.objective, rel=close, abs=close)


@pytest.mark.parametrize(("case", "solver", "dtype"), IN_TORCH, ids=str)
def test_every_solver_in_torch(
    case: Case, solver: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = named(solver).solve(case.build(dtype))
    require_agreement(as_on_a_gpu(monkeypatch, named(solver), case.build(dtype)), expected, dtype)


def softmax_labels(samples: int, classes: int) -> Tensor:
    return torch.eye(classes, dtype=torch.float64)[torch.arange(samples) % classes]


def weights_to_sample(samples: int) -> WeightFit:
    """Return a fit with more samples than the preconditioner is made of."""
    x, y = normal(0, samples, 5), softmax_labels(samples, 3)
    return WeightFit(tight(SOFTMAX), Design(x), y, SquaredFrobenius(0.1))


def weights_that_resist() -> WeightFit:
    """Return a fit that all but interpolates its labels, which Newton's steps finish."""
    x = normal(1, 24, 20)
    return WeightFit(tight(SOFTMAX), Design(x), softmax_labels(24, 3), SquaredFrobenius(1e-7))


def states_of_all_kinds() -> StateFit:
    """Return a fit whose samples are solved after a few steps, or after many, or by proximal ones.

    The pre-activations are of any size, and the layer above has kinks.
    """
    size = torch.logspace(-3, 3, 300, dtype=torch.float64).unsqueeze(1)
    link = Link(tight(RELU), normal(4, 12, 6), normal(5, 6), normal(6, 300, 6).clamp(min=0), 5.0)
    return StateFit(tight(TANH), size * normal(7, 300, 12), (link,), 0.5)


def states_that_resist() -> StateFit:
    """Return a fit with quadratic links so ill-conditioned that Newton's steps finish it."""
    weight = normal(8, 9, 6) * torch.logspace(0, 2, 6, dtype=torch.float64)
    link = Link(joint(RELU), weight, normal(9, 6), normal(10, 30, 6).clamp(min=0), 10.0)
    return StateFit(tight(SIGMOID), 3 * normal(11, 30, 9), (link,), 1.0)


def states_over_time() -> StatesOverTime:
    lengths = torch.arange(8) % 5 + 2
    counted = torch.arange(6)[:, None] < lengths
    target = softmax_labels(48, 3).reshape(6, 8, 3)
    link = TimeLink(tight(SOFTMAX), normal(12, 4, 3), normal(13, 3), target, counted)
    return StatesOverTime(
        joint(TANH), normal(14, 6, 8, 4), normal(15, 4, 4) / 2, (link,), lengths, 2.0
    )


@pytest.mark.parametrize(
    ("solver", "build"),
    [
        (GeneralizedLinear(), lambda: weights_to_sample(500)),
        (GeneralizedLinear(), weights_that_resist),
        (NewtonStates(), states_of_all_kinds),
        (NewtonStates(max_iterations=3), states_of_all_kinds),
        (Proximal(), states_of_all_kinds),
        (Dual(), states_that_resist),
        (Dual(max_iterations=5), states_that_resist),
        (NewtonOverTime(), states_over_time),
    ],
)
def test_fits_that_take_every_turn(solver: Any, build: Any, monkeypatch) -> None:
    expected = solver.solve(build())
    require_agreement(as_on_a_gpu(monkeypatch, solver, build()), expected, torch.float64)


def test_a_limit_of_steps_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is half solved says so."""
    for solver, problem in (
        (GeneralizedLinear(max_iterations=3), weights_to_sample(50)),
        (NewtonOverTime(max_iterations=1), states_over_time()),
    ):
        found = as_on_a_gpu(monkeypatch, solver, problem)
        assert found.status is Status.ITERATION_LIMIT
        assert found.iterations in (1, 3)
        with pytest.raises(Exception, match="max_iterations"):
            found.require_solved()


def test_values_that_are_not_finite_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = weights_to_sample(500)
    spoiled = WeightFit(problem.divergence, Design(problem.design.inputs * torch.nan),
                        problem.targets, problem.penalty)  # fmt: skip
    with pytest.raises(Exception, match="objective of nan"):
        as_on_a_gpu(monkeypatch, GeneralizedLinear(), spoiled)


@pytest.mark.parametrize("solver", [Dual(), Proximal()])
def test_what_links_share_serves_until_they_change(
    solver: Solver[Any, Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_loops, "stays_on_device", lambda value: isinstance(value, Tensor))
    problem = states_that_resist()
    shared = solver.prepare(problem)
    assert solver.prepare(problem, shared) is shared
    weight = problem.links[0].weight
    assert isinstance(weight, Tensor)
    weight.mul_(0.9)
    assert solver.prepare(problem, shared) is not shared
