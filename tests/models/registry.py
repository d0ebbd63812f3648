"""Every graph, coupling and method that the models are tested on.

A graph is declared once, with a forward pass in plain torch beside it and, from the states and
weights, its pre-activations in plain torch: what models give is held against these.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from liftednet import Network
from liftednet.activations import Clipped, Identity, ReLU, Sigmoid, Softplus, Tanh
from liftednet.layers import average_pooling, concatenate, convolution, delay, dense
from liftednet.losses import BinaryCrossEntropy, CrossEntropy, SimplexCrossEntropy, SquaredError
from liftednet.models import FullBatch, GaussNewton, Lifted, LiftedRNN, Minibatch

SAMPLES, STEPS = 12, 4
LAM, RHO = 0.8, 0.1
OPTIONS: dict[str, Any] = {"lam": LAM, "rho": RHO, "standardize": False, "dtype": torch.float64}
METHODS: dict[str, Any] = {
    "full": FullBatch(3, tolerance=1e-4),
    "minibatch": Minibatch(epochs=6, batch_size=4),
    "gauss-newton": GaussNewton(3),
}
LENGTHS = torch.tensor([4, 1, 3, 2] * 3)


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


ROWS = _normal(SAMPLES, 4)
LABELS = torch.arange(SAMPLES) % 3
TARGETS = torch.stack([ROWS[:, 0] * ROWS[:, 1], ROWS[:, 2].sin()], 1)
CLASSES = torch.stack([LABELS == 0, LABELS < 2], 1).double()
SEQUENCES = _normal(SAMPLES, STEPS, 2)
STEP_LABELS = (SEQUENCES[..., 0].cumsum(1) > 0).long() + (SEQUENCES[..., 1] > 1).long()
KERNELS = (2, 3, 3), (3, 2, 2)
States = list[Tensor]
Parts = Any  # the weights of all layers


@dataclass(frozen=True)
class Graph:
    """A small network, its data, and what plain torch makes of it.

    Attributes:
        name: what the tests call it.
        network: returns it, or a model with a builder of its own.
        x: one array, or one for each input.
        y: likewise for each loss.
        above: (x, states, weights) -> the pre-activations of all states, then of all losses, each
            of the shape of what they are coupled to; with states of the network's forward order.
        lengths: of sequences, or None.
        refused: the pairs of coupling and method that are refused at the door, with words of why.
    """

    name: str
    network: Callable[[], Network]
    x: Any
    y: Any
    above: Callable[[Any, States, Parts], list[Tensor]]
    lengths: Tensor | None = None
    refused: tuple[tuple[str, str, str], ...] = ()
    build: Callable[..., Lifted] | None = None

    def model(self, coupling: str, method: Any, **options: Any) -> Lifted:
        """Return a model to train by a method, or one of a name."""
        given = {"method": METHODS.get(method, method), "divergence": coupling, **options}
        if self.build is not None:
            return self.build(**given)
        return Lifted(self.network(), **{**OPTIONS, **given})

    def __str__(self) -> str:
        return self.name


# What no graph allows: see `methods`.
_JOINT = (("joint", "gauss-newton", "tight"),)
_OUTPUT_STATES = (("tight", "gauss-newton", "last pre-activation|SimplexProjection"), *_JOINT)
_BOUNDS = (("tight", "gauss-newton", "bounds"), ("joint", "gauss-newton", "tight|bounds"))


def _chain() -> Network:
    network = Network()
    h = network.state(Tanh(), dense(network.input(4), 5))
    g = network.state(ReLU(), dense(h, 4))
    network.loss(CrossEntropy(), dense(g, 3))
    return network


def _chain_above(x: Tensor, z: States, w: Parts) -> list[Tensor]:
    return [below @ layer.matrix + layer.bias for below, layer in zip((x, *z), w, strict=True)]


def _one_layer(activation: Any, loss: Any, units: int, bias: bool = True, **how: Any) -> Network:
    network = Network()
    h = network.state(activation, dense(network.input(4), 5, bias=bias), **how)
    network.loss(loss, dense(h, units))
    return network


_bare = partial(_one_layer, Softplus(), SquaredError(), 2, bias=False)
_simplex = partial(_one_layer, ReLU(), SimplexCrossEntropy(), 3)
_bounded = partial(_one_layer, ReLU(), CrossEntropy(), 3, bounds=(0.1, 1.0))
_binary = partial(_one_layer, Identity(), BinaryCrossEntropy(), 2)


def _bare_above(x: Tensor, z: States, w: Parts) -> list[Tensor]:
    return [x @ w[0].matrix, z[0] @ w[1].matrix + w[1].bias]


def _two_of_each() -> Network:
    """Two inputs, two losses, and two layers of the same weights."""
    network = Network()
    x, y = network.input(4), network.input(2)
    first = dense(x, 4)
    h = network.state(Tanh(), first + dense(y, 4, bias=False))
    g = network.state(Tanh(), dense(h, 4, weights=first.weights))
    network.loss(CrossEntropy(), dense(concatenate(g, y), 3))
    network.loss(SquaredError(), dense(g, 2), weight=0.5)
    return network


def _two_of_each_above(x: Any, z: States, w: Parts) -> list[Tensor]:
    shared, other, classes, numbers = w
    first, second = (below @ shared.matrix + shared.bias for below in (x[0], z[0]))
    both = torch.cat([z[1], x[1]], 1)
    above = [both @ classes.matrix + classes.bias, z[1] @ numbers.matrix + numbers.bias]
    return [first + x[1] @ other.matrix, second, *above]


def _images() -> Network:
    network = Network()
    h = network.state(ReLU(), convolution(network.input(2, 5, 4), 3, 3, padding=1))
    pooled = average_pooling(h, 2, stride=1)
    g = network.state(Sigmoid(), convolution(pooled, 4, 2, stride=2, bias=False))
    network.loss(CrossEntropy(), dense(g, 3))
    return network


def _images_above(x: Tensor, z: States, w: Parts) -> list[Tensor]:
    kernels = [layer.matrix.T.reshape(-1, *shape) for layer, shape in zip(w, KERNELS, strict=False)]
    first = functional.conv2d(x, kernels[0], w[0].bias, padding=1)
    pooled = functional.avg_pool2d(z[0].reshape(-1, 3, 5, 4), 2, 1)
    second = functional.conv2d(pooled, kernels[1], stride=2)
    return [first.flatten(1), second.flatten(1), z[1] @ w[2].matrix + w[2].bias]


def _before(z: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(z[:1]), z[:-1]])


def _recurrent() -> Network:
    network = Network()
    x = network.input(2, sequence=True)
    h = network.state(ReLU(), units=3)
    h.of(dense(concatenate(delay(h), x), 3))
    network.loss(CrossEntropy(), dense(h, 3))
    return network


def _recurrent_above(x: Tensor, z: States, w: Parts) -> list[Tensor]:
    first = torch.cat([_before(z[0]), x.transpose(0, 1)], -1) @ w[0].matrix + w[0].bias
    return [first, z[0] @ w[1].matrix + w[1].bias]


def _gated() -> Network:
    network = Network()
    x = network.input(2, sequence=True)
    h = network.state(Clipped(-1.0, 1.0), units=2)
    gate = network.state(Sigmoid(), dense(concatenate(delay(h), x), 2))
    fresh = network.state(Tanh(), dense(concatenate(delay(h), x), 2))
    h.of(gate * delay(h) + (1 - gate) * fresh)
    network.loss(CrossEntropy(), dense(h, 3))
    return network


def _gated_above(x: Tensor, z: States, w: Parts) -> list[Tensor]:
    (gate, fresh, h), (one, two, last) = z, w  # h comes after what it is made of
    seen = torch.cat([_before(h), x.transpose(0, 1)], -1)
    mixed = gate * _before(h) + (1 - gate) * fresh
    u = [seen @ one.matrix + one.bias, seen @ two.matrix + two.bias, mixed]
    return [*u, h @ last.matrix + last.bias]


def _simplex_above(x: Tensor, z: States, w: Parts) -> list[Tensor]:
    first, last = _chain_above(x, z[:1], w)
    return [first, last, last]  # of the output states, and of their loss


def _both_directions(**options: Any) -> Lifted:
    return LiftedRNN(
        2, (3, 2), 3, Tanh(), lam=LAM, rho=RHO, bidirectional=True, learn_initial_state=True,
        **{"start": "orthogonal", "standardize": False, **options},
    )  # fmt: skip


def _both_directions_above(x: Tensor, z: States, w: Parts) -> list[Tensor]:
    """Return pre-activations of forward and backward cells, a step before all first."""
    below, found = x.transpose(0, 1), []
    for layer in range(2):
        seen = []
        for number in (2 * layer, 2 * layer + 1):
            cell, states = w[number], z[number]
            own = _turned(below) if number % 2 else below
            longer = torch.cat([torch.zeros_like(own[:1]), own])
            first = torch.zeros_like(longer[..., :1])
            first[0] = 1
            found.append(torch.cat([_before(states), longer, first], -1) @ cell.matrix + cell.bias)
            seen.append(_turned(states[1:]) if number % 2 else states[1:])
        below = torch.cat(seen, -1)
    return [*found, below @ w[-1].matrix + w[-1].bias]


def _turned(rows: Tensor) -> Tensor:
    turned = rows.clone()
    for sample, length in enumerate(LENGTHS.tolist()):
        turned[:length, sample] = rows[:length, sample].flip(0)
    return turned


GRAPHS = (
    Graph("chain", _chain, ROWS, LABELS, _chain_above, refused=_JOINT),
    Graph("without a bias", _bare, ROWS, TARGETS, _bare_above, refused=_JOINT),
    Graph("two of each", _two_of_each, (ROWS, TARGETS), (LABELS, TARGETS), _two_of_each_above,
          refused=_JOINT),
    Graph("images", _images, _normal(SAMPLES, 2, 5, 4), LABELS, _images_above, refused=_JOINT),
    Graph("recurrent", _recurrent, SEQUENCES, STEP_LABELS, _recurrent_above, refused=_JOINT),
    Graph("both directions", Network, SEQUENCES, STEP_LABELS, _both_directions_above, LENGTHS,
          _JOINT, _both_directions),
    Graph("gated", _gated, SEQUENCES, STEP_LABELS, _gated_above, refused=_JOINT),
    Graph("output states", _simplex, ROWS, LABELS, _simplex_above, refused=_OUTPUT_STATES),
    Graph("bounded states", _bounded, ROWS, LABELS, _chain_above, refused=_BOUNDS),
    Graph("binary labels", _binary, ROWS, CLASSES, _chain_above),
)  # fmt: skip

BY_NAME = {graph.name: graph for graph in GRAPHS}
PAIRS = tuple((coupling, method) for coupling in ("tight", "joint") for method in METHODS)
REFUSED = tuple((graph, *pair) for graph in GRAPHS for pair in graph.refused)
SERVED = tuple(
    (graph, *pair)
    for graph in GRAPHS
    for pair in PAIRS
    if pair not in {(coupling, method) for coupling, method, _ in graph.refused}
)
