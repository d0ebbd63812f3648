"""Processor time of a step of minibatch training beside torch's fused Adam, width by width.

784-width-10 with ReLU on generated inputs, one thread: lifted minibatches as they are by default,
without eigenvectors (rank = 0), and Adam. They step by turns in one process; medians of the rounds
are written to benchmarks/results/training_steps.md.

    python -m benchmarks.training_steps
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from benchmarks.solvers import machine
from liftednet.losses import CrossEntropy
from liftednet.models import LiftedMLP, Minibatch
from liftednet.models.batches import ArrayBatches
from liftednet.models.data import prepared
from liftednet.models.methods.minibatch import BatchSteps

RESULT = Path(__file__).parent / "results" / "training_steps.md"
SAMPLES, INPUTS, CLASSES, RATE, ROUNDS, SECONDS = 5_000, 784, 10, 1e-3, 5, 0.5
FOREVER = 1_000_000  # epochs


def lifted(x: Tensor, y: Tensor, width: int, batch: int, rank: int) -> Iterator[None]:
    """Take a lifted step at every call."""
    model = LiftedMLP((INPUTS, width, CLASSES), seed=0)
    source = torch.Generator().manual_seed(0)
    settings = Minibatch(epochs=FOREVER, batch_size=batch, rank=rank, rate=RATE)
    steps = BatchSteps(model.structure, model._first_weights(), settings, source)
    target = CrossEntropy().encode(y, CLASSES).to(x)
    batches = ArrayBatches(prepared(model.network, x, target), batch, source)
    training = settings.steps(steps, batches, None)
    while True:
        with torch.no_grad():
            if next(training) is not None:  # the end of an epoch
                continue
        yield


def adam(x: Tensor, y: Tensor, width: int, batch: int) -> Iterator[None]:
    """Take a step of Adam at every call."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(INPUTS, width), nn.ReLU(), nn.Linear(width, CLASSES))
    optimizer, loss = (
        torch.optim.Adam(network.parameters(), RATE, fused=True),
        nn.CrossEntropyLoss(),
    )
    while True:
        for rows in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            loss(network(x[rows]), y[rows]).backward()
            optimizer.step()
            yield


def milliseconds(steps: Iterator[None]) -> float:
    """Return the processor time of a step, the mean over about half a second."""
    count, started = 0, time.process_time()
    while time.process_time() < started + SECONDS:
        next(steps)
        count += 1
    return 1e3 * (time.process_time() - started) / count


def line(width: int, batch: int) -> str:
    """Return a row of the table."""
    source = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, INPUTS, generator=source)
    y = torch.randint(0, CLASSES, (SAMPLES,), generator=source)
    rank = Minibatch().rank
    ways = [
        lifted(x, y, width, batch, rank),
        lifted(x, y, width, batch, 0),
        adam(x, y, width, batch),
    ]
    for way in ways:
        next(way), next(way)
    rounds = [[milliseconds(way) for way in ways] for _ in range(ROUNDS)]
    ours, plain, other = (median(column) for column in zip(*rounds, strict=True))
    cells = [f"{width:,}", str(batch), f"{ours:.2f}", f"{plain:.2f}", f"{other:.2f}"]
    for mine in (0, 1):
        ratios = sorted(row[mine] / row[2] for row in rounds)
        cells.append(f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    torch.set_num_threads(1)
    where = ", ".join(f"{name}: {value}" for name, value in machine().items())
    lines = ["# A step of training beside Adam", "", f"{where}.", ""]
    lines += ["Milliseconds of processor time, and their ratio to Adam's with its spread.", ""]
    lines += ["| width | batch | default | rank 0 | fused Adam | default / Adam | rank 0 / Adam |"]
    lines += ["| ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for width, batch in ((100, 100), (300, 100), (300, 500), (1_000, 100), (3_000, 100)):
        lines.append(line(width, batch))
        print(lines[-1], flush=True)
    RESULT.write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
