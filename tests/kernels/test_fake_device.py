"""Sweeps on a device without numbers: what is read, or made elsewhere, is an error.

torch's fake tensors hold no data. They stand here on the meta device, which plays the GPU: a
number that is read, a shape that depends on one, and operands on two devices raise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from liftednet import activations, deferred, divergences
from liftednet.activation import Activation
from liftednet.losses import CrossEntropy, Loss, SimplexCrossEntropy, SquaredError
from liftednet.models import LiftedMLP, LiftedRNN, Minibatch, recurrent_blocks, sequence_arrays
from liftednet.models.descent import Descent
from liftednet.models.feedforward import FeedforwardBlocks, forward_states
from liftednet.models.minibatch import BatchSteps
from liftednet.models.recurrent_blocks import RecurrentBlocks
from liftednet.models.recurrent_minibatch import BatchTraining, SequenceMinibatch
from liftednet.models.sequence_arrays import Task, Timeline
from liftednet.problems import Design, Weights
from liftednet.solvers import preconditioner
from liftednet.solvers.kernels import device
from tests.kernels.readings import Readings

DEVICE = torch.device("meta")
SAMPLES, STEPS = 20, 6
SOFTSIGN = Activation.from_function(torch.nn.functional.softsign)


@pytest.fixture(autouse=True)
def meta_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the meta device for a GPU, on which loops are told to end after a few rounds."""

    def on_device(value: object) -> bool:
        return isinstance(value, Tensor) and value.is_meta

    def seen(self: Any, value: Tensor, beside: Any) -> tuple[float, Any]:
        assert value.is_meta
        assert value.shape == ()
        self.rounds = getattr(self, "rounds", 0) + 1
        return (0.0 if self.rounds > 3 else torch.inf), (beside if self.rounds > 1 else None)

    def sent(value: Tensor, where: torch.device) -> Tensor:
        return torch.empty(value.shape, dtype=value.dtype, device=where)

    monkeypatch.setattr(deferred, "stays_on_device", on_device)
    monkeypatch.setattr(deferred.Late, "seen", seen)
    monkeypatch.setattr(device, "interpreting", lambda: False)  # kernels take no fake tensors
    monkeypatch.setattr(preconditioner, "_generator", lambda device: None)  # meta has none
    for module in (divergences, recurrent_blocks, sequence_arrays):
        monkeypatch.setattr(module, "sent", sent)  # without pinned memory, which needs a GPU


@contextmanager
def without_numbers(*activations: Activation) -> Iterator[None]:
    for activation in activations:
        prepared(activation)
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


@contextmanager
def nothing_read() -> Iterator[None]:
    with Readings() as readings:
        yield
    assert readings.names == []


def prepared(activation: Activation) -> None:
    """Make what an activation keeps: on a GPU this is done, and sent there, once for all."""
    for part in (activation, activations.Sigmoid, getattr(activation, "_sigmoid", None)):
        if isinstance(part, Activation) and part.per_unit:
            part.scalar_map.table._on(DEVICE)
            assert part.conjugate_at_zero is not None


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device=DEVICE)


def there(weights: Any, dtype: torch.dtype = torch.float32) -> list[Weights]:
    return [
        Weights(empty(*layer.matrix.shape, dtype=dtype), empty(*layer.bias.shape, dtype=dtype))
        for layer in weights
    ]


def sweep(blocks: Any) -> None:
    descent = Descent()
    with nothing_read():
        updates = [descent._update(block) for block in blocks.sweep()]
    for update in updates:
        assert update.on_device
        assert all(deferred.stays_on_device(number) for number in update.before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("activation", "divergence", "loss"),
    [
        (activations.ReLU(), "joint", CrossEntropy()),
        (activations.ReLU(), "joint", SimplexCrossEntropy()),
        (activations.Tanh(), "tight", CrossEntropy()),
        (activations.Softplus(), "tight", SquaredError()),
        (activations.Clipped(-1.0, 1.0), "tight", SimplexCrossEntropy()),
        (activations.SimplexProjection(), "tight", CrossEntropy()),
        (activations.Softmax(), "joint", SquaredError()),
        (SOFTSIGN, "joint", CrossEntropy()),
        (SOFTSIGN, "tight", CrossEntropy()),
    ],
    ids=str,
)
def test_a_sweep_of_a_feedforward_network(
    activation: Activation, divergence: str, loss: Loss, dtype: torch.dtype
) -> None:
    model = LiftedMLP((7, 6, 5, 3), activation, loss, divergence=divergence)
    architecture = model.architecture
    with without_numbers(*architecture.activations):
        weights, x = there(model.first_weights, dtype), empty(SAMPLES, 7, dtype=dtype)
        target = empty(SAMPLES, 3, dtype=dtype)
        states = forward_states(architecture, weights, x)[: len(architecture.divergences)]
        sweep(FeedforwardBlocks(architecture, Design(x), target, weights, states))


@pytest.mark.parametrize("loss", [CrossEntropy(), SquaredError(), SimplexCrossEntropy()], ids=str)
@pytest.mark.parametrize("activation", [activations.ReLU(), SOFTSIGN], ids=str)
def test_a_minibatch_of_a_feedforward_network(activation: Activation, loss: Loss) -> None:
    model = LiftedMLP((7, 6, 5, 3), activation, loss)
    with without_numbers(*model.architecture.activations):
        weights, source = there(model.first_weights), torch.Generator().manual_seed(0)
        steps = BatchSteps(model.architecture, weights, Minibatch(rank=0), source)
        x, target = empty(SAMPLES, 7), empty(SAMPLES, 3)
        steps.step(x, target, 0.3, SAMPLES)  # sends the first statistics there
        with nothing_read():
            assert deferred.stays_on_device(steps.step(x, target, 0.3, SAMPLES))


def sequences(early: int, per_step: bool) -> Task:
    """Return a task whose lengths are known to the host."""
    timeline = Timeline(STEPS, torch.arange(SAMPLES) % 4 + 2, early, DEVICE)
    target = empty(STEPS, SAMPLES, 2)
    return Task(empty(STEPS, SAMPLES, 3), timeline, target, per_step)


@pytest.mark.parametrize("per_step", [True, False])
@pytest.mark.parametrize(
    ("activation", "options"),
    [
        (activations.ReLU(), {"divergence": "joint", "learn_initial_state": True}),
        (activations.Tanh(), {"divergence": "tight"}),
        (SOFTSIGN, {"divergence": "joint", "bidirectional": True}),
    ],
    ids=str,
)
def test_a_sweep_of_a_recurrent_network(
    activation: Activation, options: dict[str, Any], per_step: bool
) -> None:
    model = LiftedRNN(3, (4, 3), 2, activation, **options)
    task = sequences(int(model.architecture.learned_start), per_step)
    known = [task.places, task.timeline.places]  # made where the lengths are
    with without_numbers(activation):
        weights = there(model._first_weights)
        sweep(RecurrentBlocks(model.architecture, task, weights, model._solvers))
    assert all(place.is_meta for place in known)


def test_a_minibatch_of_a_recurrent_network() -> None:
    model = LiftedRNN(3, 4, 2, activations.Tanh(), divergence="tight", method="minibatch")
    batches = [sequences(0, per_step=True) for _ in range(2)]
    assert all(place.is_meta for task in batches for place in (task.places, task.timeline.places))
    with without_numbers(activations.Tanh()):
        weights = there(model._first_weights)
        blocks = RecurrentBlocks(model.architecture, batches[0], weights, model._solvers)
        training = BatchTraining(blocks, SequenceMinibatch(), 0)
        with nothing_read():
            assert all(training._step(task, 0.5, 1.0).on_device for task in batches)
