"""A sample of weight k is k samples, whatever the method, the coupling and the network."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from liftednet import Network
from liftednet.activations import Clipped, Tanh
from liftednet.errors import DataError
from liftednet.layers import average_pooling, convolution, dense
from liftednet.losses import CrossEntropy, SimplexCrossEntropy
from liftednet.models import FullBatch, GaussNewton, Lifted, LiftedMLP, LiftedRNN, Minibatch

WEIGHTS = torch.tensor([0, 1, 2, 3, 1, 0, 2, 5, 1, 1] * 2, dtype=torch.float64)
REPEATED = torch.repeat_interleave(torch.arange(20), WEIGHTS.long())
LABELS = torch.arange(20) % 3
EXACT = FullBatch(3, tolerance=1e-9)


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(20, *shape, generator=torch.Generator().manual_seed(0)).double()


def mlp(divergence: str, method: Any, loss: Any = None) -> Lifted:
    loss = loss or CrossEntropy()
    how = {"lam": 0.5, "rho": 0.1, "divergence": divergence, "method": method}
    return LiftedMLP((6, 5, 4, 3), Tanh(), loss, **how)


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
        lam=0.5,
        rho=0.1,
        divergence="joint",
        method=FullBatch(3, tolerance=1e-9, extrapolation=False),
        start="identity",
        bidirectional=True,
    )
    weighed = model.fit(x, LABELS, lengths=lengths, sample_weight=WEIGHTS).trace
    assert weighed is not None
    again = model.fit(x[REPEATED], LABELS[REPEATED], lengths=lengths[REPEATED]).trace
    assert again is not None
    assert weighed.objectives == pytest.approx(again.objectives, rel=1e-6)


@pytest.mark.parametrize("loss", [CrossEntropy(), SimplexCrossEntropy()], ids=str)
def test_steps_of_batches_count_them(loss):
    method = Minibatch(7, batch_size=100)  # one batch, whose order does not matter
    weighed = mlp("tight", method, loss).fit(rows(6), LABELS, sample_weight=WEIGHTS)
    plain = mlp("tight", method, loss).fit(rows(6)[REPEATED], LABELS[REPEATED])
    assert weighed.trace is not None and plain.trace is not None
    assert weighed.trace.losses == pytest.approx(plain.trace.losses)
    for one, other in zip(weighed.weights, plain.weights, strict=True):
        torch.testing.assert_close(one.matrix, other.matrix, rtol=1e-7, atol=1e-9)


def test_batches_of_sequences_count_them():
    x, method = rows(7, 2), Minibatch(3, batch_size=100)
    model = LiftedRNN(2, 4, 3, lam=0.5, divergence="tight", method=method)
    weighed = model.fit(x, LABELS, sample_weight=WEIGHTS).weights
    repeated = model.fit(x[REPEATED], LABELS[REPEATED]).weights
    torch.testing.assert_close(weighed[0].matrix, repeated[0].matrix)


def test_weighted_steps_do_not_follow_rounding_where_inputs_have_a_low_rank():
    method = Minibatch(7, batch_size=100)  # 100 units of 15 samples, whose metric has 16 directions
    build = partial(LiftedMLP, (20, 100, 3), method=method)
    x = rows(20)
    weighed = build().fit(x, LABELS, sample_weight=WEIGHTS).weights
    repeated = build().fit(x[REPEATED], LABELS[REPEATED]).weights
    torch.testing.assert_close(weighed[0].matrix, repeated[0].matrix, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (torch.zeros(20), "all zero"),
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
