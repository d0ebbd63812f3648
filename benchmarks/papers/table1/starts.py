"""The starts that Table 1 of Lifted Neural Networks compares, and those it lacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from liftednet.activations import ReLU, Softmax
from liftednet.command import demo_starts as starts
from liftednet.command.demo_starts import Layers, drawn_weights
from liftednet.data import Classification
from liftednet.export import to_torch
from liftednet.models import LiftedMLP, Minibatch
from liftednet.problems import Weights
from liftednet.solvers import GeneralizedLinear

PAPER_BIAS = 0.1  # of every start but the lifted one (Table 1)
SMOOTHING = 0.1  # of the labels that the lifted network is fitted to
LAM = 10.0
RHO = 1e-6
RATE = 0.3
_CONTROL_BATCH, _CONTROL_RATE = 100, 1e-3
_HEAD_RHO = 1.0  # on the sum of the losses
_HEAD = GeneralizedLinear(tolerance=1e-3, max_iterations=200)
_LSUV_SAMPLES = 1_000
_SWIM_CANDIDATES = 3  # pairs of samples that are drawn for one unit that is kept

Weighted = list[Weights]
Start = Callable[[Classification, tuple[int, ...], int], Weighted]


def network_from(weights: Weighted) -> nn.Sequential:
    """Return the ReLU network with copies of these weights, ending with logits."""
    hidden = [ReLU()] * (len(weights) - 1)
    return to_torch(Layers(weights, [*hidden, Softmax()]), logits=True)  # type: ignore[no-any-return]


def drawn(name: str, bias: float = 0.0) -> Start:
    """Return the start that draws every layer by itself."""
    return lambda data, sizes, seed: drawn_weights(sizes, name, seed, bias)


def unit_variance(data: Classification, sizes: tuple[int, ...], seed: int) -> Weighted:
    """Return orthogonal layers scaled to outputs of variance 1 (LSUV; Mishkin, Matas, 2016)."""
    generator = torch.Generator().manual_seed(seed)
    x = data.x_train[torch.randperm(len(data.x_train), generator=generator)[:_LSUV_SAMPLES]]
    layers = []
    for inputs, units in pairwise(sizes):
        matrix = nn.init.orthogonal_(torch.empty(inputs, units), generator=generator)
        layers.append(Weights(matrix / (x @ matrix).std(), torch.zeros(units)))
        x = layers[-1].apply(x).clamp(min=0)
    return layers


def fitted_head(data: Classification, sizes: tuple[int, ...], seed: int) -> Weighted:
    """Return Kaiming hidden layers, and the output layer by one convex problem: the control."""
    layers = drawn("kaiming")(data, sizes, seed)
    return [*layers[:-1], _head(data, _features(layers[:-1], data.x_train))]


def trained_as_long(epochs: int) -> Start:
    """Return what Adam makes of Kaiming in as many passes, the rate falling to 0: a control."""

    def start(data: Classification, sizes: tuple[int, ...], seed: int) -> Weighted:
        network = network_from(drawn("kaiming")(data, sizes, seed))
        order, loss = torch.Generator().manual_seed(seed), nn.CrossEntropyLoss()
        optimizer = torch.optim.Adam(network.parameters(), _CONTROL_RATE)
        length = epochs * -(-len(data.x_train) // _CONTROL_BATCH)
        falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1e-3, length)
        for _ in range(epochs):
            for rows in starts.shuffled(len(data.x_train), _CONTROL_BATCH, order):
                optimizer.zero_grad()
                loss(network(data.x_train[rows]), data.y_train[rows]).backward()
                optimizer.step()
                falling.step()
        return [
            Weights(layer.weight.detach().T.contiguous(), layer.bias.detach())
            for layer in network
            if isinstance(layer, nn.Linear)
        ]

    return start


def sampled_where_it_matters(data: Classification, sizes: tuple[int, ...], seed: int) -> Weighted:
    """Return hidden units between pairs of samples (SWIM; Bolager et al., 2023), the head fitted.

    A unit is (x_2 - x_1) / |x_2 - x_1|^2 with bias -<w, x_1>; pairs of different classes are drawn
    with a probability that falls with their distance.
    """
    generator = torch.Generator().manual_seed(seed)
    layers: Weighted = []
    for units in sizes[1:-1]:
        layers.append(_between(_features(layers, data.x_train), data.y_train, units, generator))
    return [*layers, _head(data, _features(layers, data.x_train))]


def lifted(epochs: int, rate: float = RATE) -> Start:
    """Return the start from a lifted network that makes some passes over the data."""

    def start(data: Classification, sizes: tuple[int, ...], seed: int) -> Weighted:
        model = lifted_network(sizes, epochs, seed, rate)
        model.fit(data.x_train, smoothed(data.y_train, data.classes))
        return list(model.weights)

    return start


def lifted_network(sizes: tuple[int, ...], epochs: int, seed: int, rate: float = RATE) -> LiftedMLP:
    """Return the lifted network of every table here, not yet fitted."""
    method = Minibatch(epochs=epochs, rate=rate)
    return LiftedMLP(sizes, lam=LAM, rho=RHO, method=method, seed=seed)


def smoothed(labels: Tensor, classes: int) -> Tensor:
    """Return class probabilities that leave 0.1 to all classes alike, (samples, classes)."""
    return nn.functional.one_hot(labels, classes) * (1 - SMOOTHING) + SMOOTHING / classes


@dataclass(frozen=True)
class NamedStart:
    """A start as a table shows it."""

    name: str
    start: Start


def paper_starts(epochs: int) -> list[NamedStart]:
    """Return the four starts of Table 1, the lifted one trained for some epochs."""
    return [
        NamedStart("normal", drawn("normal", PAPER_BIAS)),
        NamedStart("Xavier", drawn("xavier", PAPER_BIAS)),
        NamedStart("variance scaling", drawn("variance-scaling", PAPER_BIAS)),
        NamedStart("lifted", lifted(epochs)),
    ]


def practical_starts(epochs: int, rate: float = RATE) -> list[NamedStart]:
    """Return what a practitioner would use, the controls, and the lifted start."""
    return [
        NamedStart("Kaiming", drawn("kaiming")),
        NamedStart("LSUV", unit_variance),
        NamedStart("Kaiming, fitted head", fitted_head),
        NamedStart("SWIM", sampled_where_it_matters),
        NamedStart("Kaiming, Adam as long", trained_as_long(epochs)),
        NamedStart("lifted", lifted(epochs, rate)),
    ]


def _features(layers: Weighted, x: Tensor) -> Tensor:
    for layer in layers:
        x = layer.apply(x).clamp(min=0)
    return x


def _head(data: Classification, features: Tensor) -> Weights:
    return starts.fitted_head(features, data.y_train, data.classes, _HEAD_RHO, _HEAD)


def _between(x: Tensor, labels: Tensor, units: int, generator: torch.Generator) -> Weights:
    drawn_pairs = torch.randint(len(x), (2, _SWIM_CANDIDATES * units), generator=generator)
    first, second = drawn_pairs
    apart = x[second] - x[first]
    squared = apart.square().sum(1).clamp(min=1e-6)
    chance = (labels[first] != labels[second]) / squared.sqrt() + 1e-12
    kept = torch.multinomial(chance, units, generator=generator)
    matrix = (apart[kept] / squared[kept].unsqueeze(1)).T.contiguous()
    return Weights(matrix, -(x[first[kept]] * matrix.T).sum(1))
