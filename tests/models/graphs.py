"""Networks of every kind that the tests of files and exports share."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from liftednet import Network
from liftednet.activations import ReLU, Sigmoid, Tanh
from liftednet.layers import Layer, apply, concatenate, convolution, dense
from liftednet.losses import BinaryCrossEntropy, CrossEntropy
from liftednet.models import FullBatch, Lifted, Minibatch
from tests.draws import normal
from tests.models.registry import BY_NAME

SAMPLES, STEPS = 12, 5


@dataclass(frozen=True)
class Outer(Layer):
    """A layer of a user: u = (x * scale) W with the weights doubled, and no bias."""

    units: int
    scale: float = 0.5

    def shape(self, *shapes):
        return (self.units,)

    def weight_shape(self, *shapes):
        return (shapes[0][0], self.units)

    def value(self, arguments, weights):
        return (self.scale * arguments[0]) @ (2 * weights.matrix)


def residual(but: str = "") -> Network:
    """Return a network of two states, but for one thing."""
    network = Network()
    h = network.state(ReLU(), dense(network.input(4), 5, bias=but != "bias"))
    top = Sigmoid() if but == "activation" else Tanh()
    g = network.state(top, 0.5 * dense(h, 5, bias=False) + h)
    features = network.state(top, dense(g, 5)) if but == "state" else g
    loss = BinaryCrossEntropy() if but == "loss" else CrossEntropy()
    network.loss(loss, dense(concatenate(h, features), 3))
    return network


def grouped() -> Network:
    network = Network()
    x = network.input(4, 6, 5)
    layer = convolution(x, 6, (3, 2), stride=(2, 1), padding=2, dilation=2, groups=2)
    h = network.state(ReLU(), layer)
    network.loss(CrossEntropy(), dense(h, 3))
    return network


def own_layer() -> Network:
    network = Network()
    x = network.input(4)
    h = network.state(ReLU(), apply(Outer(4), x))
    shared: Any = dense(x, 4)
    g = network.state(Tanh(), 1.0 - 0.5 * dense(h, 4, weights=shared.weights) + shared)
    network.loss(CrossEntropy(), dense(g, 3))
    return network


_OF_THE_REGISTRY = ("two of each", "images", "gated", "output states", "bounded states")
NETWORKS: dict[str, Callable[[], Network]] = {
    **{name: BY_NAME[name].network for name in _OF_THE_REGISTRY},
    **{function.__name__: function for function in (residual, grouped, own_layer)},
    "both_directions": lambda: BY_NAME["both directions"].model("tight", "full").network,
}


def data_for(network: Network, dtype: torch.dtype, last: bool = False) -> tuple[Any, Any]:
    """Return X and y for a network; labels of sequences for each step, or for the last."""
    drawn = partial(normal, seed=torch.Generator().manual_seed(3), dtype=dtype)
    leading = (SAMPLES, STEPS), (SAMPLES,)
    arrays = [drawn(*leading[not x.sequence], *x.shape) for x in network.inputs]
    sequence = network.terms[0].argument.sequence and not last
    labels = torch.arange(SAMPLES * STEPS).reshape(SAMPLES, STEPS) % 3
    targets: list[Tensor] = [labels if sequence else labels[:, 0]]
    targets += [drawn(SAMPLES, term.argument.units) for term in network.terms[1:]]
    x, y = (one[0] if len(one) == 1 else tuple(one) for one in (arrays, targets))
    return x, y


@cache
def fitted(name: str, dtype: torch.dtype = torch.float64, last: bool = False) -> tuple[Lifted, Any]:
    """Return a network after a sweep, in float32 after two epochs, and its X; not to be changed."""
    network = NETWORKS[name]()
    x, y = data_for(network, dtype, last)
    double = dtype is torch.float64
    method = FullBatch(1, extrapolation=False) if double else Minibatch(2, batch_size=6)
    model = Lifted(network, lam=1.0, rho=1e-3, method=method, standardize=False, dtype=dtype)
    return model.fit(x, y), x
