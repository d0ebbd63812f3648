"""What the methods with gradients cost: Frank-Wolfe steps, gradients split by time step, scans.

Run it with `python -m benchmarks.gradient_methods`, two minutes. Processor time, opponents in turn
on one thread, written to benchmarks/results/gradient_methods.md.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.papers.networks import CellRecurrence, IndRNN, PlainRNN, SequenceModel
from benchmarks.papers.networks.scan import RELU, independent_scan
from liftednet.solvers import FrankWolfe
from liftednet.solvers.gradient import temporal_norms

RESULT = Path(__file__).parent / "results" / "gradient_methods.md"
BATCH, STEPS, FEATURES, HIDDEN, INNER = 32, 128, 9, 80, 5  # of HAR-2
ROUNDS = 9
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "RNN": lambda: PlainRNN(FEATURES, HIDDEN),
    "LSTM": lambda: nn.LSTM(FEATURES, HIDDEN, batch_first=True),
    "IndRNN, 6 layers": lambda: IndRNN(FEATURES, HIDDEN, 6, STEPS),
}
SPLIT = ((100, 32, 64), (400, 32, 256), (100, 8, 512))
SCANNED = ((128, 32, 80), (784, 32, 128), (784, 128, 128))
Work = Callable[[], object]

STEP = (
    f"K = {INNER} gradients on fresh batches of the size of HAR-2 ({BATCH} windows of {STEPS} "
    f"steps, {HIDDEN} units), with K Adam steps or with one Frank-Wolfe step; aim: at most 1.15 "
    "times as much."
)
PARTS = (
    "The gradient of one recurrent layer by time step, beside the ordinary backward pass; memory "
    "is the growth of the peak of a fresh process; aim: at most twice the memory."
)
SCANS = (
    "Forward and backward without a graph per step, beside a loop under autograd (independent "
    "units) and torch.nn.RNN with the same weights (a plain network)."
)


def in_turn(first: Work, second: Work, rounds: int) -> tuple[float, float, list[float]]:
    """Return the median milliseconds of both, and the sorted ratios of second to first."""
    times: list[list[float]] = [[], []]
    for _ in range(rounds + 2):
        for own, work in zip(times, (first, second), strict=True):
            started = time.process_time()
            work()
            own.append(1000 * (time.process_time() - started))
    slow, fast = (own[2:] for own in times)  # the first ones warm the caches
    return median(slow), median(fast), sorted(b / a for a, b in zip(slow, fast, strict=True))


def told(first: Work, second: Work, rounds: int) -> str:
    slow, fast, ratios = in_turn(first, second, rounds)
    spread = f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    return f"{slow:.1f} | {fast:.1f} | {spread} |"


def closure_of(model: SequenceModel, optimizer: Optimizer) -> Callable[[], Tensor]:
    source = torch.Generator().manual_seed(0)

    def closure() -> Tensor:
        x = torch.randn(BATCH, STEPS, FEATURES, generator=source)
        optimizer.zero_grad()
        loss: Tensor = model.at_end(x).square().mean()
        loss.backward()
        return loss

    return closure


def steps() -> Iterator[str]:
    yield "| network | K Adam steps, ms | one Frank-Wolfe step, ms | ratio (spread) |"
    yield "| --- | ---: | ---: | ---: |"
    for name, make in NETWORKS.items():
        torch.manual_seed(0)
        models = [SequenceModel(make(), HIDDEN, 1) for _ in range(2)]
        adam = torch.optim.Adam(models[0].parameters(), lr=1e-3)
        wolfe = FrankWolfe(
            models[1].parameters(), 1e-3, radius=0.03, inner_steps=INNER, outer=torch.optim.Adam
        )
        works = adam_steps(models[0], adam), wolfe_step(models[1], wolfe)
        yield f"| {name} | {told(*works, ROUNDS)}"


def adam_steps(model: SequenceModel, adam: Optimizer) -> Work:
    closure = closure_of(model, adam)

    def work() -> None:
        for _ in range(INNER):
            closure()
            adam.step()

    return work


def wolfe_step(model: SequenceModel, wolfe: FrankWolfe) -> Work:
    closure = closure_of(model, wolfe)
    return lambda: wolfe.step(closure)


def peak() -> float:
    """Return the most resident memory so far in megabytes (ru_maxrss begins at the parent's)."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.findall(r"VmHWM:\s*(\d+)", status)[0]) / 1024


def measured(split: bool, steps: int, batch: int, hidden: int) -> tuple[float, float]:
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
    before = peak()
    started = time.process_time()
    if split:
        temporal_norms(cell, closure)
    else:
        closure()
    elapsed = time.process_time() - started
    return elapsed, peak() - before


def fresh(split: bool, case: tuple[int, int, int]) -> tuple[float, float]:
    """Return what `measured` says in a fresh interpreter."""
    command = [sys.executable, "-m", "benchmarks.gradient_methods", str(int(split))]
    words = subprocess.run(
        [*command, *map(str, case)], capture_output=True, text=True, check=True
    ).stdout.split()
    return float(words[0]), float(words[1])


def parts() -> Iterator[str]:
    head = "backward, ms | split, ms | ratio | backward, MB | split, MB | ratio"
    yield f"| steps, batch, units | {head} |"
    yield "| --- |" + " ---: |" * 6
    for case in SPLIT:
        (plain, memory), (split, more) = fresh(False, case), fresh(True, case)
        yield (
            f"| {', '.join(map(str, case))} | {1000 * plain:.1f} | {1000 * split:.1f} | "
            f"{split / plain:.1f} | {memory:.1f} | {more:.1f} | {more / memory:.2f} |"
        )


def loop(drive: Tensor, weight: Tensor, start: Tensor) -> Tensor:
    states, state = [], start
    for step in drive:
        state = torch.relu(step + weight * state)
        states.append(state)
    return torch.stack(states)


def independent(steps: int, batch: int, units: int) -> tuple[Work, Work]:
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


def plain(steps: int, batch: int, units: int) -> tuple[Work, Work]:
    """Return torch's network and ours, each with its gradients."""
    torch.manual_seed(0)
    ours = PlainRNN(FEATURES, units)
    theirs = nn.RNN(FEATURES, units, batch_first=True)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(batch, steps, FEATURES)

    def gradients(network: nn.Module) -> Work:
        return lambda: torch.autograd.grad(network(x)[0].sum(), list(network.parameters()))

    return gradients(theirs), gradients(ours)


def scans() -> Iterator[str]:
    yield "| network | steps, batch, units | loop, ms | scan, ms | ratio (spread) |"
    yield "| --- | --- | ---: | ---: | ---: |"
    for name, make in (("independent units", independent), ("plain", plain)):
        for case in SCANNED:
            yield f"| {name} | {', '.join(map(str, case))} | {told(*make(*case), ROUNDS // 3)}"


def main() -> None:
    from benchmarks.solvers import machine  # what it imports would hide the growth of a peak

    torch.set_num_threads(1)
    where = ", ".join(f"{name}: {value}" for name, value in machine().items())
    lines = ["# Gradient methods", "", f"{where}. Processor time; ratios of rounds in turn."]
    for title, text, table in (
        (f"One Frank-Wolfe step beside {INNER} Adam steps", STEP, steps()),
        ("The gradient split by time step beside the ordinary backward pass", PARTS, parts()),
        ("Scans over time beside loops", SCANS, scans()),
    ):
        lines += ["", f"## {title}", "", text, "", *table]
    RESULT.write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) == 5:
        print(*measured(sys.argv[1] == "1", *map(int, sys.argv[2:])))
    else:
        main()
