"""Section 6 of Lifted Neural Networks: which order of the blocks of eq. (10) falls fastest?

A 64-50-30-20-10 network with ReLU, joint divergences (eq. 5) and the cross-entropy on the digits of
scikit-learn, lam = 1, rho = .1, one start by a forward pass a seed. Every block is solved exactly.

- layer by layer: W_1, X_1, W_2, X_2, ..., each with the newest others;
- weights, then states (6.1 and 6.2): the weights of all layers, of which none sees another, then
  the states of one layer after the other, (13);
- weights, then all states: the same with the states of all layers in one convex problem, by
  L-BFGS-B (SciPy) to a projected gradient of 1e-3 over the largest entry.

Objective, test accuracy of the forward pass and processor seconds after sweeps; and what two
threads take of the wall time of one for the weights of all layers. Run it with `OMP_NUM_THREADS=1
python -m benchmarks.papers.order_of_blocks`, five minutes; written to
results/order-of-blocks/README.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from benchmarks.harness.report import Table, write_report
from liftednet.activations import ReLU
from liftednet.data import digits
from liftednet.divergences import Divergence, joint
from liftednet.losses import CrossEntropy
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import Design, Link, StateFit, WeightFit, Weights
from liftednet.solvers import solve

SIZES, LAM, RHO, SEEDS, SWEEPS = (64, 50, 30, 20, 10), 1.0, 0.1, (0, 1, 2), (1, 5, 20)
DATA = digits()


class Network:
    """States and weights of eq. (10), and the fits of its blocks."""

    def __init__(self, seed: int) -> None:
        """Begin at a forward pass."""
        generator = torch.Generator().manual_seed(seed)
        self.weights, self.states = list[Weights](), [DATA.x_train.double()]
        for inputs, units in pairwise(SIZES):
            matrix = torch.randn(inputs, units, generator=generator, dtype=torch.float64)
            self.weights.append(Weights(matrix * (2 / inputs) ** 0.5, torch.zeros(units).double()))
            self.states.append(self.weights[-1].apply(self.states[-1]).relu())
        self.states[-1] = CrossEntropy().encode(DATA.y_train, SIZES[-1]).double()
        self.last = len(self.weights) - 1

    def divergence(self, layer: int) -> Divergence:
        """Return that between the states of a layer and their pre-activations."""
        return CrossEntropy().divergence if layer == self.last else joint(ReLU())

    def lam(self, layer: int) -> float:
        """Return its weight: 1 for the loss."""
        return 1.0 if layer == self.last else LAM

    def fit_weights(self, layer: int) -> Weights:
        """Return the weights that fit the states around them; it sees no other weights."""
        fit = WeightFit(self.divergence(layer), Design(self.states[layer]),
                        self.states[layer + 1], SquaredFrobenius(RHO), self.lam(layer))  # fmt: skip
        found: Weights = solve(fit).value
        return found

    def fit_states(self, layer: int) -> Tensor:
        """Return the states below a layer, (13)."""
        above, below = self.weights[layer], self.weights[layer - 1]
        assert above.bias is not None
        link = Link(self.divergence(layer), above.matrix, above.bias, self.states[layer + 1],
                    self.lam(layer))  # fmt: skip
        u = below.apply(self.states[layer - 1])
        found: Tensor = solve(StateFit(joint(ReLU()), u, (link,), LAM)).value
        return found

    def value(self, states: list[Tensor]) -> Tensor:
        """Return the objective at other states, in torch."""
        total = RHO * torch.stack([x.matrix.square().sum() for x in self.weights]).sum()
        for layer, weights in enumerate(self.weights):
            divergence = self.divergence(layer)
            u = weights.apply(states[layer])
            total = total + self.lam(layer) * divergence.value(states[layer + 1], u)
        return total

    def fit_all_states(self) -> list[Tensor]:
        """Return the states of all layers, which are convex together."""
        inner = self.states[1:-1]
        sizes = [x.numel() for x in inner]

        def value(flat: np.ndarray) -> tuple[float, np.ndarray]:
            point = torch.from_numpy(flat).requires_grad_()
            parts = [x.view_as(like) for x, like in zip(point.split(sizes), inner, strict=True)]
            total = self.value([self.states[0], *parts, self.states[-1]])
            (slope,) = torch.autograd.grad(total, point)
            return float(total.detach()), slope.numpy()

        start = torch.cat([x.flatten() for x in inner]).numpy()
        scale = 1e-3 * float(np.abs(value(start)[1]).max())
        found = minimize(value, start, jac=True, method="L-BFGS-B", bounds=[(0, None)] * len(start),
                         options={"gtol": scale, "ftol": 0, "maxiter": 500})  # fmt: skip
        parts = torch.from_numpy(found.x).split(sizes)
        return [x.view_as(like) for x, like in zip(parts, inner, strict=True)]


def layer_by_layer(network: Network) -> None:
    for layer in range(len(network.weights)):
        network.weights[layer] = network.fit_weights(layer)
        if layer < network.last:
            network.states[layer + 1] = network.fit_states(layer + 1)


def weights_then_states(network: Network) -> None:
    network.weights = [network.fit_weights(layer) for layer in range(len(network.weights))]
    for layer in range(1, len(network.weights)):
        network.states[layer] = network.fit_states(layer)


def weights_then_all_states(network: Network) -> None:
    network.weights = [network.fit_weights(layer) for layer in range(len(network.weights))]
    network.states[1:-1] = network.fit_all_states()


ORDERS: dict[str, Callable[[Network], None]] = {
    "layer by layer": layer_by_layer,
    "weights, then states": weights_then_states,
    "weights, then all states": weights_then_all_states,
}


def accuracy(network: Network) -> float:
    """Return that of the forward pass on test samples."""
    rows = DATA.x_test.double()
    for weights in network.weights[:-1]:
        rows = weights.apply(rows).relu()
    right = network.weights[-1].apply(rows).argmax(1) == DATA.y_test
    return float(right.double().mean())


def rows() -> Iterator[list[str]]:
    """Yield the rows of the table."""
    for name, sweep in ORDERS.items():
        cells = dict[int, list[tuple[float, float, float]]]()
        for seed in SEEDS:
            network, seconds, before = Network(seed), 0.0, float("inf")
            for number in range(1, max(SWEEPS) + 1):
                began = time.process_time()
                sweep(network)
                seconds += time.process_time() - began
                objective = float(network.value(network.states))
                assert objective <= before * (1 + 1e-6), f"{name} rises in sweep {number}"
                before = objective
                if number in SWEEPS:
                    cells.setdefault(number, []).append((objective, accuracy(network), seconds))
        means = [[fmean(x) for x in zip(*cells[number], strict=True)] for number in SWEEPS]
        yield [name, *(f"{a:.1f}, {b:.3f} ({c:.1f} s)" for a, b, c in means)]


def at_once() -> str:
    """Return what two threads take of the time of one for the weights of all layers."""
    network, layers, ratios = Network(0), range(len(SIZES) - 1), list[float]()
    with ThreadPoolExecutor(2) as pool:
        for _ in range(7):
            began = time.perf_counter()
            list(map(network.fit_weights, layers))
            middle = time.perf_counter()
            list(pool.map(network.fit_weights, layers))
            ratios.append((time.perf_counter() - middle) / (middle - began))
    return f"{sorted(ratios)[3]:.2f} (of seven turns {min(ratios):.2f} to {max(ratios):.2f})"


def main() -> None:
    """Run all orders, and write the report."""
    torch.set_num_threads(1)
    columns = ["order", *(f"{n} sweeps: objective, test accuracy" for n in SWEEPS)]
    notes = [
        "Means of three seeds; processor seconds of one thread on a busy machine. No sweep raises "
        "an objective.",
        f"Two threads take {at_once()} of the wall time of one for the weights of all layers.",
    ]
    table = Table("Orders of the blocks", columns, list(rows()), notes)
    print(write_report(Path("results/order-of-blocks"), "Section 6: orders of the blocks",
                       [("orders", table)]))  # fmt: skip


if __name__ == "__main__":
    main()
