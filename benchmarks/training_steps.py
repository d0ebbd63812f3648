"""Processor time of a step of minibatch training beside torch's fused Adam, width by width.

784-...-10 with ReLU on generated inputs, one thread: lifted minibatches as they are by default,
and without eigenvectors (rank = 0). They step by turns with Adam in one process; medians of the
rounds are written to benchmarks/results/training_steps.md.

    python -m benchmarks.training_steps
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from statistics import median

import torch
from torch import Tensor, nn

from benchmarks.harness.report import write
from liftednet.losses import CrossEntropy
from liftednet.models import LiftedMLP, Minibatch
from liftednet.models.data import ArrayBatches, prepared
from liftednet.models.methods.minibatch import BatchSteps
from liftednet.models.trace import Problem

SAMPLES, INPUTS, CLASSES, RATE, ROUNDS, SECONDS = 5_000, 784, 10, 1e-3, 5, 0.3
FOREVER = 1_000_000  # epochs
CASES = (
    ((100,), 100),
    ((300,), 100),
    ((300,), 500),
    ((300,), 1_000),
    ((300, 300), 100),
    ((300, 300), 1_000),
    ((1_000,), 100),
    ((3_000,), 100),
)


def lifted(x: Tensor, y: Tensor, hidden: tuple[int, ...], settings: Minibatch) -> Iterator[None]:
    """Take a lifted step at every call."""
    model = LiftedMLP((INPUTS, *hidden, CLASSES), seed=0)
    source = torch.Generator().manual_seed(0)
    steps = BatchSteps(model.structure, model._first_weights(), settings, source)
    target = CrossEntropy().encode(y, CLASSES).to(x)
    batches = ArrayBatches(prepared(model.network, x, target), settings.batch_size, source)
    training = settings.take_steps(Problem(steps, batches=batches))
    while True:
        with torch.no_grad():
            if next(training) is not None:  # the end of an epoch
                continue
        yield


def adam(x: Tensor, y: Tensor, hidden: tuple[int, ...], batch: int) -> Iterator[None]:
    """Take a step of Adam at every call."""
    torch.manual_seed(0)
    sizes, layers = (INPUTS, *hidden, CLASSES), list[nn.Module]()
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    network, loss = nn.Sequential(*layers[:-1]), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(network.parameters(), RATE, fused=True)
    while True:
        for rows in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            loss(network(x[rows]), y[rows]).backward()
            optimizer.step()
            yield


def milliseconds(steps: Iterator[None]) -> float:
    """Return the processor time of a step, the mean over a third of a second."""
    count, started = 0, time.process_time()
    while time.process_time() < started + SECONDS:
        next(steps)
        count += 1
    return 1e3 * (time.process_time() - started) / count


def line(hidden: tuple[int, ...], batch: int) -> str:
    """Return a row of the table."""
    source = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, INPUTS, generator=source)
    y = torch.randint(0, CLASSES, (SAMPLES,), generator=source)
    plain = Minibatch(FOREVER, batch, RATE)
    ways = [
        lifted(x, y, hidden, plain),
        lifted(x, y, hidden, Minibatch(FOREVER, batch, RATE, rank=0)),
        adam(x, y, hidden, batch),
    ]
    for way in ways:
        for _ in range(20):  # statistics are looked at in each of the first steps
            next(way)
    rounds = [[milliseconds(way) for way in ways] for _ in range(ROUNDS)]
    times = [f"{median(column):.2f}" for column in zip(*rounds, strict=True)]
    cells = ["-".join(map(str, hidden)), f"{batch:,}", *times]
    for mine in (0, 1):
        ratios = sorted(row[mine] / row[2] for row in rounds)
        cells.append(f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    torch.set_num_threads(1)
    about = (
        "Milliseconds of processor time, and their ratio to Adam's with its spread: above 1 Adam "
        "is faster."
    )
    lines = ["| hidden | batch | default | rank 0 | fused Adam | default / Adam | rank 0 / Adam |"]
    lines.append("| ---: " * 7 + "|")
    for hidden, batch in CASES:
        lines.append(line(hidden, batch))
        print(lines[-1], flush=True)
    write("training_steps", "A step of training beside Adam", about, lines)


if __name__ == "__main__":
    main()
