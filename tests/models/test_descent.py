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
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from liftednet import Activation, activations, losses
from liftednet.errors import DataError, SolverError
from liftednet.models import FullBatch, GaussNewton, LiftedMLP, LiftedRNN, Minibatch
from liftednet.models.block import Blocks
from liftednet.models.results import Ending
from liftednet.solvers import Solver, get_solver
from tests.models.networks import fitted, full, labeled, refuses, same_bits, targets_for, trace_of

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
    rounding = 1e-5 if dtype is torch.float32 else 1e-9
    for before, after in pairwise(trace_of(model).objectives):
        assert math.isfinite(after)
        assert after <= before + rounding * (1 + abs(before))
    assert model.objective() == pytest.approx(trace_of(model).objectives[-1], rel=1e3 * rounding)


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
    assert same_bits(weights, model.weights)


def test_extrapolation_reaches_the_same_point_in_fewer_sweeps():
    x, y = labeled(samples=10)
    options = {"lam": 1.0, "divergence": "joint", "sweeps": 1500, "tolerance": 1e-5}
    plain, ahead = (
        fitted(x, y, (4, 3, 3), activations=activations.Sigmoid(), rho=0.3, **options, **how)
        for how in ({"extrapolation": False}, {"extrapolation": True})
    )
    assert ahead.objective() == pytest.approx(plain.objective(), rel=1e-4)
    assert trace_of(ahead).steps[-1].number < trace_of(plain).steps[-1].number
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
    assert trace_of(model).ending is Ending.INTERRUPTED
    assert model.objective() == pytest.approx(trace_of(model).steps[-1].objective)


ROWS, LABELS = labeled(samples=60)
SHORT = Minibatch(epochs=3, batch_size=10)


def _model(**options) -> LiftedMLP:
    return LiftedMLP((4, 8, 3), method=SHORT, standardize=False, **options)


def _loader(x: Tensor = ROWS, size: int = 10, **options) -> DataLoader:
    return DataLoader(TensorDataset(x, LABELS[: len(x)]), batch_size=size, **options)


def _spoiled() -> Tensor:
    x = ROWS.clone()
    x[15, 2] = float("nan")  # in the second batch
    return x


def test_a_bad_batch_of_a_loader_leaves_a_fitted_model_as_it_was():
    model = _model().fit(ROWS, LABELS)
    weights, objective = model.weights, model.objective()
    refuses(DataError, "NaN", lambda: model.fit(_loader(_spoiled())))
    assert same_bits(model.weights, weights)
    assert model.objective() == objective


@pytest.mark.parametrize("method", [SHORT, FullBatch(3), GaussNewton(3)])
@pytest.mark.parametrize("error", [RuntimeError, StopIteration, GeneratorExit])
def test_an_error_of_the_listener_keeps_the_fit_so_far_and_is_raised(method, error):
    seen: list[Any] = []

    def fail(_: object) -> None:
        seen.append(model.weights)
        if len(seen) == 2:
            raise error("full disk")

    model = LiftedMLP((4, 8, 3), method=method)
    refuses(error, "full disk", lambda: model.fit(ROWS, LABELS, on_step=fail))
    assert same_bits(model.weights, seen[-1]) and not same_bits(*seen)
    assert len(trace_of(model).steps) == 2
    assert trace_of(model).ending is Ending.INTERRUPTED


def test_the_type_of_a_loader_is_found_without_a_draw_or_a_load_of_its_own():
    class Counted(TensorDataset):
        loads = 0

        def __getitem__(self, index):
            Counted.loads += 1
            return super().__getitem__(index)

    data = Counted(ROWS, LABELS)
    source = torch.Generator().manual_seed(0)
    model = _model().fit(DataLoader(data, batch_size=10, shuffle=True, generator=source))
    assert Counted.loads == 3 * len(ROWS)
    again = torch.Generator().manual_seed(0)
    for _ in range(3):  # the same draws as three plain passes
        list(DataLoader(TensorDataset(ROWS, LABELS), batch_size=10, shuffle=True, generator=again))
    assert source.get_state().equal(again.get_state())
    assert model.is_fitted


def test_a_loader_without_batches_is_refused():
    model = _model()
    refuses(DataError, "no batches of its 60 samples", model.fit, _loader(size=61, drop_last=True))
    assert not model.is_fitted


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (LiftedMLP((4, 8, 3), dtype=torch.float32, standardize=False), ROWS * 1e20),
        # whose variance overflows; the loss does not
        (LiftedRNN(4, 5, 3, activations.Tanh(), standardize=False), ROWS[:, None] * 1e200),
    ],
)
def test_an_epoch_to_weights_that_are_not_finite_is_an_error_and_keeps_those_before(model, x):
    model.method = Minibatch(epochs=1, batch_size=60)  # nothing looks at a loss after its step
    refuses(SolverError, r"scale X.*last good epoch", lambda: model.fit(x, LABELS))
    assert same_bits(model.weights, [w.to(model.weights[0].matrix) for w in model._first_weights()])
