"""Real trainings: regressions, and matrices of a ReLU network on MNIST after an epoch of Adam."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from sklearn.datasets import (
    load_diabetes,
    load_linnerud,
    make_friedman1,
    make_friedman2,
    make_friedman3,
)
from torch import Tensor, nn

from benchmarks.data.mnist import mnist
from benchmarks.harness.opponents import dense_network

_DIGITS, _BATCH, _RATE = 20_000, 200, 1e-3


@dataclass(frozen=True)
class Trained:
    """A two-hidden-layer network and its data, all in float64.

    Attributes:
        weight: from the first hidden layer to the second, (units, above).
        bias: of the second, (above,).
        inner: pre-activations of the first, (samples, units).
        outer: states of the second after its own fit to the labels, (samples, above).
    """

    weight: Tensor
    bias: Tensor
    inner: Tensor
    outer: Tensor


def regressions() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return inputs and answers of five regressions."""
    return {
        "diabetes": load_diabetes(return_X_y=True),
        "linnerud": load_linnerud(return_X_y=True),
        "Friedman 1": make_friedman1(1_000, noise=1.0, random_state=0),
        "Friedman 2": make_friedman2(1_000, noise=100.0, random_state=0),
        "Friedman 3": make_friedman3(1_000, noise=0.1, random_state=0),
    }


@cache
def digits() -> tuple[Tensor, Tensor]:
    data = mnist()
    return data.x_train.reshape(len(data.x_train), -1).float(), data.y_train


@cache
def network(units: int, above: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    torch.manual_seed(0)
    x, y = digits()
    net = dense_network(784, units, above, 10, activation=activation)
    optimizer = torch.optim.Adam(net.parameters(), _RATE)
    for first in range(0, _DIGITS, _BATCH):
        part = slice(first, first + _BATCH)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[part]), y[part]).backward()
        optimizer.step()
    return net


@cache
def trained(units: int, above: int) -> Trained:
    x, y = digits()
    net = network(units, above)
    with torch.no_grad():
        inner = net[0](x)
        outer = net[:4](x).double()
        head = net[4].weight.double().T
        label = 5 * nn.functional.one_hot(y, 10).double() - net[4].bias.double()
        gram = torch.eye(above).double() + head @ head.T
        moved = torch.linalg.solve(gram, (outer + label @ head.T).T).T.clamp(min=0)
        return Trained(net[2].weight.double().T, net[2].bias.double(), inner.double(), moved)
