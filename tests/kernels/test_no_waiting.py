"""Where numbers stay on the device, a sweep does not read one before its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from liftednet import activations, deferred
from liftednet.divergences import Divergence, joint, tight
from liftednet.errors import SolverError
from liftednet.losses import SimplexCrossEntropy, SquaredError
from liftednet.models import FullBatch, LiftedMLP, LiftedRNN, Minibatch
from liftednet.models.block_update import readable, updated
from liftednet.models.descent import Block, Descent
from liftednet.models.minibatch import BatchSteps
from liftednet.models.recurrent_blocks import RecurrentBlocks
from liftednet.models.recurrent_minibatch import BatchTraining, SequenceMinibatch
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import Design, Link, OutputFit, StateFit, WeightFit, Weights
from liftednet.problems.design_matrix import dominant_eigenvalue
from liftednet.solvers import Ridge, solve
from liftednet.solvers.kernels import FusedStates, StateBlocks
from tests.kernels.readings import Readings


class TwoBlocks:
    """States below a linear layer, and its weights."""

    def __init__(self, generator: torch.Generator) -> None:
        self.u, self.target, matrix = (
            torch.randn(shape, generator=generator) for shape in ((12, 5), (12, 3), (5, 3))
        )
        self.weights = Weights(matrix, torch.zeros(3))
        self.states = self.u.clamp(min=0)
        self.linear = joint(activations.Identity())

    def fit(self) -> StateFit:
        assert self.weights.bias is not None
        above = Link(self.linear, self.weights.matrix, self.weights.bias, self.target)
        return StateFit(tight(activations.ReLU()), self.u, (above,), 0.5)

    def sweep(self) -> list[Block]:
        def states(value: Tensor) -> None:
            self.states = value

        def weights(value: Weights) -> None:
            self.weights = value

        fused = FusedStates(blocks=StateBlocks(16, depth=16, columns=16))
        return [
            Block("states", self.fit, lambda: self.states, states, fused),
            Block("weights", self._weight_fit, lambda: self.weights, weights, Ridge()),
        ]

    def _weight_fit(self) -> WeightFit:
        return WeightFit(self.linear, Design(self.states), self.target, SquaredFrobenius(0.1))

    def objective(self) -> float:
        return 0.0


def test_the_updates_of_a_sweep_read_nothing(generator: torch.Generator, as_on_a_gpu: None) -> None:
    problem, descent = TwoBlocks(generator), Descent()
    with Readings() as readings:
        updates = [descent._update(block) for block in problem.sweep()]
    # the interpreter itself reads numbers inside the kernels, through numpy and not through torch
    assert readings.names == []
    assert [update.on_device for update in updates] == [True, True]
    assert all(update.decrease() > 0 for update in updates)


def test_numbers_left_on_the_device_make_the_same_descent(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = TwoBlocks(generator), TwoBlocks(generator)
    there.u, there.target, there.weights, there.states = (
        here.u,
        here.target,
        here.weights,
        here.states,
    )
    expected = Descent().run(here, 2)
    monkeypatch.setattr(deferred, "stays_on_device", lambda value: isinstance(value, Tensor))
    found = Descent().run(there, 2)
    assert there.states.equal(here.states)
    assert there.weights.matrix.equal(here.weights.matrix)
    assert [step.objective for step in found.steps] == pytest.approx(expected.objectives[1:])
    assert [type(step.residual) for step in found.steps] == [float] * 4


def test_updates_on_a_device_are_held_until_the_last(
    generator: torch.Generator, as_on_a_gpu: None
) -> None:
    problem, seen = TwoBlocks(generator).fit(), []
    solution = FusedStates(blocks=StateBlocks(16, depth=16, columns=16)).solve(problem)

    def updates() -> Iterator[Any]:
        for name in "ab":
            seen.append(name)
            yield updated(name, problem.measure(problem.pre_activation), solution)

    assert [update.block for update in next(readable(updates()))] == ["a", "b"]
    assert seen == ["a", "b"]


def test_a_rise_on_the_device_keeps_the_old_value_and_is_an_error(
    generator: torch.Generator, as_on_a_gpu: None
) -> None:
    problem = TwoBlocks(generator).fit()
    best = solve(problem, FusedStates(blocks=StateBlocks(16, depth=16, columns=16)))
    worse = FusedStates(max_iterations=0, blocks=StateBlocks(16, depth=16, columns=16)).solve(
        problem, best.value + 1
    )
    update = updated("states", problem.measure(best.value), worse)
    assert update.kept(best.value).equal(best.value)
    with pytest.raises(SolverError, match="raised the joint objective"):
        update.decrease()


@pytest.mark.parametrize("shape", [(30, 8), (8, 8), (3, 1)])
def test_the_norm_without_an_eigenvalue_solver(
    shape: tuple[int, int], generator: torch.Generator
) -> None:
    matrix = torch.randn(shape, generator=generator, dtype=torch.float64)
    found = dominant_eigenvalue(matrix.T @ matrix)
    expected = torch.linalg.matrix_norm(matrix, 2) ** 2
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def test_the_norm_where_eigenvalues_are_equal_or_zero() -> None:
    for size in (0.0, 1e-30, 3.0):
        gram = size * torch.eye(4, dtype=torch.float64)
        assert float(dominant_eigenvalue(gram)) == pytest.approx(size)


def minibatches(generator: torch.Generator) -> tuple[BatchSteps, Tensor, Tensor]:
    model = LiftedMLP((6, 5, 3), activations.ReLU(), lam=0.5, rho=0.1)
    weights = [layer.to(torch.empty(0)) for layer in model._first_weights]
    x = torch.randn(20, 6, generator=generator)
    target = torch.eye(3)[torch.arange(20) % 3]
    source = torch.Generator().manual_seed(1)
    return BatchSteps(model.architecture, weights, Minibatch(rank=0), source), x, target


def test_a_step_on_a_minibatch_reads_nothing(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, x, target = minibatches(generator)
    there, _, _ = minibatches(generator)
    losses = [here.step(x, target, 0.3, 20) for _ in range(3)]
    monkeypatch.setattr(deferred, "stays_on_device", lambda value: isinstance(value, Tensor))
    with Readings() as readings:
        found = [there.step(x, target, 0.3, 20) for _ in range(3)]
    assert readings.names == []
    assert [float(loss) for loss in found] == pytest.approx(losses)
    for one, other in zip(here.weights, there.weights, strict=True):
        torch.testing.assert_close(one.matrix, other.matrix)


def test_a_lost_batch_on_a_device_leaves_the_weights(
    generator: torch.Generator, as_on_a_gpu: None
) -> None:
    steps, x, target = minibatches(generator)
    before = [layer.matrix.clone() for layer in steps.weights]
    assert not float(steps.step(x * float("nan"), target, 0.3, 20)) < float("inf")
    assert all(layer.matrix.equal(old) for layer, old in zip(steps.weights, before, strict=True))


def labeled(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    y = torch.arange(60) % 3
    return torch.randn(60, 6, generator=generator, dtype=torch.float64) + torch.eye(6)[y], y


def sequences(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(30, 7, 2, generator=generator, dtype=torch.float64)
    return x, (x.sum((1, 2)) > 0).long()


def feedforward(x: Tensor, y: Tensor) -> LiftedMLP:
    return LiftedMLP((6, 5, 3), activations.Tanh(), method=FullBatch(sweeps=4)).fit(x, y)


def recurrent(method: str, x: Tensor, y: Tensor) -> LiftedRNN:
    model = LiftedRNN(2, 4, 2, activations.Tanh(), divergence="tight", method=method, sweeps=3)
    return model.fit(x, y, lengths=torch.arange(30) % 4 + 4)


@pytest.mark.parametrize(
    ("fit", "data"),
    [
        (feedforward, labeled),
        (partial(recurrent, "full"), sequences),
        (partial(recurrent, "minibatch"), sequences),
        (partial(recurrent, "gauss-newton"), sequences),
    ],
)
def test_training_ends_where_it_does_on_a_cpu(
    fit: Any, data: Any, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = data(generator)
    here = fit(x, y)
    monkeypatch.setattr(deferred, "stays_on_device", lambda value: isinstance(value, Tensor))
    there = fit(x, y)
    assert float(there.objective()) == pytest.approx(float(here.objective()), rel=1e-3)
    assert [step.block for step in there.trace.steps] == [step.block for step in here.trace.steps]
    assert all(type(step.objective) is float for step in there.trace.steps)
    for one, other in zip(here.weights, there.weights, strict=True):
        torch.testing.assert_close(one.matrix, other.matrix, rtol=1e-2, atol=1e-3)


def test_a_lost_batch_of_sequences_on_a_device_is_told_after_its_epoch(
    generator: torch.Generator, as_on_a_gpu: None
) -> None:
    x, y = sequences(generator)
    model = recurrent("minibatch", x, y)
    before = [layer.matrix.clone() for layer in model.weights]
    assert model._blocks is not None
    task = model._blocks.task
    spoiled = replace(task, inputs=torch.full_like(task.inputs, torch.nan))
    blocks = RecurrentBlocks(model.architecture, spoiled, model.weights, model._solvers)
    with pytest.raises(SolverError, match="loss of a batch is nan"):
        BatchTraining(blocks, SequenceMinibatch(epochs=1), 0).run(None)
    assert all(layer.matrix.equal(old) for layer, old in zip(blocks.weights, before, strict=True))


RELU = tight(activations.ReLU())


@pytest.mark.parametrize(
    "problem",
    [
        lambda x, y: StateFit(RELU, x, (_link(joint(activations.Identity()), x, y),)),
        lambda x, y: StateFit(RELU, x, (_link(tight(activations.Softmax()), x, y),)),
        lambda x, y: WeightFit(joint(activations.ReLU()), Design(x), y, SquaredFrobenius(0.1)),
        lambda x, y: WeightFit(RELU, Design(x), y, SquaredFrobenius(0.1)),
        lambda x, y: OutputFit(SimplexCrossEntropy(), y, joint(activations.SimplexProjection()), y),
        lambda x, y: OutputFit(SquaredError(), y, RELU, y),
    ],
)
def test_judging_works_where_no_number_can_be_read(problem, monkeypatch) -> None:
    """On the meta device a number has no value, and a tensor from elsewhere is an error."""
    monkeypatch.setattr(deferred, "stays_on_device", lambda value: isinstance(value, Tensor))
    x, y = (torch.empty(8, columns, device="meta") for columns in (4, 3))
    fit = problem(x, y)
    value = Weights(torch.empty(4, 3, device="meta"), torch.empty(3, device="meta"))
    measured = fit.measure(value if isinstance(fit, WeightFit) else fit.pre_activation)
    for number in measured:
        assert isinstance(number, Tensor)
        assert number.device.type == "meta"
        assert number.shape == ()


def _link(divergence: Divergence, x: Tensor, y: Tensor) -> Link:
    return Link(divergence, x.new_empty(4, 3), x.new_empty(3), y)
