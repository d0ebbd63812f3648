"""The recurrences that run without a graph per step, beside what torch has for the same.

Run it with `python benchmarks/scans.py [rounds]`; forward and backward, one thread, in turn.
Independent units: a loop under autograd. A plain network: torch.nn.RNN with the same weights.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn

from liftednet.models.networks import PlainRNN
from liftednet.models.networks.scan import RELU, independent_scan

CASES = ((128, 32, 80), (784, 32, 128), (784, 128, 128))
FEATURES = 9


def loop(drive: Tensor, weight: Tensor, start: Tensor) -> Tensor:
    states, state = [], start
    for step in drive:
        state = torch.relu(step + weight * state)
        states.append(state)
    return torch.stack(states)


def independent(steps: int, batch: int, units: int) -> tuple[Callable[[], object], ...]:
    """Return a loop and a scan, each with its gradients."""
    source = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(shape, generator=source).requires_grad_()
        for shape in ((steps, batch, units), (units,), (batch, units))
    ]
    return (
        lambda: torch.autograd.grad(loop(*inputs).sum(), inputs),
        lambda: torch.autograd.grad(independent_scan(*inputs, RELU).sum(), inputs),
    )


def plain(steps: int, batch: int, units: int) -> tuple[Callable[[], object], ...]:
    """Return torch's network and ours, each with its gradients."""
    torch.manual_seed(0)
    ours = PlainRNN(FEATURES, units)
    theirs = nn.RNN(FEATURES, units, batch_first=True)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(batch, steps, FEATURES)

    def gradients(network: nn.Module) -> Callable[[], object]:
        return lambda: torch.autograd.grad(network(x)[0].sum(), list(network.parameters()))

    return gradients(theirs), gradients(ours)


def milliseconds(
    slow: Callable[[], object], fast: Callable[[], object], rounds: int
) -> list[float]:
    times: list[list[float]] = [[], []]
    for _ in range(rounds + 1):
        for own, work in zip(times, (slow, fast), strict=True):
            started = time.perf_counter()
            work()
            own.append(1000 * (time.perf_counter() - started))
    return [median(own[1:]) for own in times]


def main(rounds: int = 7) -> None:
    torch.set_num_threads(1)
    for name, make in (("independent units, loop", independent), ("plain, torch.nn.RNN", plain)):
        for steps, batch, units in CASES:
            slow, fast = milliseconds(*make(steps, batch, units), rounds)
            print(
                f"{steps} steps, batch {batch:3}, {units:3} units: {name} {slow:7.1f} ms   "
                f"scan {fast:6.1f} ms   {slow / fast:.1f} times as fast"
            )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
