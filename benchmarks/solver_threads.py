"""Does a second thread slow small solves down, and what does it bring large ones?

Run it with `OMP_NUM_THREADS=2 python -m benchmarks.solver_threads` on a machine that does nothing
else. Wall time, medians of interleaved runs with one thread and with two; written to
benchmarks/results/solver_threads.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.solver_memory import multinomial, outputs, ridge, states
from benchmarks.solvers import machine
from liftednet.solvers import solve

RESULT = Path(__file__).parent / "results" / "solver_threads.md"
SIZES = (10, 100, 1_000, 10_000)


def seconds(problem: Any, threads: int) -> float:
    torch.set_num_threads(threads)
    started = time.perf_counter()
    solve(problem)
    return time.perf_counter() - started


def rows() -> Iterator[str]:
    """Yield the lines of the table."""
    for make in (states, outputs, ridge, multinomial):
        for samples in SIZES:
            case = make(samples)
            times: dict[int, list[float]] = {1: [], 2: []}
            for _ in range(15):
                for threads, found in times.items():
                    found.append(seconds(case.problem, threads))
            one, two = (median(found[2:]) for found in times.values())
            yield (
                f"| {case.name} | {samples:,} | {1e3 * one:.2f} | {1e3 * two:.2f} | "
                f"{one / two:.2f} |"
            )


def main() -> None:
    where = ", ".join(f"{name}: {value}" for name, value in machine().items())
    lines = ["# One thread and two", "", f"{where}.", ""]
    lines += ["Wall time of a solve in float32, milliseconds; a gain below 1 is a loss.", ""]
    lines += ["| problem | samples | one thread | two threads | gain |"]
    lines += ["| --- | ---: | ---: | ---: | ---: |"]
    for line in rows():
        print(line, flush=True)
        lines.append(line)
    RESULT.write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
