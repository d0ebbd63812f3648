"""The scan of independent recurrent units beside autograd on a loop over time.

Run it with `python benchmarks/independent_scan.py [rounds]`; forward and backward, one thread.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from liftednet.models.networks.scan import RELU, independent_scan

CASES = ((128, 32, 80), (784, 32, 128), (784, 128, 128))


def loop(drive: Tensor, weight: Tensor, start: Tensor) -> Tensor:
    states, state = [], start
    for step in drive:
        state = torch.relu(step + weight * state)
        states.append(state)
    return torch.stack(states)


def milliseconds(scan: Callable[..., Tensor], inputs: list[Tensor], rounds: int) -> float:
    times = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        torch.autograd.grad(scan(*inputs).sum(), inputs)
        times.append(time.perf_counter() - started)
    return 1000 * median(times[1:])


def main(rounds: int = 7) -> None:
    torch.set_num_threads(1)
    for steps, batch, units in CASES:
        source = torch.Generator().manual_seed(0)
        inputs = [
            torch.randn(shape, generator=source).requires_grad_()
            for shape in ((steps, batch, units), (units,), (batch, units))
        ]
        slow = milliseconds(loop, inputs, rounds)
        fast = milliseconds(lambda *given: independent_scan(*given, RELU), inputs, rounds)
        print(
            f"{steps} steps, batch {batch:3}, {units:3} units: loop {slow:7.1f} ms   "
            f"scan {fast:6.1f} ms   {slow / fast:.1f} times as fast"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
