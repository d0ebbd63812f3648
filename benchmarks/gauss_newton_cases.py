"""Networks that benchmarks/gauss_newton.py trains: echo, sum and timer sequences, a smooth map."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from benchmarks.data import timer
from liftednet import starts
from liftednet.activations import ReLU, Tanh
from liftednet.data import echo, running_sum
from liftednet.losses import CrossEntropy, SquaredError
from liftednet.solvers.gauss_newton.objective import Forward, Target, Tensors, joined, recurrence


def recurrent(weights: Tensors, data: Tensors) -> Tensors:
    cell, readout = weights
    drive = data[0].transpose(0, 1) @ cell[cell.shape[1] : -1] + cell[-1]
    states = recurrence(drive, cell[: cell.shape[1]], ReLU().forward)
    return ((states @ readout[:-1] + readout[-1]).transpose(0, 1),)


def feedforward(weights: Tensors, data: Tensors) -> Tensors:
    rows = data[0]
    for weight in weights[:-1]:
        rows = Tanh().forward(rows @ weight[:-1] + weight[-1])
    return ((rows @ weights[-1][:-1] + weights[-1][-1])[:, None],)


@dataclass(frozen=True)
class Case:
    """A network, its start, and how well it does on test data."""

    forward: Forward
    start: Tensor
    test: Callable[[Tensor], float]


def sequences(task: str, samples: int, seed: int, length: int = 100) -> tuple[Tensor, Tensor]:
    if task == "echo":
        return echo(samples, length, 4, 10, seed)
    if task == "sum":
        return running_sum(samples, length, seed)
    x, y = timer(samples, length, 20, seed=seed)
    return torch.cat([x[..., :1] / 20, x[..., 1:]], -1), y


def drawn(kind: str, sizes: tuple[int, int, int], seed: int) -> Tensor:
    inputs, hidden, outputs = sizes
    generator = torch.Generator().manual_seed(seed)
    square = starts.orthogonal(hidden, generator)
    if kind == "gaussian":
        square = starts.gaussian(hidden, 1.0, generator)
    below = torch.randn(inputs, hidden, generator=generator) / (inputs + hidden) ** 0.5
    above = torch.randn(hidden, outputs, generator=generator) / hidden**0.5
    none = torch.zeros(1, hidden), torch.zeros(1, outputs)
    return joined([torch.cat([square, below, none[0]]), torch.cat([above, none[1]])])


def problem(x: Tensor, y: Tensor, hidden: int, classes: int, rho: float) -> Forward:
    pull = (
        torch.full((hidden + x.shape[2] + 1, hidden), 2 * rho),
        torch.full((hidden + 1, classes), 2 * rho),
    )
    for part in pull:
        part[-1] = 0.0
    values = torch.nn.functional.one_hot(y, classes)
    counted = torch.ones(y.shape, dtype=torch.bool)
    target = Target(CrossEntropy().divergence, values, counted)
    return Forward(recurrent, (x, counted.sum(1)), (target,), pull, recurrent=ReLU())


def sequence_case(
    task: str, hidden: int, samples: int, length: int, seed: int = 0, restart: int = 0
) -> Case:
    classes, rho = (10, 3.0) if task == "echo" else (2, 0.1)
    x, y = sequences(task, samples, 2 * seed, length)
    forward = problem(x, y, hidden, classes, rho)
    kind = "gaussian" if task == "timer" else "orthogonal"
    start = drawn(kind, (x.shape[2], hidden, classes), seed + 1000 * restart)
    unseen, answers = sequences(task, 1000, 2 * seed + 1, length)

    def accuracy(point: Tensor) -> float:
        found = recurrent(forward.split(point), (unseen.double(),))[0].argmax(-1)
        return float((found == answers).double().mean())

    return Case(forward, start, accuracy)


def smooth_case(hidden: tuple[int, ...], samples: int, seed: int = 0) -> Case:
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(2, samples, 2, generator=generator, dtype=torch.float64) - 1
    y = (3 * x[..., 0]).sin() * (2 * x[..., 1]).cos() + x[..., 0] * x[..., 1]
    y = ((y - y[0].mean()) / y[0].std())[..., None]
    sizes = list(pairwise((2, *hidden, 1)))
    drawn = [torch.rand(rows + 1, units, generator=generator) * 2 - 1 for rows, units in sizes]
    start = joined([w / rows**0.5 for w, (rows, _) in zip(drawn, sizes, strict=True)])
    target = Target(SquaredError().divergence, y[0][:, None], torch.ones(samples, 1).bool())
    forward = Forward(feedforward, (x[0],), (target,), tuple(torch.zeros_like(w) for w in drawn))

    def error(point: Tensor) -> float:
        found = feedforward(forward.split(point), (x[1],))[0][:, 0]
        return float((found - y[1]).square().mean().sqrt())

    return Case(forward, start, error)


CASES: dict[str, Callable[[], Case]] = {
    "echo 10-20-10": partial(sequence_case, "echo", 20, 200, 10),
    "echo 10-60-10": partial(sequence_case, "echo", 60, 50, 25),
    "echo 10-200-10": partial(sequence_case, "echo", 200, 50, 25),
    "sum 100": partial(sequence_case, "sum", 10, 200, 100),
    "timer 100": partial(sequence_case, "timer", 10, 200, 100),
    "2-40-40-1": partial(smooth_case, (40, 40), 3000),
}
SMALL: dict[str, Callable[[], Case]] = {
    f"2-{'-'.join(map(str, hidden))}-1, {samples:,} samples": partial(smooth_case, hidden, samples)
    for hidden in ((10, 10), (20, 20), (30, 30))
    for samples in (200, 2000)
}


def shortened(forward: Forward, length: int) -> Forward:
    target = forward.targets[0]
    part = Target(target.divergence, target.values[:, :length], target.counted[:, :length])
    data = forward.data[0][:, :length], part.counted.sum(1)
    return replace(forward, data=data, targets=(part,))


def sizes_of(forward: Forward) -> tuple[int, int, int]:
    (rows, hidden), (_, outputs) = (part.shape for part in forward.pull)
    return rows - hidden - 1, hidden, outputs
