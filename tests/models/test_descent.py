"""The one loop: what never rises, what is kept, and when it ends."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from liftednet import Activation, activations, losses
from liftednet.errors import SolverError
from liftednet.models.block import Blocks
from liftednet.models.results import Ending
from liftednet.solvers import Solver, get_solver
from tests.models.networks import fitted, full, labeled, targets_for

ACTIVATIONS = [
    activations.ReLU(), activations.LeakyReLU(0.2), activations.Sigmoid(), activations.Tanh(),
    activations.Softplus(), activations.Clipped(0.0, 1.0), activations.ELU(), activations.Arctan(),
    Activation.from_function(torch.nn.functional.softsign),
]  # fmt: skip
LOSSES = [
    losses.CrossEntropy(),
    losses.SquaredError(),
    losses.BinaryCrossEntropy(),
    losses.SimplexCrossEntropy(),
]


@settings(max_examples=12)
@given(
    activation=st.sampled_from(ACTIVATIONS),
    divergence=st.sampled_from(["tight", "joint"]),
    loss=st.sampled_from(LOSSES),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    lam=st.floats(0.05, 5),
    extrapolation=st.booleans(),
)
def test_the_joint_objective_never_rises(activation, divergence, loss, dtype, lam, extrapolation):
    x, labels = labeled(samples=12)
    y = targets_for(loss, labels, 3)
    options: dict[str, Any] = {"dtype": dtype, "sweeps": 4, "tolerance": 1e-12}
    options["extrapolation"] = extrapolation
    model = full(
        (4, 5, 4, 3), activation, loss, lam=lam, rho=0.1, divergence=divergence, **options
    ).fit(x, y)
    assert model.trace is not None
    rounding = 1e-5 if dtype is torch.float32 else 1e-9
    for before, after in pairwise(model.trace.objectives):
        assert math.isfinite(after)
        assert after <= before + rounding * (1 + abs(before))
    assert model.objective() == pytest.approx(model.trace.objectives[-1], rel=1e3 * rounding)


class _Raising(Solver[Any, Any, Any]):
    """Spoils the weights that the true solver finds, from its third solve on."""

    name = "raising"

    def __init__(self) -> None:
        self.solved = 0

    def obstacle(self, problem):
        return get_solver("generalized-linear").obstacle(problem)

    def prepare(self, problem, previous=None):
        return get_solver("generalized-linear").prepare(problem, previous)

    def solve(self, problem, start=None, cache=None):
        self.solved += 1
        solution = get_solver("generalized-linear").solve(problem, start, cache)
        if self.solved < 3:
            return solution
        worse = replace(solution.value, matrix=solution.value.matrix + 1)
        return replace(solution, value=worse, objective=problem.measure(worse).objective)


def test_a_rise_is_an_error_and_the_last_good_state_stays():
    x, y = labeled()
    model = full((4, 3), solver=_Raising(), sweeps=1, warm_start=True, rho=0.1).fit(x, y)
    model.fit(x, y)
    before, weights = model.objective(), model.weights
    with pytest.raises(SolverError, match="raised the joint objective") as caught:
        model.fit(x, y)
    assert caught.value.solution.objective > before
    assert model.objective() == before
    assert all(
        old.matrix.equal(new.matrix) for old, new in zip(weights, model.weights, strict=True)
    )


@pytest.mark.parametrize("divergence", ["tight", "joint"])
def test_extrapolation_reaches_the_same_point_in_fewer_sweeps(divergence):
    x, y = labeled(samples=10)
    options = {"lam": 1.0, "divergence": divergence, "sweeps": 1500, "tolerance": 1e-5}
    plain, ahead = (
        fitted(x, y, (4, 3, 3), activations=activations.Sigmoid(), rho=0.3, **options, **how)
        for how in ({"extrapolation": False}, {"extrapolation": True})
    )
    assert plain.trace is not None and ahead.trace is not None
    assert ahead.objective() == pytest.approx(plain.objective(), rel=1e-4)
    assert ahead.trace.steps[-1].number < plain.trace.steps[-1].number
    for layer, same in zip(ahead.weights, plain.weights, strict=True):
        assert torch.allclose(layer.matrix, same.matrix, atol=0.05)


def test_an_interrupted_extrapolation_leaves_the_point_of_the_sweep(monkeypatch):
    x, y = labeled()
    model = full((4, 5, 3), sweeps=5, tolerance=1e-12)
    extrapolate = Blocks.extrapolate

    def interrupted(self, previous, factor):
        extrapolate(self, previous, factor)
        raise KeyboardInterrupt

    monkeypatch.setattr(Blocks, "extrapolate", interrupted)
    model.fit(x, y)
    assert model.trace is not None and model.trace.ending is Ending.INTERRUPTED
    assert model.objective() == pytest.approx(model.trace.steps[-1].objective)
