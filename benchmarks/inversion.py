"""Inputs behind an output: steps by tangents, beside gradient descent on the input.

Networks of drawn weights of smooth units answer to a drawn input; the input of least Euclidean
norm with the same answer is sought in a box. `invert` has one call with 4 s. Gradient descent is
Adam on |f(x) - y|^2 + p |x|^2, clipped to the box, 1,000 steps from ten starts, at each of three p
and two rates; of all ends that meet y to 1e-3 of its size the one of least norm counts, else the
one that is nearest to y. The inversion of 2510.09796 has no code to be run here. `OMP_NUM_THREADS=1
python -m benchmarks.inversion`, three minutes; written to benchmarks/results/inversion.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import product
from statistics import fmean
from typing import Any

import cvxpy as cp
import numpy as np
import torch
from torch import nn

from benchmarks.harness.report import write
from liftednet import invert, to_cvxpy
from liftednet.errors import SolverError

STARTS, STEPS, PRICES, RATES, SEEDS = 10, 1000, (1e-2, 1e-4, 1e-6), (0.1, 0.01), range(3)
TEXT = (
    "What y is missed by, relative to its size, and the norm of x, means of three drawn networks; "
    "how many are proven to 1 %. Adam's seconds are those of all its settings. The figures of "
    "2510.09796 are not repeated, since there is no code of it to run; in kind this is its "
    "variational inversion, a convex prior of x where the network answers y, with the norm in the "
    "place of a total variation of images and y met, not penalized."
)


class Recurrence(nn.Module):
    """A recurrent network whose last state is read."""

    def __init__(self, steps: int) -> None:
        """Draw weights for some steps."""
        super().__init__()
        self.recurrence, self.readout = nn.RNN(2, 10, batch_first=True), nn.Linear(10, 2)
        self.steps = steps

    def forward(self, x: Any) -> Any:
        """Return the readout of the last state; x (samples, steps * 2)."""
        return self.readout(self.recurrence(x.reshape(len(x), self.steps, 2))[0][:, -1])


def dense(inputs: int, units: int, outputs: int, activation: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, units), activation, nn.Linear(units, units), activation,
        nn.Linear(units, outputs),
    )  # fmt: skip


NETWORKS: dict[str, tuple[int, Callable[[], nn.Module]]] = {
    "tanh, 2-10-10-1": (2, lambda: dense(2, 10, 1, nn.Tanh())),
    "GELU, 3-10-10-1": (3, lambda: dense(3, 10, 1, nn.GELU())),
    "tanh, 10-30-30-3": (10, lambda: dense(10, 30, 3, nn.Tanh())),
    "GELU, 20-50-50-5": (20, lambda: dense(20, 50, 5, nn.GELU())),
    "recurrence, 10 steps of 2": (20, lambda: Recurrence(10)),
}


def by_adam(network: nn.Module, inputs: int, wanted: Any) -> Any:
    generator = torch.Generator().manual_seed(0)
    starts = 2 * torch.rand(STARTS, inputs, generator=generator, dtype=torch.float64) - 1
    ends = []
    for price, rate in product(PRICES, RATES):
        x = starts.clone().requires_grad_()
        adam = torch.optim.Adam([x], lr=rate)
        for _ in range(STEPS):
            adam.zero_grad()
            off = (network(x) - wanted).square().sum(1)
            (off + price * x.square().sum(1)).sum().backward()
            adam.step()
            with torch.no_grad():
                x.clamp_(-1, 1)
        ends.append(x.detach())
    return torch.cat(ends)


def main() -> None:
    """Run all, and write the table."""
    torch.set_num_threads(1)
    lines = ["| network | ours: missed | norm | proven | s | Adam: missed | norm | s |",
             "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for name, (inputs, make) in NETWORKS.items():
        rows = []
        for seed in SEEDS:
            torch.manual_seed(seed)
            network = make().double()
            for weight in network.parameters():
                nn.init.normal_(weight, std=1 / weight.shape[-1] ** 0.5)
            x = 2 * torch.rand(1, inputs, dtype=torch.float64) - 1
            with torch.no_grad():
                wanted = network(x)
            size = float(wanted.norm())
            started = time.process_time()
            stated = to_cvxpy(network, cp.Variable(inputs), box=(-1, 1), example=x)
            try:
                found = invert(stated, wanted[0].numpy(), prior=np.zeros(inputs), seconds=4)
            except SolverError:
                rows.append([np.nan] * 7)
                continue
            spent = time.process_time() - started
            with torch.no_grad():
                missed = float((network(torch.from_numpy(found.x)[None]) - wanted).norm()) / size
            started = time.process_time()
            ends = by_adam(network, inputs, wanted)
            theirs = time.process_time() - started
            with torch.no_grad():
                off = (network(ends) - wanted).norm(dim=1) / size
            norms = torch.where(off <= 1e-3, ends.norm(dim=1), torch.inf)
            best = int(norms.argmin()) if bool(norms.isfinite().any()) else int(off.argmin())
            rows.append([missed, float(np.linalg.norm(found.x)), found.optimum.proven, spent,
                         float(off[best]), float(ends[best].norm()), theirs])  # fmt: skip
        a = [fmean(each) for each in zip(*rows, strict=True)]
        lines.append(
            f"| {name} | {a[0]:.0e} | {a[1]:.4f} | {sum(x[2] for x in rows)} of {len(rows)} "
            f"| {a[3]:.1f} | {a[4]:.0e} | {a[5]:.4f} | {a[6]:.1f} |"
        )
    write("inversion", "Inputs behind an output", TEXT, lines)


if __name__ == "__main__":
    main()
