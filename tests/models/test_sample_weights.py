"""A sample of weight k is k samples, whatever the method, the coupling and the network."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from liftednet import Network
from liftednet.activations import Clipped, Tanh
from liftednet.errors import DataError
from liftednet.layers import average_pooling, convolution, dense
from liftednet.losses import CrossEntropy, SimplexCrossEntropy
from liftednet.models import FullBatch, GaussNewton, Lifted, LiftedMLP, LiftedRNN, Minibatch
from tests.models.networks import trace_of

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


BATCH = Minibatch(7, batch_size=100)  # one batch, whose order does not matter
MODELS: dict[str, tuple[Lifted, tuple[int, ...]]] = {
    "joint": (mlp("joint", EXACT), (6,)),
    "tight": (mlp("tight", EXACT), (6,)),
    "simplex": (mlp("joint", EXACT, SimplexCrossEntropy()), (6,)),
    "normal equations": (mlp("tight", GaussNewton(4, form="normal")), (6,)),
    "products": (mlp("tight", GaussNewton(4, form="products")), (6,)),
    "joint images": (convolutional("joint", EXACT), (1, 6, 1)),
    "tight images": (convolutional("tight", EXACT), (1, 6, 1)),
    "sequences": (
        LiftedRNN(2, 4, 3, lam=0.5, rho=0.1, divergence="joint", start="identity",
                  method=FullBatch(3, tolerance=1e-9, extrapolation=False), bidirectional=True),
        (7, 2),
    ),
    "batches": (mlp("tight", BATCH), (6,)),
    "batches, simplex": (mlp("tight", BATCH, SimplexCrossEntropy()), (6,)),
    "batches of sequences": (
        LiftedRNN(2, 4, 3, lam=0.5, divergence="tight", method=Minibatch(3, batch_size=100)),
        (7, 2),
    ),
    # 100 units of 15 samples, whose metric has 16 directions: steps do not follow rounding
    "batches of a low rank": (LiftedMLP((20, 100, 3), method=BATCH), (20,)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_weight_counts_how_often_a_sample_is_there(name: str) -> None:
    model, shape = MODELS[name]
    x, lengths = rows(*shape), torch.tensor([7, 3, 5, 7] * 5) if name == "sequences" else None
    found = []
    for kept, weights in ((torch.arange(20), WEIGHTS), (REPEATED, None)):
        own = None if lengths is None else lengths[kept]
        model.fit(x[kept], LABELS[kept], lengths=own, sample_weight=weights)
        found.append((trace_of(model).losses, [layer.matrix for layer in model.weights]))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    if isinstance(model.method, Minibatch):
        torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-7, atol=1e-9)


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
