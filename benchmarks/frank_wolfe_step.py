"""What a Frank-Wolfe step costs beside K Adam steps; the aim is at most 1.15 times as much.

Run it with `python benchmarks/frank_wolfe_step.py [rounds]`. Both take K gradients on fresh
batches of the size of HAR-2 (128 steps, 9 features); they are timed in turn on one thread.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from liftednet.models.networks import IndRNN, PlainRNN, SequenceModel
from liftednet.solvers import FrankWolfe

BATCH, STEPS, FEATURES, HIDDEN, INNER = 32, 128, 9, 80, 5
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "RNN": lambda: PlainRNN(FEATURES, HIDDEN),
    "LSTM": lambda: nn.LSTM(FEATURES, HIDDEN, batch_first=True),
    "IndRNN, 6 layers": lambda: IndRNN(FEATURES, HIDDEN, 6, STEPS),
}


def closure_of(model: SequenceModel, optimizer: Optimizer) -> Callable[[], Tensor]:
    source = torch.Generator().manual_seed(0)

    def closure() -> Tensor:
        x = torch.randn(BATCH, STEPS, FEATURES, generator=source)
        optimizer.zero_grad()
        loss: Tensor = model.at_end(x).square().mean()
        loss.backward()
        return loss

    return closure


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def compare(make: Callable[[], nn.Module], rounds: int) -> tuple[list[float], list[float]]:
    """Return the times of K Adam steps and of one Frank-Wolfe step."""
    torch.manual_seed(0)
    models = [SequenceModel(make(), HIDDEN, 1) for _ in range(2)]
    adam = torch.optim.Adam(models[0].parameters(), lr=1e-3)
    wolfe = FrankWolfe(
        models[1].parameters(), 1e-3, radius=0.03, inner_steps=INNER, outer=torch.optim.Adam
    )
    adam_closure, wolfe_closure = closure_of(models[0], adam), closure_of(models[1], wolfe)

    def adam_steps() -> None:
        for _ in range(INNER):
            adam_closure()
            adam.step()

    pairs = [
        (seconds(adam_steps), seconds(lambda: wolfe.step(wolfe_closure))) for _ in range(rounds + 2)
    ]
    plain, looking = zip(*pairs[2:], strict=True)  # the first ones warm the caches
    return list(plain), list(looking)


def main(rounds: int = 25) -> None:
    torch.set_num_threads(1)
    print(f"K = {INNER}, batch {BATCH}, {STEPS} steps, {HIDDEN} units; medians of {rounds} rounds")
    for name, make in NETWORKS.items():
        plain, looking = compare(make, rounds)
        ratios = sorted(b / a for a, b in zip(plain, looking, strict=True))
        print(
            f"{name:18} K Adam steps {1000 * median(plain):7.1f} ms   "
            f"one Frank-Wolfe step {1000 * median(looking):7.1f} ms   "
            f"ratio {median(ratios):.3f} (from {ratios[0]:.3f} to {ratios[-1]:.3f})"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
