"""Declare an activation, train a network, export it, and compare starts of a torch network.

Run it with `OMP_NUM_THREADS=1 python -m benchmarks.demo`, a minute; with `--write` the table goes
to benchmarks/results/demo.md, from which `python -m benchmarks.prose` takes that of
docs/torch_network.md. The control is a Kaiming start whose output layer alone is fitted, by one
convex problem, which Lifted Neural Networks, Table 1 and Figure 2, lack.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from benchmarks.data.mnist import mnist
from benchmarks.harness.report import write
from liftednet.activation import Activation
from liftednet.check import check_activation
from liftednet.data import Classification, digits
from liftednet.export import to_torch
from liftednet.losses import CrossEntropy
from liftednet.models import LiftedMLP, Minibatch
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import Design, WeightFit
from liftednet.solvers import solve

LIFTED, KAIMING, FITTED_OUTPUT = "lifted", "Kaiming", "Kaiming with fitted output"


def square_plus(v: Tensor) -> Tensor:
    """Return Phi(v) = v^2 / 2 - log v, of phi(u) = (u + sqrt(u^2 + 4)) / 2 (Barron, 2021)."""
    return v.square() / 2 - v.log()


@dataclass(frozen=True)
class Plan:
    """What the demo runs on a data set; numbers were the best of four on validation samples.

    Attributes:
        hidden: units of the hidden layer.
        lam: weight of the divergences of the lifted network.
        rho: weight of its squared Frobenius norms.
        passes: over the data, of the lifted network.
        output_rho: weight of the squared Frobenius norm of an output layer fitted by itself.
        rate: of Adam, which trains the torch networks.
        epochs: of Adam.
        batch: samples of a step of Adam.
    """

    hidden: int
    lam: float
    rho: float
    passes: int
    output_rho: float
    rate: float
    epochs: int
    batch: int


PLANS = {
    "digits": Plan(50, 0.1, 0.01, 1, output_rho=0.1, rate=1e-2, epochs=20, batch=50),
    "mnist": Plan(100, 10.0, 0.1, 3, output_rho=0.1, rate=3e-3, epochs=12, batch=200),
}


@dataclass(frozen=True)
class Curve:
    """Test accuracy before training and after every epoch, from one start.

    Attributes:
        start: its name.
        seed: of the start and of the order of the batches.
        accuracy: epochs + 1 numbers.
        seconds: processor time that the start itself took.
    """

    start: str
    seed: int
    accuracy: tuple[float, ...]
    seconds: float


def run(name: str, seeds: int) -> Table:
    """Run the demo, print what it finds, and return its table."""
    torch.set_num_threads(1)  # the matrices are small: a second thread slows them down
    console, plan = Console(), PLANS[name]
    console.rule("1. Declare an activation, and check the declaration")
    console.print(check_activation(Activation.from_potential(square_plus, 0.0)))
    console.rule("2. Train a lifted network, and export it")
    found = digits() if name == "digits" else mnist()
    model = lifted(found, plan, seed=0)
    console.print(f"{model!r}, {len(found.y_train)} samples to train on")
    model.fit(found.x_train, found.y_train, progress=True)
    exported = to_torch(model)
    with torch.no_grad():
        difference = float((exported(found.x_test) - model.forward(found.x_test)).abs().max())
    right = float((model.predict(found.x_test) == found.y_test).double().mean())
    console.print(f"test accuracy {right:.3f}; exported, with a difference of {difference:.1e}:")
    console.print(repr(exported))
    console.rule("3. Train the torch network from this start and from others")
    curves = list(track(compare(found, plan, range(seeds)), "starts", total=3 * seeds))
    console.print(shown := table(curves))
    return shown


# Starts of a torch network, and its training from them.


def lifted(data: Classification, plan: Plan, seed: int) -> LiftedMLP:
    """Return the lifted network of a plan, not yet fitted."""
    return LiftedMLP(
        (data.x_train.shape[1], plan.hidden, data.classes), lam=plan.lam, rho=plan.rho,
        method=Minibatch(epochs=plan.passes), refit_output=True, seed=seed,
    )  # fmt: skip


def kaiming(data: Classification, plan: Plan, seed: int) -> nn.Sequential:
    """Return the network with normal weights of variance 2 / inputs, and no biases."""
    hidden = nn.Linear(data.x_train.shape[1], plan.hidden)
    output = nn.Linear(plan.hidden, data.classes)
    generator = torch.Generator().manual_seed(seed)
    for layer in (hidden, output):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(hidden, nn.ReLU(), output)


def fit_output(network: nn.Sequential, data: Classification, rho: float) -> nn.Sequential:
    """Give a network the output layer that is best behind its hidden layer, and return it.

    min over W, b of the cross-entropy on the hidden features + rho |W|_F^2.
    """
    loss, output = CrossEntropy(), network[-1]
    assert isinstance(output, nn.Linear)
    with torch.no_grad():
        features = network[:-1](data.x_train)
        target = loss.encode(data.y_train, data.classes).to(features)
        fit = WeightFit(loss.divergence, Design(features), target, SquaredFrobenius(rho))
        found = solve(fit).value
        output.weight.copy_(found.matrix.T)
        output.bias.copy_(found.bias)
    return network


def compare(data: Classification, plan: Plan, seeds: Sequence[int]) -> Iterator[Curve]:
    """Train the network by Adam from every start and with every seed.

    Runs of one seed share the order of their batches.

    Yields:
        A curve as soon as it is finished.
    """
    for seed in seeds:
        for name in (LIFTED, KAIMING, FITTED_OUTPUT):
            since = time.process_time()
            if name == LIFTED:
                model = lifted(data, plan, seed).fit(data.x_train, data.y_train)
                network = to_torch(model, logits=True)
            else:
                network = kaiming(data, plan, seed)
                if name == FITTED_OUTPUT:
                    fit_output(network, data, plan.output_rho)
            seconds = time.process_time() - since
            adam, loss = torch.optim.Adam(network.parameters(), plan.rate), nn.CrossEntropyLoss()
            passes = islice(epochs_of(network, data, adam, loss, plan.batch, seed), plan.epochs)
            found = [accuracy(network, data), *(accuracy(network, data) for _ in passes)]
            yield Curve(name, seed, tuple(found), seconds)


def accuracy(network: nn.Module, data: Classification) -> float:
    """Return the share of test samples whose largest output is at their label."""
    with torch.no_grad():
        return float((network(data.x_test).argmax(-1) == data.y_test).double().mean())


def epochs_of(
    network: nn.Module,
    data: Classification,
    optimizer: torch.optim.Optimizer,
    loss: nn.Module,
    batch: int,
    seed: int,
) -> Iterator[None]:
    """Train without end, in an order that the seed gives; yield after every epoch."""
    order = torch.Generator().manual_seed(seed)
    while True:
        for rows in torch.randperm(len(data.y_train), generator=order).split(batch):
            optimizer.zero_grad()
            loss(network(data.x_train[rows]), data.y_train[rows]).backward()
            optimizer.step()
        yield


def table(curves: Sequence[Curve]) -> Table:
    """Return test accuracy before training, after one epoch and at the end: mean and deviation."""
    last = len(curves[0].accuracy) - 1
    seeds = len({curve.seed for curve in curves})
    shown = Table("start", "made in", "untrained", "1 epoch", f"{last} epochs",
                  title=f"Test accuracy, mean and standard deviation of {seeds} seeds")  # fmt: skip
    for start in (LIFTED, KAIMING, FITTED_OUTPUT):
        seconds = statistics.fmean(curve.seconds for curve in curves if curve.start == start)
        found = [_at(curves, start, epoch) for epoch in (0, 1, last)]
        cells = [f"{statistics.fmean(x):.3f} ± {statistics.stdev(x):.3f}" for x in found]
        shown.add_row(start, f"{seconds:.2f} s", *cells)
    return shown


def _at(curves: Sequence[Curve], start: str, epoch: int) -> list[float]:
    """Return the accuracy after an epoch, one number for each seed."""
    return [curve.accuracy[epoch] for curve in curves if curve.start == start]


def main() -> None:
    """Run the demo on data with so many seeds, and write its table where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=list(PLANS), default="digits")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    shown = run(given.data, given.seeds)
    if given.write:
        rows = [[str(column.header) for column in shown.columns]]
        rows.append(["---"] * len(shown.columns))
        rows += map(list, zip(*(map(str, column.cells) for column in shown.columns), strict=True))
        lines = [f"| {' | '.join(row)} |" for row in rows]
        write("demo", "The demo", f"{shown.title}.", lines)


if __name__ == "__main__":
    main()
