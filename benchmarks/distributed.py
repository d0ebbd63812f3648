"""One fit by several processes: is it that of one, how fast is it, and what would a large one cost?

    python -m benchmarks.distributed equality     # two minutes
    python -m benchmarks.distributed efficiency   # four minutes, on a machine with nothing else
    python -m benchmarks.distributed processor    # half a minute, on any machine

Processes of a gloo group over the loopback address, one thread each (OMP_NUM_THREADS=1). Equality:
small fits in float64 by 1, 2, 3 and 4 processes with shares of unequal size, whose fits end at
1e-11 (what is left within a tolerance depends on rounding). Efficiency: MNIST, 784-300-10, float32,
wall time of one process over that of two and their number, the least of three runs each. Written to
benchmarks/results/distributed.md.
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
from torch import Tensor
from torch.nn.functional import one_hot

from benchmarks.data.mnist import mnist
from benchmarks.group import in_group
from benchmarks.harness.report import machine
from liftednet.activations import Tanh
from liftednet.data import digits, shard
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
    weights = [layer.stacked().numpy() for layer in model.weights]
    objectives = [step.objective for step in model.trace.steps]
    return objectives, model.objective(), weights


def equality(names: list[str]) -> dict[str, str]:
    lines = {
        "": "| training | processes | steps' objectives | objective at the end | weights | twice "
        "the same bits |\n| --- | --- | --- | --- | --- | --- |"
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
                f"{weights:.0e} | {'yes' if same else 'no'} |"
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
    return model.trace.steps[-1].seconds, marks[-1] - began


def efficiency(names: list[str]) -> dict[str, str]:
    lines = {
        "": "| training | samples | one process, s | two, s | efficiency |\n"
        "| --- | --- | --- | --- | --- |"
    }
    for name in names:
        case = CASES[name]
        least = {1: math.inf, 2: math.inf}
        for size in (1, 2) * 3:
            found = in_group(size, _timed, case, case.samples)
            least[size] = min(least[size], max(x[0] for x in found))
        line = (
            f"| {name} | {case.samples:,} | {least[1]:.2f} | {least[2]:.2f} | "
            f"{least[1] / (2 * least[2]):.2f} |"
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


PARTS: dict[str, tuple[str, Callable[[list[str]], dict[str, str]]]] = {
    "equality": ("Is it the same fit?", equality),
    "efficiency": ("Two processes on two cores", efficiency),
    "processor": ("Two processes by processor time", processor),
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
