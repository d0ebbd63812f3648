"""A sample of weight k is k samples, whatever the method, the coupling and the network."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from liftednet.activations import Clipped, Tanh
from liftednet.errors import DataError
from liftednet.layers import average_pooling, convolution, dense
from liftednet.losses import CrossEntropy, SimplexCrossEntropy
from liftednet.models import (
    FullBatch,
    GaussNewton,
    Lifted,
    LiftedMLP,
    LiftedRNN,
    Minibatch,
    Network,
)
from liftednet.solvers import solve

WEIGHTS = torch.tensor([0, 1, 2, 3, 1, 0, 2, 5, 1, 1] * 2, dtype=torch.float64)
REPEATED = torch.repeat_interleave(torch.arange(20), WEIGHTS.long())
LABELS = torch.arange(20) % 3
EXACT = FullBatch(3, tolerance=1e-9)


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(20, *shape, generator=torch.Generator().manual_seed(0)).double()


def mlp(divergence: str, method: Any, loss: Any = None) -> Lifted:
    loss = loss or CrossEntropy()
    return LiftedMLP((6, 5, 4, 3), Tanh(), loss, 0.5, 0.1, divergence, method=method)


def convolutional(divergence: str, method: Any) -> Lifted:
    network = Network()
    images = network.input(1, 6, 1)
    hidden = network.state(Clipped(-1.0, 1.0), convolution(images, 2, (3, 1)))
    network.loss(CrossEntropy(), dense(average_pooling(hidden, (2, 1)), 3))
    return Lifted(network, 0.5, 0.1, divergence, method=method)


@pytest.mark.parametrize(
    "model",
    [
        mlp("joint", EXACT),
        mlp("tight", EXACT),
        mlp("multipliers", EXACT),
        mlp("joint", EXACT, SimplexCrossEntropy()),
        mlp("tight", GaussNewton(4, form="normal")),
        mlp("tight", GaussNewton(4, form="products")),
        convolutional("joint", EXACT),
        convolutional("tight", EXACT),
    ],
    ids=str,
)
def test_a_weight_counts_how_often_a_sample_is_there(model):
    x = rows(1, 6, 1) if len(model.network.inputs[0].shape) > 1 else rows(6)
    weighed = model.fit(x, LABELS, sample_weight=WEIGHTS).trace.objectives
    repeated = model.fit(x[REPEATED], LABELS[REPEATED]).trace.objectives
    assert weighed == pytest.approx(repeated, rel=1e-6)


def test_sequences_have_weights_too():
    x, lengths = rows(7, 2), torch.tensor([7, 3, 5, 7] * 5)
    model = LiftedRNN(
        2,
        4,
        3,
        None,
        None,
        0.5,
        0.1,
        "joint",
        sweeps=3,
        tolerance=1e-9,
        start="identity",
        bidirectional=True,
    )
    weighed = model.fit(x, LABELS, lengths=lengths, sample_weight=WEIGHTS).trace
    assert weighed is not None
    again = model.fit(x[REPEATED], LABELS[REPEATED], lengths=lengths[REPEATED]).trace
    assert again is not None
    assert weighed.objectives == pytest.approx(again.objectives, rel=1e-6)


def test_a_step_of_a_batch_counts_them():
    weighed = mlp("tight", Minibatch(1, batch_size=20)).fit(rows(6), LABELS, sample_weight=WEIGHTS)
    plain = mlp("tight", Minibatch(1, batch_size=len(REPEATED)))
    plain.fit(rows(6)[REPEATED], LABELS[REPEATED])
    ratio = len(REPEATED) / 20  # the mean is over the samples that are there
    assert weighed.trace is not None and plain.trace is not None
    assert weighed.trace.losses[0] == pytest.approx(ratio * plain.trace.losses[0])


@pytest.mark.parametrize("name", ["weights 1", "weights 3"])
def test_the_weight_fit_states_them_in_cvxpy(name):
    model = mlp("tight", EXACT).fit(rows(6), LABELS, sample_weight=WEIGHTS)
    fit = model.subproblem(name)
    assert solve(fit).objective == pytest.approx(solve(fit, "reference").objective, rel=1e-6)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (torch.zeros(20), "all 0"),
        (-torch.ones(20), "negative"),
        (torch.ones(19), r"\(20,\).*\(19,\)"),
        (torch.full((20,), torch.nan), "NaN"),
    ],
)
@pytest.mark.parametrize("method", ["minibatch", "full", "gauss-newton"])
def test_weights_that_cannot_be_are_refused(weights, words, method):
    model = mlp("tight", method)
    with pytest.raises(DataError, match=words):
        model.fit(rows(6), LABELS, sample_weight=weights.double())
    assert not model.is_fitted
