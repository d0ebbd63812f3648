"""LeNet-5 on MNIST, read by `liftednet.lift` and trained without options, beside torch's Adam.

Ten passes over 60,000 digits in batches of 100, from torch's own start, rates falling to zero. The
rates (0.1 of ours, the default of `lift`; 0.002 of Adam) were chosen on one seed. Run it with
`OMP_NUM_THREADS=1 python -m benchmarks.lenet`, five minutes; with --quick it takes one pass over
10,000 digits and writes nothing. Processor time, written to benchmarks/results/lenet.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.solvers import machine
from liftednet import lift
from liftednet.data import Classification, mnist
from liftednet.losses import CrossEntropy
from liftednet.models import Minibatch
from liftednet.models.from_torch.model import RATE

RESULT = Path(__file__).parent / "results" / "lenet.md"
BATCH, ADAM_RATE = 100, 2e-3


def lenet(seed: int) -> nn.Module:
    """Return the network at torch's start; (samples, 1, 28, 28) to logits (samples, 10)."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def lifted(network: nn.Module, x: Tensor, y: Tensor, passes: int) -> None:
    model = lift(network, x[:2], loss=CrossEntropy(), show=False,
                 method=Minibatch(epochs=passes, batch_size=BATCH, rate=RATE))  # fmt: skip
    model.fit(x, y).write_()


def adam(network: nn.Module, x: Tensor, y: Tensor, passes: int) -> None:
    steps = passes * -(-len(x) // BATCH)
    optimizer = torch.optim.Adam(network.parameters(), lr=ADAM_RATE)
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    for _ in range(passes):
        for rows in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
            optimizer.step()
            falling.step()


Train = Callable[[nn.Module, Tensor, Tensor, int], None]
METHODS: dict[str, Train] = {"lifted, without options": lifted, "Adam, 0.002": adam}


def row(name: str, train: Train, data: Classification, samples: int, passes: int) -> str:
    network = lenet(0)
    x, y = data.x_train[:samples].reshape(-1, 1, 28, 28), data.y_train[:samples]
    started = time.process_time()
    train(network, x, y, passes)
    step = (time.process_time() - started) / (passes * -(-samples // BATCH))
    with torch.no_grad():
        found = network(data.x_test.reshape(-1, 1, 28, 28)).argmax(1) == data.y_test
    return f"| {name} | {float(found.double().mean()):.4f} | {1e3 * step:.1f} |"


def main() -> None:
    """Train by both, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one pass over 10,000 digits")
    quick = parser.parse_args().quick
    samples, passes = (10_000, 1) if quick else (60_000, 10)
    data = mnist()
    measured = "; ".join(f"{name} {value}" for name, value in machine().items())
    lines = ["| training | test accuracy | ms a step |", "| --- | ---: | ---: |"]
    lines += [row(name, train, data, samples, passes) for name, train in METHODS.items()]
    said = f"{passes} passes over {samples:,} digits, one seed, the last step's accuracy."
    text = "\n".join([f"# LeNet-5 on MNIST\n\n{measured}\n\n{said}\n", *lines, ""])
    print(text)
    if not quick:
        RESULT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
