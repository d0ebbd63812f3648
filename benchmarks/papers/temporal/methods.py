"""The artificial tasks of On Recurrent Neural Networks, and how networks are trained on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import Optimizer

from benchmarks import data
from benchmarks.papers.networks import (
    CellRecurrence,
    ContextRNN,
    GatedFeedbackRNN,
    PlainRNN,
    SequenceModel,
)
from liftednet import starts
from liftednet.solvers.gradient import TemporalSimplexDescent, norm_preservation

HIDDEN = 50
THRESHOLD = 1.0  # c of eq. 3.6
OMEGA = 1.0  # weight of eq. 2.18

Draw = Callable[[int, int, int, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Task:
    """A generated task with one answer at the end.

    Attributes:
        draw: returns X and y from samples, longest length, seed and lengths.
        features: of X.
        outputs: numbers, or classes.
        loss: of outputs and targets.
    """

    draw: Draw
    features: int
    outputs: int
    loss: Callable[[Tensor, Tensor], Tensor]

    def batch(self, samples: int, minimum: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return X, y and lengths between T and T + T / 10, T = `minimum`."""
        lengths = data.hochreiter_lengths(samples, minimum, seed)
        x, y = self.draw(samples, minimum + minimum // 10, seed, lengths)
        return x, y, lengths


TASKS = {
    "addition": Task(
        lambda n, t, seed, lengths: data.adding(n, t, "hochreiter", seed, lengths), 2, 1, mse_loss
    ),
    "multiplication": Task(data.multiplication, 2, 1, mse_loss),
    "xor": Task(data.xor, 2, 2, cross_entropy),
    "temporal order, 2 symbols": Task(
        lambda n, t, seed, lengths: data.temporal_order(n, t, 2, seed, lengths),
        6,
        4,
        cross_entropy,
    ),
    "temporal order, 3 symbols": Task(
        lambda n, t, seed, lengths: data.temporal_order(n, t, 3, seed, lengths),
        6,
        8,
        cross_entropy,
    ),
}


MakeNetwork = Callable[[int, int, float, int], SequenceModel]


def network(features: int, outputs: int, radius: float, seed: int) -> SequenceModel:
    """Return a tanh network whose recurrent weight has the spectral radius (section 3.2)."""
    torch.manual_seed(seed)
    recurrence = PlainRNN(features, HIDDEN)
    starts.spectral_start_(recurrence, radius, torch.Generator().manual_seed(seed))
    return SequenceModel(recurrence, HIDDEN, outputs)


def cell_network(features: int, outputs: int, radius: float, seed: int) -> SequenceModel:
    """Return the same network with its cell as a module, which temporal parts need."""
    torch.manual_seed(seed)
    cell = nn.RNNCell(features, HIDDEN)
    starts.spectral_start_(cell, radius, torch.Generator().manual_seed(seed))
    return SequenceModel(CellRecurrence(cell), HIDDEN, outputs)


def gru_network(features: int, outputs: int, radius: float, seed: int) -> SequenceModel:
    """Return a GRU network each of whose recurrent matrices has the spectral radius."""
    torch.manual_seed(seed)
    recurrence = nn.GRU(features, HIDDEN, batch_first=True)
    starts.spectral_start_(recurrence, radius, torch.Generator().manual_seed(seed))
    return SequenceModel(recurrence, HIDDEN, outputs)


def context_network(features: int, outputs: int, radius: float, seed: int) -> SequenceModel:
    """Return a network with a fifth of its units in a slow context (section 2.1.3)."""
    torch.manual_seed(seed)
    recurrence = ContextRNN(features, HIDDEN - HIDDEN // 5, HIDDEN // 5)
    recurrent = recurrence.recurrent.weight
    generator = torch.Generator().manual_seed(seed)
    recurrent.data.copy_(starts.gaussian(len(recurrent), radius, generator))
    return SequenceModel(recurrence, HIDDEN, outputs)


def gated_feedback_network(features: int, outputs: int, radius: float, seed: int) -> SequenceModel:
    """Return two layers with gates between them; each of its own parts has the spectral radius.

    Gates begin at a half (section 2.1.4): the radius is that of half the weight.
    """
    torch.manual_seed(seed)
    units = HIDDEN // 2
    recurrence = GatedFeedbackRNN(features, units, layers=2)
    generator = torch.Generator().manual_seed(seed)
    for number, feedback in enumerate(recurrence.feedback):
        own = slice(number * units, (number + 1) * units)
        start = starts.gaussian(units, 2 * radius, generator)
        feedback.get_parameter("weight").data[:, own] = start
    return SequenceModel(recurrence, units, outputs)


def cell_of(model: nn.Module) -> nn.Module:
    """Return the cell that a `cell_network` applies over time."""
    assert isinstance(model.recurrence, CellRecurrence)
    return model.recurrence.cell


def _plain(model: nn.Module, rate: float, seed: int) -> Optimizer:
    return torch.optim.SGD(model.parameters(), rate)


def _nesterov(model: nn.Module, rate: float, seed: int) -> Optimizer:
    # With momentum 0.9 a constant gradient moves ten times as far: the rate is brought down.
    return torch.optim.SGD(model.parameters(), rate / 10, momentum=0.9, nesterov=True)


def _temporal_simplex(model: nn.Module, rate: float, seed: int) -> Optimizer:
    source = torch.Generator().manual_seed(seed)
    return TemporalSimplexDescent(
        model.parameters(), cell_of(model), rate, threshold=THRESHOLD, generator=source
    )


def _at_end(model: SequenceModel, task: Task, x: Tensor, y: Tensor, lengths: Tensor) -> Tensor:
    return task.loss(model.at_end(x, lengths), y)


def _with_omega(model: SequenceModel, task: Task, x: Tensor, y: Tensor, lengths: Tensor) -> Tensor:
    """Add Omega, which needs every state as a node of the graph."""
    cell, state, states = cell_of(model), None, []
    for step in x.unbind(1):
        state = cell(step, state)
        states.append(state)
    last = torch.stack(states, 1)[torch.arange(len(x)), lengths - 1]
    loss = task.loss(model.readout(last), y)
    return loss + OMEGA * norm_preservation(loss, states)


@dataclass(frozen=True)
class TaskMethod:
    """A way of training a network on a task.

    Attributes:
        optimizer: builds it from the network, a learning rate and a seed.
        clip: largest norm of the gradient, or None.
        network: builds it from features, outputs, spectral radius and seed.
        loss: of the network, the task, X, y and lengths.
    """

    optimizer: Callable[[nn.Module, float, int], Optimizer]
    clip: float | None = None
    network: MakeNetwork = network
    loss: Callable[[SequenceModel, Task, Tensor, Tensor, Tensor], Tensor] = _at_end

    @property
    def stacks(self) -> bool:
        """Whether its networks can be trained together in a `NetworkStack`."""
        return self.network is network and self.loss is _at_end


METHODS = {
    "plain": TaskMethod(_plain),
    "clipped": TaskMethod(_plain, THRESHOLD),
    "Nesterov, clipped": TaskMethod(_nesterov, THRESHOLD),
    "temporal simplex": TaskMethod(_temporal_simplex, network=cell_network),
}
OPPONENTS = {
    "clipped + Omega": TaskMethod(_plain, THRESHOLD, cell_network, _with_omega),
    "GRU, clipped": TaskMethod(_plain, THRESHOLD, gru_network),
    "context, clipped": TaskMethod(_plain, THRESHOLD, context_network),
    "gated feedback, clipped": TaskMethod(_plain, THRESHOLD, gated_feedback_network),
}
