"""One fit by several processes: is it that of one, how fast is it, and what would a large one cost?

    python -m benchmarks.distributed equality     # two minutes
    python -m benchmarks.distributed efficiency   # four minutes, on a machine with nothing else
    python -m benchmarks.distributed processor    # half a minute, on any machine
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import torch
from torch import Tensor, distributed
from torch.nn.functional import one_hot

from benchmarks.group import in_group
from benchmarks.harness.report import machine
from liftednet.activations import Tanh
from liftednet.data import digits, mnist, shard
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


def equality(names: list[str]) -> dict[str, str]:
    lines = {
        "": "| training | processes | steps' objectives | objective at the end | weights | twice "
        "the same bits | messages | MB |\n| --- | --- | --- | --- | --- | --- | --- | --- |"
    }
    for name in names:
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
            lines[f"{name}, {size}"] = line
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
    smaller: Callable[[], Lifted] | None = None  # the same in batches of 250


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
        60_000,
        lambda: LiftedMLP(UNITS, method=Minibatch(1, 1_000), start="kaiming"),
        smaller=lambda: LiftedMLP(UNITS, method=Minibatch(1, 250), start="kaiming"),
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


def efficiency(names: list[str]) -> dict[str, str]:
    lines = {
        "": "| training | samples | one process, s | two, s | efficiency | messages | MB |\n"
        "| --- | --- | --- | --- | --- | --- | --- |"
    }
    for name in names:
        case = CASES[name]
        least, sent = {1: math.inf, 2: math.inf}, (0.0, 0.0, 0, 0)
        for size in (1, 2) * 3:
            found = in_group(size, _timed, case, case.samples)
            least[size], sent = min(least[size], max(x[0] for x in found)), found[0]
        line = (
            f"| {name} | {case.samples:,} | {least[1]:.2f} | {least[2]:.2f} | "
            f"{least[1] / (2 * least[2]):.2f} | {sent[2]:,} | {sent[3] / 1e6:.2f} |"
        )
        print(line, flush=True)
        lines[name] = line
    return lines


# The same by processor time.


def _spent(rank: int, samples: int, batch: int) -> float:
    """Return the processor time of a batch of minibatch training, the first pass left out."""
    found = mnist(FOLDER)
    x, y = found.x_train[:samples], found.y_train[:samples]
    rows, marks = shard(samples), list[float]()
    model = LiftedMLP(UNITS, method=Minibatch(3, batch), start="kaiming")
    model.fit(x[rows], y[rows], on_step=lambda step: marks.append(time.process_time()))
    return (marks[-1] - marks[0]) / 2 / (samples / batch)


def processor(names: list[str]) -> dict[str, str]:
    lines = {
        "": "A busy machine stretches wall time, and not this: milliseconds a batch, the least of "
        "three runs.\n\n| samples of a batch | one process | one, half of the rows and batches of "
        "half | two | efficiency |\n| --- | --- | --- | --- | --- |"
    }
    for batch in (1_000, 4_000):
        least, samples = [math.inf] * 3, 3 * batch
        for _ in range(3):
            runs = ((1, samples, batch), (1, samples // 2, batch // 2), (2, samples, batch))
            found = [max(in_group(size, _spent, *given)) for size, *given in runs]
            least = [min(pair) for pair in zip(least, found, strict=True)]
        one, half, two = (1e3 * x for x in least)
        line = f"| {batch:,} | {one:.1f} | {half:.1f} | {two:.1f} | {one / (2 * two):.2f} |"
        print(line, flush=True)
        lines[f"{batch}"] = line
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


def constants(names: list[str]) -> dict[str, str]:
    latency, bandwidth = _messages()
    lines = {
        "": f"A message takes {1e6 * latency:.0f} us times log2 of the processes; "
        f"{bandwidth / 1e9:.2f} GB/s pass through each process (loopback, on two cores)."
    }
    for name in names:
        lines[name] = "\n".join(_foretold(name, CASES[name], latency, bandwidth))
        print(lines[name], flush=True)
    return lines


def _messages() -> tuple[float, float]:
    """Return the latency of an all-reduce, in seconds, and bytes a second of each process."""
    latency, bandwidth = 0.0, math.inf
    for size in (2, 4):
        times = [max(x[1] for x in each) for each in zip(*in_group(size, _reduced), strict=True)]
        latency = max(latency, times[0] / math.log2(size))
        bandwidth = min(bandwidth, 2 * 8e6 * (size - 1) / size / (times[-1] - times[0]))
    return latency, bandwidth


def _costs(case: Case) -> tuple[float, float]:
    """Return processor time for a row, and what a sweep or a batch takes whatever its rows."""

    def least(case: Case, samples: int) -> float:
        return min(in_group(1, _timed, case, samples)[0][1] for _ in range(3))

    if not case.smaller:
        few, many = least(case, 2_000), least(case, 8_000)
        row = (many - few) / 6_000
        return row, max(few - 2_000 * row, 0.0)
    many = least(replace(case, model=case.smaller), 8_000)  # in 32 batches
    few = least(case, 8_000)  # in 8
    batch = max(many - few, 0.0) / 24
    return (few - 8 * batch) / 8_000, batch


def _foretold(name: str, case: Case, latency: float, bandwidth: float) -> list[str]:
    row, fixed = _costs(case)
    what = "a batch" if case.smaller else "a sweep"
    lines = [
        f"**{name}**: {1e6 * row:.1f} us a sample, {1e3 * fixed:.1f} ms {what} whatever its rows.",
        "",
        "| processes | samples | processor s of the slowest, measured | foretold | ratio |",
        "| --- | --- | --- | --- | --- |",
    ]

    def seconds(samples: int, size: int, sent: tuple[float, ...]) -> tuple[float, float]:
        """Return time, without that of waiting for messages, and bytes of a process."""
        parts = samples / 1_000 if case.smaller else 1.0
        more = samples / _CHECKED if case.smaller else 1.0  # so many times the messages
        moved = 2 * more * sent[3] * (size - 1) / size
        return parts * fixed + samples / size * row + moved / bandwidth, moved

    for size in (1, 2, 4):
        found = in_group(size, _timed, case, _CHECKED)
        measured = max(x[1] for x in found)
        guess, _ = seconds(_CHECKED, size, found[0])
        lines.append(
            f"| {size} | {_CHECKED:,} | {measured:.2f} | {guess:.2f} | {measured / guess:.2f} |"
        )
    sent = found[0]
    lines += [
        "", f"It sends {sent[2]:,} messages, {sent[3] / 1e6:.2f} MB. Foretold, in seconds (MB to "
        "and from every process):", "",
        "| samples | " + " | ".join(f"{n:,} processes" for n in _PROCESSES) + " |",
        "| --- |" + " --- |" * len(_PROCESSES),
    ]  # fmt: skip
    for samples in (10**6, 10**8, 10**10):
        cells = []
        more = samples / _CHECKED if case.smaller else 1.0
        for size in _PROCESSES:
            spent, moved = seconds(samples, size, sent)
            waited = more * sent[2] * latency * math.log2(size)
            cells.append(f"{spent + waited:,.1f} ({moved / 1e6:,.0f})")
        lines.append(f"| 10^{round(math.log10(samples))} | " + " | ".join(cells) + " |")
    return [*lines, ""]


_CHECKED = 16_000
_PROCESSES = (1, 10, 100, 1_000, 10_000)


PARTS: dict[str, tuple[str, Callable[[list[str]], dict[str, str]]]] = {
    "equality": ("Is it the same fit?", equality),
    "efficiency": ("Two processes on two cores", efficiency),
    "processor": ("Two processes by processor time", processor),
    "constants": ("What more of both would cost", constants),
}


def main() -> None:
    """Measure one part, and write all that are known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("names", nargs="*", help="some of the trainings; none for all")
    given = parser.parse_args()
    torch.set_num_threads(1)
    store = RESULT.with_suffix(".json")
    known = json.loads(store.read_text("utf-8")) if store.exists() else {}
    load = os.getloadavg()[0]
    every = {"equality": list(EQUAL), "processor": [""]}.get(given.part, list(CASES))
    for name in given.names or every:
        found = known.setdefault(given.part, {})
        found.update(PARTS[given.part][1]([name]))
        about = ", ".join(f"{name}: {value}" for name, value in machine().items())
        found["about"] = f"{about}, {load:.1f} before."
        store.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    text = ["# Several processes", "", "`python -m benchmarks.distributed PART`", ""]
    for name, (title, _) in PARTS.items():
        if name in known:
            rows = dict(known[name])
            text += [f"## {title}", "", rows.pop("about"), "", *rows.values(), ""]
    RESULT.write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
