"""The methods of the Frank-Wolfe paper's tables, and the opponents it leaves out."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.papers.frank_wolfe.training import MakeNetwork, MakeOptimizer, Method
from benchmarks.papers.networks import BatchNormRNN, IndRNN, PlainRNN, SequenceModel
from liftednet import initialize_, starts
from liftednet.activations import ReLU
from liftednet.losses import BinaryCrossEntropy
from liftednet.models import LiftedRNN, Minibatch
from liftednet.solvers.gradient import FrankWolfe

RADIUS = 0.03  # of the inner ball around each weight tensor; found on the training data
RATES = (5e-4, 2e-3)
GATED_RATES, SPARSE_RATES = (1e-3, 3e-3), (3e-3, 1e-2)
UNCLIPPED_RATES = (1e-4, 3e-4)  # of plain descent
CLIPPED_RATES = (0.1, 0.3)  # of plain descent, which without clipping diverges at these
SLOW_RATES, LONGER = (1e-4, 2e-4), 3  # of the IndRNN on windows as they are, which learns longer
FORGET_BIAS = 2.0
INPUT_SCALE = 10.0  # of LSTMs on HAR-2: standing persons sway by a fiftieth of what walking does
NOISE, ANGLE = 1.0, 0.1  # deviations: of the channels, and in radians
LIFTED_SAMPLES, LIFTED_BATCH = 400, 25


def vanilla(hidden: int) -> MakeNetwork:
    """Return the maker of a ReLU network of one layer that starts as the identity."""

    def make(features: int, steps: int, outputs: int) -> SequenceModel:
        recurrence = PlainRNN(features, hidden, "relu")
        _start_as_identity(recurrence.get_parameter("weight_hh_l0"))
        return SequenceModel(recurrence, hidden, outputs)

    return make


def batch_normalized(hidden: int) -> MakeNetwork:
    """Return the maker of the same network with batch normalization of its input part."""

    def make(features: int, steps: int, outputs: int) -> SequenceModel:
        recurrence = BatchNormRNN(features, hidden, "relu")
        _start_as_identity(recurrence.recurrent)
        return SequenceModel(recurrence, hidden, outputs)

    return make


def lstm(hidden: int, input_scale: float | None = None) -> MakeNetwork:
    """Return the maker of an LSTM network that starts by forgetting little.

    Args:
        hidden: units.
        input_scale: deviation of the input weights at the start, where each gate of a unit then
            sees one feature on average; None: it sees all, as torch starts.
    """

    def make(features: int, steps: int, outputs: int) -> SequenceModel:
        recurrence = nn.LSTM(features, hidden, batch_first=True)
        # Gates in torch's order: input, forget, cell, output.
        nn.init.constant_(recurrence.get_parameter("bias_hh_l0")[hidden : 2 * hidden], FORGET_BIAS)
        if input_scale is not None:
            weight = recurrence.get_parameter("weight_ih_l0")
            nn.init.sparse_(weight, 1 - 1 / features, input_scale)
        return SequenceModel(recurrence, hidden, outputs)

    return make


def independent(hidden: int, layers: int) -> MakeNetwork:
    """Return the maker of a stacked IndRNN."""

    def make(features: int, steps: int, outputs: int) -> SequenceModel:
        return SequenceModel(IndRNN(features, hidden, layers, steps), hidden, outputs)

    return make


def gradient_descent(model: SequenceModel, rate: float) -> Optimizer:
    """Return plain stochastic gradient descent."""
    return torch.optim.SGD(model.parameters(), rate)


def adam(model: SequenceModel, rate: float) -> Optimizer:
    """Return Adam with torch's settings."""
    return torch.optim.Adam(model.parameters(), rate)


def frank_wolfe(inner_steps: int) -> MakeOptimizer:
    """Return the maker of Frank-Wolfe with K inner steps and Adam's outer step."""

    def make(model: SequenceModel, rate: float) -> Optimizer:
        return FrankWolfe(
            [p for p in model.parameters() if p.requires_grad],
            rate,
            radius=RADIUS,
            inner_steps=inner_steps,
            outer=torch.optim.Adam,
        )

    return make


def lifted_start(model: SequenceModel, x: Tensor, y: Tensor, seed: int) -> None:
    """Fit a lifted ReLU network in one pass over a few samples, and start the network from it.

    Args:
        model: a ReLU network of one layer with one output; changed in place.
        x: (samples, time, features).
        y: (samples,) labels 0 and 1.
        seed: of the choice of samples and the lifted network's start.
    """
    recurrence = model.recurrence
    assert isinstance(recurrence, PlainRNN)
    some = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:LIFTED_SAMPLES]
    lifted = LiftedRNN(
        x.shape[2],
        recurrence.hidden_size,
        1,
        activation=ReLU(),
        loss=BinaryCrossEntropy(),
        rho=0.1,
        start="identity",
        method=Minibatch(1, LIFTED_BATCH, rate=0.1, damping=1.0),
        seed=seed,
    ).fit(x[some].double(), y[some, None].double())
    initialize_(model, lifted)


def table_methods(
    hidden: int, segment: int, layers: int, noisy: bool = False
) -> tuple[Method, ...]:
    """Return the twelve rows of the paper's table III, and those that it lacks.

    Args:
        hidden: units of a layer.
        segment: steps of truncated backpropagation.
        layers: of the IndRNN.
        noisy: whether the windows have noise, which hides what rotations and the LSTM's sparse
            start are for: how the phone sits, and how its bearer sways.
    """
    gated = lstm(hidden, None if noisy else INPUT_SCALE)
    gated_rates = GATED_RATES if noisy else SPARSE_RATES
    stacked, five = independent(hidden, layers), frank_wolfe(5)
    plain_rows = _plain_methods(hidden, segment)
    deep_rows = (
        Method("LSTM + Adam", gated, adam, gated_rates),
        Method("LSTM + Frank-Wolfe", gated, five, gated_rates),
        Method("IndRNN + Adam", stacked, adam, RATES),
        Method("IndRNN + Frank-Wolfe", stacked, five, RATES),
    )
    if noisy:
        return plain_rows + deep_rows
    return (
        *(replace(method, noise=NOISE) for method in plain_rows),
        *(replace(method, angle=ANGLE) for method in deep_rows),
        Method("IndRNN + Adam, longer", stacked, adam, SLOW_RATES, longer=LONGER),
    )


def _plain_methods(hidden: int, segment: int) -> tuple[Method, ...]:
    plain, normed, five = vanilla(hidden), batch_normalized(hidden), frank_wolfe(5)
    return (
        Method("SGD", plain, gradient_descent, UNCLIPPED_RATES),
        Method("SGD + clipping", plain, gradient_descent, CLIPPED_RATES, clip=1.0),
        Method("Adam + clipping", plain, adam, RATES, clip=1.0),
        Method("Truncated", plain, adam, RATES, segment=segment),
        Method("Frank-Wolfe K = 1", plain, frank_wolfe(1), RATES),
        Method("Frank-Wolfe K = 5", plain, five, RATES),
        Method("Frank-Wolfe K = 10", plain, frank_wolfe(10), RATES),
        Method("Batch norm + Frank-Wolfe", normed, five, RATES),
        Method("Truncated + Frank-Wolfe", plain, five, RATES, segment=segment),
        Method("Frank-Wolfe K = 5, lifted start", plain, five, RATES, begin=lifted_start),
    )


@torch.no_grad()
def _start_as_identity(weight: Tensor) -> None:
    weight.copy_(starts.identity(len(weight)))
