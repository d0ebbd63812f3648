"""LeNet-5 on MNIST, read by `liftednet.lift` and trained without options, beside torch's Adam.

Ten passes over 60,000 digits in batches of 100, from torch's own start, rates falling to zero. The
rates (0.1 of ours, the default of `lift`; 0.002 of Adam) were chosen on one seed. Run it with
`OMP_NUM_THREADS=1 python -m benchmarks.lenet`, three minutes; with --quick it takes one pass over
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
from benchmarks.torch_tasks import BATCH, TASKS, accuracy, adam, digits
from liftednet import lift
from liftednet.losses import CrossEntropy
from liftednet.models import Minibatch
from liftednet.models.from_torch.model import RATE

RESULT = Path(__file__).parent / "results" / "lenet.md"
Train = Callable[[nn.Module, Tensor, Tensor, int], None]


def lifted(network: nn.Module, x: Tensor, y: Tensor, passes: int) -> None:
    method = Minibatch(epochs=passes, batch_size=BATCH, rate=RATE)
    lift(network, x[:2], loss=CrossEntropy(), show=False, method=method).fit(x, y).write_()


def by_adam(network: nn.Module, x: Tensor, y: Tensor, passes: int) -> None:
    adam(network, x, y, epochs=passes)


METHODS: dict[str, Train] = {"lifted, without options": lifted, "Adam, 0.002": by_adam}


def row(name: str, train: Train, samples: int, passes: int) -> str:
    torch.manual_seed(0)
    network, sets = TASKS["LeNet-5"].build(), digits(samples, 0)
    started = time.process_time()
    train(network, *sets["train"], passes)
    step = (time.process_time() - started) / (passes * -(-samples // BATCH))
    return f"| {name} | {accuracy(network, *sets['test']):.4f} | {1e3 * step:.1f} |"


def main() -> None:
    """Train by both, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one pass over 10,000 digits")
    quick = parser.parse_args().quick
    samples, passes = (10_000, 1) if quick else (60_000, 10)
    measured = "; ".join(f"{name} {value}" for name, value in machine().items())
    lines = ["| training | test accuracy | ms a step |", "| --- | ---: | ---: |"]
    lines += [row(name, train, samples, passes) for name, train in METHODS.items()]
    said = f"{passes} passes over {samples:,} digits, one seed, the last step's accuracy."
    text = "\n".join([f"# LeNet-5 on MNIST\n\n{measured}\n\n{said}\n", *lines, ""])
    print(text)
    if not quick:
        RESULT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
