"""One fit by several processes: is it that of one, how fast is it, and what would a large one cost?

    python -m benchmarks.distributed equality     # two minutes
    python -m benchmarks.distributed efficiency   # four minutes, on a machine with nothing else
    python -m benchmarks.distributed constants    # two minutes

Processes of a gloo group over the loopback address, one thread each (OMP_NUM_THREADS=1). Equality:
small fits in float64 by 1, 2, 3 and 4 processes with shares of unequal size, whose fits end at
1e-11 (what is left within a tolerance depends on rounding). Efficiency: MNIST, 784-300-10, float32,
wall time of one process over that of two and their number, the least of three runs each. Constants:
what a row of data costs, and a message, and what follows for more of both, checked against runs of
1, 2 and 4 processes. Written to benchmarks/results/distributed.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import torch
from torch import Tensor, distributed
from torch.nn.functional import one_hot

from benchmarks.group import in_group
from benchmarks.solvers import machine
from liftednet import shard
from liftednet.activations import Tanh
from liftednet.data import digits, mnist
from liftednet.losses import SquaredError
from liftednet.models import FullBatch, GaussNewton, Lifted, LiftedMLP, LiftedRNN, Minibatch

RESULT = Path(__file__).parent / "results" / "distributed.md"
FOLDER = os.environ.get("LIFTEDNET_DATA")
UNITS = (784, 300, 10)
Rows = tuple[Tensor, Tensor]


# Equality.


def _small() -> Rows:
    found = digits()
    return found.x_train[:300].double(), found.y_train[:300]


def _exact(**given: Any) -> Callable[[], Lifted]:
    method = FullBatch(2, tolerance=1e-10, extrapolation=given.pop("extrapolation", False))
    return lambda: LiftedMLP((64, 20, 10), lam=0.5, rho=1.0, method=method, **given)


EQUAL: dict[str, Callable[[], Lifted]] = {
    "joint": _exact(divergence="joint"),
    "tight": _exact(divergence="tight"),
    "tight, extrapolated": _exact(divergence="tight", extrapolation=True),
    "multipliers": _exact(divergence="multipliers"),
    "minibatches": lambda: LiftedMLP((64, 20, 10), method=Minibatch(3, 50)),
    "minibatches, five layers": lambda: LiftedMLP((64, *[20] * 5, 10), method=Minibatch(3, 50)),
    "Gauss-Newton by products": lambda: LiftedMLP(
        (64, 8, 10), Tanh(), method=GaussNewton(3, form="products")
    ),
    "Gauss-Newton as a matrix": lambda: LiftedMLP(
        (64, 8, 10), Tanh(), method=GaussNewton(3, form="normal")
    ),
    "recurrent, Gauss-Newton": lambda: LiftedRNN(8, 6, 10, method=GaussNewton(2)),
    "recurrent, minibatches": lambda: LiftedRNN(8, 6, 10, method=Minibatch(2, 50)),
}


def _share(rank: int, size: int, samples: int) -> slice:
    """Return a share of its own size: that of process k is about k + 1 times the first."""
    ends = [samples * k * (k + 1) // (size * (size + 1)) for k in range(size + 1)]
    return slice(ends[rank], ends[rank + 1])


def _equal(rank: int, size: int, name: str) -> Any:
    x, y = _small()
    rows = _share(rank, size, len(x))
    x = x.view(-1, 8, 8) if name.startswith("recurrent") else x
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = EQUAL[name]().fit(x[rows], y[rows])
    assert model.trace is not None
    last = model.trace.steps[-1]
    weights = [layer.stacked().numpy() for layer in model.weights]
    objectives = [step.objective for step in model.trace.steps]
    return objectives, model.objective(), weights, last.messages, last.bytes


def equality() -> list[str]:
    lines = [
        "| training | processes | steps' objectives | objective at the end | weights | twice the "
        "same bits | messages | MB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in EQUAL:
        [one] = in_group(1, _equal, 1, name)
        for size in (2, 3, 4):
            found, again = (in_group(size, _equal, size, name)[0] for _ in range(2))
            steps = max(_apart(a, b) for a, b in zip(one[0], found[0], strict=True))
            weights = max(
                float(abs(a[:-1] - b[:-1]).max()) for a, b in zip(one[2], found[2], strict=True)
            )
            same = found[0] == again[0] and all(
                (a == b).all() for a, b in zip(found[2], again[2], strict=True)
            )
            line = (
                f"| {name} | {size} | {steps:.0e} | {_apart(one[1], found[1]):.0e} | "
                f"{weights:.0e} | {'yes' if same else 'no'} | {found[3]:,} | "
                f"{found[4] / 1e6:.2f} |"
            )
            print(line, flush=True)
            lines.append(line)
    return lines


def _apart(one: float, other: float) -> float:
    return 0.0 if math.isnan(one) else abs(one - other) / (1 + abs(one))


# Efficiency.


@dataclass(frozen=True)
class Case:
    """A training of one sweep or epoch."""

    samples: int
    model: Callable[[], Lifted]
    squares: bool = False


CASES = {
    "sweep, joint, squared error": Case(
        60_000,
        lambda: LiftedMLP(
            UNITS, loss=SquaredError(), lam=0.1, rho=1.0, divergence="joint", start="kaiming",
            method=FullBatch(1, extrapolation=False),
        ),
        squares=True,
    ),
    "epoch of minibatches of 1,000": Case(
        60_000, lambda: LiftedMLP(UNITS, method=Minibatch(1, 1_000), start="kaiming")
    ),
}  # fmt: skip


def _timed(rank: int, case: Case, samples: int) -> tuple[float, float, int, int]:
    """Return wall and processor time of the steps, and what was sent, of one process."""
    found = mnist(FOLDER)
    copies = -(-samples // len(found.x_train))
    x, y = found.x_train.repeat(copies, 1)[:samples], found.y_train.repeat(copies)[:samples]
    y = one_hot(y, 10).float() if case.squares else y
    rows = shard(samples)
    x, y = x[rows].clone(), y[rows].clone()
    model, marks = case.model(), list[float]()

    def on_step(step: Any) -> None:
        marks.append(time.process_time())

    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x, y, on_step=on_step)
    assert model.trace is not None
    last = model.trace.steps[-1]
    return last.seconds, marks[-1] - began, last.messages, last.bytes


def efficiency() -> list[str]:
    lines = [
        "| training | samples | one process, s | two, s | efficiency | messages | MB |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, case in CASES.items():
        least, sent = {1: math.inf, 2: math.inf}, (0.0, 0.0, 0, 0)
        for size in (1, 2) * 3:
            found = in_group(size, _timed, case, case.samples)
            least[size], sent = min(least[size], max(x[0] for x in found)), found[0]
        line = (
            f"| {name} | {case.samples:,} | {least[1]:.2f} | {least[2]:.2f} | "
            f"{least[1] / (2 * least[2]):.2f} | {sent[2]:,} | {sent[3] / 1e6:.2f} |"
        )
        print(line, flush=True)
        lines.append(line)
    return lines


# Constants.


def _reduced(rank: int) -> list[tuple[int, float]]:
    """Return the least time of an all-reduce, in seconds, by bytes."""
    found = []
    for entries in (1, 10_000, 100_000, 1_000_000):
        packed, least = torch.zeros(entries, dtype=torch.float64), math.inf
        for _ in range(20):
            distributed.barrier()
            started = time.perf_counter()
            distributed.all_reduce(packed)
            least = min(least, time.perf_counter() - started)
        found.append((8 * entries, least))
    return found


def constants() -> list[str]:
    lines = []
    latency, bandwidth = 0.0, math.inf
    for size in (2, 4):
        times = [max(x[1] for x in each) for each in zip(*in_group(size, _reduced), strict=True)]
        latency = max(latency, times[0] / math.log2(size))
        moved = 2 * 8e6 * (size - 1) / size
        bandwidth = min(bandwidth, moved / (times[-1] - times[0]))
    lines += [
        f"A message takes {1e6 * latency:.0f} us times log2 of the processes; "
        f"{bandwidth / 1e9:.2f} GB/s pass through each process (loopback, more processes than idle "
        "cores).", "",
        "| training | processes | samples | processor s, measured | foretold | ratio |",
        "| --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    told = {}
    for name, case in CASES.items():
        spent = {}
        for samples in (5_000, 20_000):
            spent[samples] = min(in_group(1, _timed, case, samples)[0][1] for _ in range(2))
        row = (spent[20_000] - spent[5_000]) / 15_000
        fixed = max(spent[5_000] - 5_000 * row, 0.0)
        for size in (1, 2, 4):
            found = in_group(size, _timed, case, 40_000)
            measured = max(x[1] for x in found)
            guess = fixed + 40_000 / size * row + _sent(found[0], size, latency, bandwidth)
            lines.append(
                f"| {name} | {size} | 40,000 | {measured:.2f} | {guess:.2f} | "
                f"{measured / guess:.2f} |"
            )
            print(lines[-1], flush=True)
        told[name] = row, fixed, found[0]
    for name, (row, fixed, sent) in told.items():
        batches = "epoch" in name
        lines += [
            "", f"{name}: {1e6 * row:.1f} us a sample, {fixed:.2f} s whatever their number. "
            f"Foretold, in seconds (MB to and from every process):", "",
            "| samples | " + " | ".join(f"{n:,} processes" for n in _PROCESSES) + " |",
            "| --- |" + " --- |" * len(_PROCESSES),
        ]  # fmt: skip
        for samples in (10**6, 10**8, 10**10):
            cells = []
            for size in _PROCESSES:
                more = samples / 40_000 if batches else 1.0  # as many batches of 1,000 more
                whole = sent[0], sent[1], sent[2] * more, sent[3] * more
                seconds = fixed + samples / size * row + _sent(whole, size, latency, bandwidth)
                traffic = 2 * whole[3] * (size - 1) / size / 1e6
                cells.append(f"{seconds:,.0f} ({traffic:,.0f})")
            lines.append(f"| 10^{round(math.log10(samples))} | " + " | ".join(cells) + " |")
    return lines


_PROCESSES = (1, 10, 100, 1_000, 10_000)


def _sent(run: tuple[float, float, float, float], size: int, latency: float, speed: float) -> float:
    _, _, messages, sent = run
    return messages * latency * math.log2(size) + 2 * sent * (size - 1) / size / speed


PARTS: dict[str, tuple[str, Callable[[], list[str]]]] = {
    "equality": ("Is it the same fit?", equality),
    "efficiency": ("Two processes on two cores", efficiency),
    "constants": ("What more of both would cost", constants),
}


def main() -> None:
    """Measure one part, and write all that are known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=list(PARTS))
    part = parser.parse_args().part
    torch.set_num_threads(1)
    store = RESULT.with_suffix(".json")
    known = json.loads(store.read_text("utf-8")) if store.exists() else {}
    about = ", ".join(f"{name}: {value}" for name, value in machine().items())
    known[part] = [f"{about}, {os.getloadavg()[0]:.1f} before", "", *PARTS[part][1]()]
    store.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    text = ["# Several processes", "", "`python -m benchmarks.distributed PART`", ""]
    for name, (title, _) in PARTS.items():
        if name in known:
            text += [f"## {title}", "", *known[name], ""]
    RESULT.write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
