"""Time and memory of the gradient split by time step, beside the ordinary backward pass.

Run it with `python benchmarks/temporal_parts.py`. The aim is at most twice the memory for a
network of one layer. Each figure comes from a fresh interpreter: the growth of its peak resident
memory over a forward and a backward pass.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

import torch
from torch import Tensor, nn

from liftednet.models.networks import CellRecurrence, SequenceModel
from liftednet.solvers.gradient import temporal_norms

CASES = ((100, 32, 64), (400, 32, 256), (100, 8, 512))


def measure(split: bool, steps: int, batch: int, hidden: int) -> tuple[float, float]:
    """Return seconds and megabytes of one pass."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cell = nn.RNNCell(8, hidden)
    model = SequenceModel(CellRecurrence(cell), hidden, 1)
    x = torch.randn(batch, steps, 8)

    def closure() -> Tensor:
        loss: Tensor = model.at_end(x).square().mean()
        loss.backward()
        return loss

    model.at_end(x[:, :2]).mean().backward()  # what torch allocates once
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    if split:
        temporal_norms(cell, closure)
    else:
        closure()
    elapsed = time.perf_counter() - started
    return elapsed, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def fresh(split: bool, case: tuple[int, int, int]) -> tuple[float, float]:
    """Return what `measure` says in a fresh interpreter."""
    command = [sys.executable, __file__, str(int(split)), *map(str, case)]
    words = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(words[0]), float(words[1])


def main() -> None:
    for case in CASES:
        plain, parts = fresh(False, case), fresh(True, case)
        print(
            f"{case[0]} steps, batch {case[1]}, {case[2]:3} units: "
            f"backward {1000 * plain[0]:6.1f} ms {plain[1]:6.1f} MB   "
            f"split {1000 * parts[0]:6.1f} ms {parts[1]:6.1f} MB   "
            f"memory ratio {parts[1] / plain[1]:.2f}"
        )


if __name__ == "__main__":
    if len(sys.argv) == 5:
        print(*measure(sys.argv[1] == "1", *map(int, sys.argv[2:])))
    else:
        main()
