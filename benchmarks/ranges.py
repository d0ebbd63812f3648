"""Ranges of networks over a box: ours in the time that alpha-CROWN takes.

alpha-CROWN (Xu, Zhang, Wang, Wang, Jana, Lin, Hsieh, Fast and Complete: Enabling Complete Neural
Network Verification with Rapid and Massively Parallel Incomplete Verifiers, 2021) is that of
auto_LiRPA, whose last release on PyPI (0.3) is for torch below 1.13: it is written here, with each
layer's lower slopes optimized by 20 steps of Adam at .1, its own defaults. Networks of ReLU of
`benchmarks.into_cvxpy`, trained by Adam, over [-2, 2]^p. Ours is `to_cvxpy(...).range()`, by lines
whose slopes and multipliers are optimized by 100 steps, or `optimize` of the largest and the least
output, 5 s each. Reading the network is counted for neither.
`OMP_NUM_THREADS=1 python -m benchmarks.ranges`, three minutes; written to
benchmarks/results/ranges.md.
"""

from __future__ import annotations

import time
from typing import Any

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.harness.report import write
from benchmarks.into_cvxpy import BOX, Run, network_of
from liftednet import optimize, to_cvxpy

NETWORKS = ((2, "20"), (5, "50"), (10, "20"), (20, "50"), (50, "50"), (2, "20-20"), (5, "20-20"),
            (10, "20-20"), (5, "10-10-10-10"))  # fmt: skip
STEPS, RATE = 20, 0.1
TEXT = (
    "Widths of the ranges of outputs, as multiples of what 200,000 draws and gradient steps reach. "
    "Ours is the range of `to_cvxpy`, or ten seconds of `optimize`. alpha-CROWN is written here: "
    "auto_LiRPA 0.3, the last on PyPI, is for torch below 1.13 and imports on none that was tried."
)


def bounds(layers: list[nn.Linear], signs: Tensor, slopes: list[Tensor], ends: Any) -> Tensor:
    """Return lower bounds of signs @ (output of the last layer), by lines from back to front."""
    push = signs @ layers[-1].weight
    value = signs @ layers[-1].bias
    for layer, slope, (low, high) in zip(layers[-2::-1], slopes[::-1], ends[::-1], strict=True):
        below = torch.where(low >= 0, 1.0, torch.where(high <= 0, 0.0, slope))
        chord = torch.where(low >= 0, 1.0, high.clamp(min=0) / (high - low).clamp(min=1e-12))
        chord = torch.where(high <= 0, 0.0, chord)
        shift = torch.where((low < 0) & (high > 0), -chord * low, 0.0)
        up, down = push.clamp(min=0), push.clamp(max=0)
        value = value + down @ shift
        push = up * below + down * chord
        value = value + push @ layer.bias
        push = push @ layer.weight
    return value - BOX * push.abs().sum(1)


def alpha_crown(network: nn.Sequential) -> tuple[float, float]:
    """Return the ends of the output."""
    layers = [x for x in network if isinstance(x, nn.Linear)]
    ends: list[tuple[Tensor, Tensor]] = []
    for last in range(len(layers)):
        units = layers[last].out_features
        eye = torch.eye(units, dtype=torch.float64)
        found = []
        for signs in (eye, -eye):
            slopes = [
                (high > -low).double().expand(units, -1).clone().requires_grad_()
                for low, high in ends
            ]
            best = bounds(layers[: last + 1], signs, slopes, ends).detach()
            adam = torch.optim.Adam(slopes, lr=RATE) if slopes else None
            for _ in range(STEPS if adam is not None else 0):
                assert adam is not None
                adam.zero_grad()
                value = bounds(layers[: last + 1], signs, slopes, ends)
                (-value.sum()).backward()
                best = torch.maximum(best, value.detach())
                adam.step()
                with torch.no_grad():
                    for slope in slopes:
                        slope.clamp_(0, 1)
            found.append(best)
        ends.append((found[0].detach(), -found[1].detach()))
    return float(ends[-1][0]), float(ends[-1][1])


def attained(network: nn.Sequential, inputs: int) -> float:
    """Return the width of what draws and steps from the best of them reach."""
    draw, ends = torch.Generator().manual_seed(0), []
    for sign in (1.0, -1.0):
        x = BOX * (2 * torch.rand(200_000, inputs, generator=draw, dtype=torch.float64) - 1)
        with torch.no_grad():
            x = x[(sign * network(x)[:, 0]).topk(100).indices]
        x.requires_grad_()
        adam, best = torch.optim.Adam([x], lr=0.05), -torch.inf
        for _ in range(300):
            adam.zero_grad()
            y = sign * network(x)
            best = max(best, float(y.detach().max()))
            (-y.sum()).backward()
            adam.step()
            with torch.no_grad():
                x.clamp_(-BOX, BOX)
        ends.append(best)
    return sum(ends)


def main() -> None:
    """Run all, and write the table."""
    torch.set_num_threads(1)
    lines = ["| inputs | hidden | alpha-CROWN: width (s) | ours: width (s) "
             "| ours, 10 s |", "| ---: | --- | ---: | ---: | ---: |"]  # fmt: skip
    shares, times = list[float](), list[float]()
    for inputs, hidden in NETWORKS:
        network = network_of(Run(inputs, hidden, "Adam", "ours"))
        reached = attained(network, inputs)
        alpha_crown(network)
        started = time.process_time()
        low, high = alpha_crown(network)
        spent = time.process_time() - started
        stated = to_cvxpy(network, cp.Variable(inputs), box=(-BOX, BOX), mixed_integer=True)
        started = time.process_time()
        own_low, own_high = (float(x[0]) for x in stated.range())
        widths, seconds = [(own_high - own_low) / reached], [time.process_time() - started]
        started = time.process_time()
        low_bound, high_bound = (
            optimize(stated, sense(stated.output[0]), gap=1e-6, seconds=5.0).bound
            for sense in (cp.Minimize, cp.Maximize)
        )
        seconds.append(time.process_time() - started)
        widths.append((high_bound - low_bound) / reached)
        times.append(seconds[0] / spent)
        shares.append(widths[0] * reached / (high - low))
        lines.append(
            f"| {inputs} | {hidden} | {(high - low) / reached:.3f} ({spent:.2f}) "
            f"| {widths[0]:.3f} ({seconds[0]:.2f}) | {widths[1]:.4f} ({seconds[1]:.1f}) |"
        )
    share, ratio = (float(np.exp(np.mean(np.log(x)))) for x in (shares, times))
    lines += ["", f"Ours over alpha-CROWN's: {share:.3f} of its width in {ratio:.2f} of its time, "
              "geometric means."]  # fmt: skip
    write("ranges", "Ranges over a box", TEXT, lines)


if __name__ == "__main__":
    main()
