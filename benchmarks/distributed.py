"""One fit by several processes: is it that of one, what does it send, what does it cost?

MNIST, 784-300-10, full-batch sweeps (joint and tight), minibatches of 1,000 and Gauss-Newton, by
1, 2, 3 and 4 processes of a gloo group over the loopback address, one thread each. Messages and
bytes are counted where they are handed to torch.distributed. Time is processor time, that of the
slowest process: on a machine that does other work the waiting of processes for one another says
nothing. Run it with `OMP_NUM_THREADS=1 python -m benchmarks.distributed`, four minutes; it writes
benchmarks/results/distributed.part.md.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, multiprocessing

from benchmarks.solvers import machine
from liftednet import shard
from liftednet.data import mnist
from liftednet.models import FullBatch, GaussNewton, LiftedMLP, Minibatch

RESULT = Path(__file__).parent / "results" / "distributed.md"
UNITS = (784, 300, 10)


@dataclass(frozen=True)
class Case:
    """A training of which one round is measured: a sweep, an epoch or a step."""

    name: str
    samples: int
    rounds: int
    dtype: torch.dtype
    model: Callable[[int], LiftedMLP]


def _full(divergence: str) -> Callable[[int], LiftedMLP]:
    return lambda rounds: LiftedMLP(
        UNITS, lam=0.1, rho=1.0, divergence=divergence,
        method=FullBatch(rounds, extrapolation=False), start="kaiming",
    )  # fmt: skip


def _minibatch(rounds: int) -> LiftedMLP:
    return LiftedMLP(UNITS, method=Minibatch(rounds, 1_000), start="kaiming")


def _gauss_newton(rounds: int) -> LiftedMLP:
    return LiftedMLP(UNITS, method=GaussNewton(rounds, form="products"), start="kaiming")


CASES = (
    Case("sweep, joint", 60_000, 1, torch.float32, _full("joint")),
    Case("sweep, tight", 10_000, 1, torch.float32, _full("tight")),
    Case("epoch of minibatches of 1,000", 60_000, 1, torch.float32, _minibatch),
    Case("Gauss-Newton step", 2_000, 1, torch.float32, _gauss_newton),
    Case("float64: sweep, joint", 5_000, 2, torch.float64, _full("joint")),
    Case("float64: epoch of minibatches of 1,000", 5_000, 2, torch.float64, _minibatch),
    Case("float64: Gauss-Newton step", 1_000, 2, torch.float64, _gauss_newton),
)


def trained(rank: int, size: int, case: Case) -> dict[str, Any]:
    """Return what one process of a fit has seen of it."""
    data = mnist(os.environ.get("LIFTEDNET_DATA"))
    x, y = data.x_train[: case.samples].to(case.dtype), data.y_train[: case.samples]
    rows, sent = shard(len(x)), Counter[str]()
    x, y = x[rows].clone(), y[rows].clone()
    _count(sent)
    model = case.model(case.rounds)
    blocks, before = Counter[str](), Counter[str]()

    def on_step(step: Any) -> None:
        for name in ("messages", "bytes"):
            blocks[f"{step.block} {name}"] += sent[name] - before[name]
        before.update({name: sent[name] - before[name] for name in ("messages", "bytes")})
        marks.append((time.process_time(), time.perf_counter()))

    marks = [(time.process_time(), time.perf_counter())]
    model.fit(x, y, on_step=on_step)
    assert model.trace is not None  # it has been fitted just now
    return {
        "seconds": time.process_time() - marks[0][0],
        "wall": time.perf_counter() - marks[0][1],
        "messages": sent["messages"], "bytes": sent["bytes"], "blocks": dict(blocks),
        "objectives": [step.objective for step in model.trace.steps],
        "weights": [layer.matrix for layer in model.weights],
    }  # fmt: skip


def _count(sent: Counter[str]) -> None:
    """Count what is handed to torch.distributed from now on."""
    for name in ("all_reduce", "all_gather", "gather", "broadcast"):
        send = getattr(distributed, name)

        def counted(*given: Any, send: Any = send, **named: Any) -> Any:
            own = next(x for x in reversed(given) if isinstance(x, Tensor))
            sent.update(messages=1, bytes=own.numel() * own.element_size())
            return send(*given, **named)

        setattr(distributed, name, counted)


def run(size: int, case: Case) -> list[dict[str, Any]]:
    """Return what every process of a group has seen."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def work(rank: int) -> None:
        torch.set_num_threads(1)
        address = f"tcp://127.0.0.1:{port}"
        distributed.init_process_group("gloo", address, rank=rank, world_size=size)
        found = trained(rank, size, case)
        weights = [weight.double().numpy() for weight in found.pop("weights")]
        queue.put((rank, json.dumps(found), weights if rank == 0 else None))
        distributed.destroy_process_group()

    started = [context.Process(target=work, args=(rank,)) for rank in range(size)]
    for process in started:
        process.start()
    results = sorted((queue.get() for _ in started), key=lambda one: one[0])
    for process in started:
        process.join()
    return [{**json.loads(text), "weights": weights} for _, text, weights in results]


def main() -> None:
    """Measure, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, nargs="*", default=list(range(len(CASES))))
    parser.add_argument("--sizes", type=int, nargs="*", default=[1, 2, 4])
    given = parser.parse_args()
    lines = []
    for number in given.cases:
        case, one = CASES[number], None
        for size in given.sizes:
            found = run(size, case)
            one = one or found[0]
            slowest = max(each["seconds"] for each in found)
            objective = max(
                abs(a - b) / (1 + abs(a))
                for a, b in zip(one["objectives"], found[0]["objectives"], strict=True)
            )
            weights = max(
                float(abs(a - b).max())
                for a, b in zip(one["weights"], found[0]["weights"], strict=True)
            )
            line = (
                f"| {case.name} | {case.samples:,} | {size} | {slowest:.2f} | "
                f"{one['seconds'] / (size * slowest):.2f} | {found[0]['wall']:.1f} | "
                f"{found[0]['messages']:,} | {found[0]['bytes'] / 1e6:.2f} | {objective:.0e} | "
                f"{weights:.0e} |"
            )
            print(line, found[0]["blocks"], flush=True)
            lines.append(line)
    load = os.getloadavg()[0]
    head = [
        "| training | samples | processes | slowest, s | share of ideal | wall, s | messages | MB "
        "| objectives | weights |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    text = "\n".join([*head, *lines, "", f"({machine()}, load {load:.1f} at the end)", ""])
    RESULT.with_suffix(".part.md").write_text(text)


if __name__ == "__main__":
    main()
