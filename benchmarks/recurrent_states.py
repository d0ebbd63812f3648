"""States over time: exact Newton steps against cyclic and red-black sweeps, by sequence length.

Run it with `python -m benchmarks.recurrent_states [longest] [--json]`; with --json the table is
also written to benchmarks/results/recurrent_states.json and .md.
"""

from __future__ import annotations

import json
import multiprocessing
import platform
import resource
import sys
import time
from pathlib import Path

import rich.table
import torch
from rich.console import Console

from benchmarks.harness.tables import Table, provenance
from liftednet.data import running_sum
from liftednet.models import FullBatch, LiftedRNN
from liftednet.problems.states_over_time import forward_states
from liftednet.solvers.over_time import Cyclic, NewtonOverTime, RedBlack

SAMPLES, UNITS, TOLERANCE = 200, 10, 1e-6
LENGTHS = (10, 50, 100, 400, 1000, 4000)
SOLVERS = ("exact", "cyclic", "red-black")  # the exact one first: it sets the limit
NOTES = (
    "One thread, processor seconds; 200 running sums, 10 ReLU units that start as the identity, "
    "joint divergence, lam = 10, from the states of a forward pass.",
    "Sweeps stop after the seconds of the exact solve; what they have reached by then is shown.",
    "One iteration is what a training sweep spends on the states: two Newton steps, or one sweep.",
    "Every cell runs in a process of its own, whose peak memory is that of the interpreter.",
)
ITERATION = {
    "exact": NewtonOverTime(TOLERANCE, max_iterations=2),
    "cyclic": Cyclic(TOLERANCE, max_iterations=1),
    "red-black": RedBlack(TOLERANCE, max_iterations=1),
}


def states_problem(length: int):
    x, y = running_sum(SAMPLES, length, seed=1)
    model = LiftedRNN(
        1,
        UNITS,
        2,
        lam=10.0,
        rho=0.1,
        divergence="joint",
        start="identity",
        method=FullBatch(1, extrapolation=False),
        state_solver=ITERATION["exact"],
    )
    model.fit(x, y)  # weights that have seen the task
    (block,) = [b for b in model._blocks.sweep() if b.name == "states 1"]
    return block.problem()


def measure(solver: str, length: int, limit: float) -> dict[str, float]:
    torch.set_num_threads(1)
    problem = states_problem(length)
    start = forward_states(problem)
    began = time.process_time()
    ITERATION[solver].solve(problem, start)
    iteration = time.process_time() - began
    began, states, steps = time.process_time(), start, 0
    if solver == "exact":
        solution = NewtonOverTime(TOLERANCE).solve(problem, start)
        steps, seconds = solution.iterations, time.process_time() - began
    else:
        while True:
            solution = ITERATION[solver].solve(problem, states)
            states, steps = solution.value, steps + 1
            seconds = time.process_time() - began
            if solution.residual <= TOLERANCE or seconds > limit:
                break
    return {
        "length": length,
        "solver": solver,
        "iteration_seconds": iteration,
        "milliseconds_per_step": 1e3 * iteration / length,
        "steps": steps,
        "seconds": seconds,
        "residual": solution.residual,
        "peak_gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def in_own_process(*arguments) -> dict[str, float]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, arguments)


def main() -> None:
    longest = next((int(a) for a in sys.argv[1:] if a.isdigit()), LENGTHS[-1])
    cells: list[dict[str, float]] = []
    for length in [length for length in LENGTHS if length <= longest]:
        limit = 0.0
        for solver in SOLVERS:
            cells.append(in_own_process(solver, length, limit))
            limit = limit or cells[-1]["seconds"]
            if "--json" in sys.argv:
                write(cells)
    table = rich.table.Table(*cells[0], title="States over time, to a residual of 1e-6")
    for cell in cells:
        table.add_row(*map(shown, cell.values()))
    Console(width=140).print(table)


def write(cells: list[dict[str, float]]) -> None:
    path = Path(__file__).parent / "results" / "recurrent_states.json"
    path.parent.mkdir(exist_ok=True)
    machine = {"processor": processor(), "torch": torch.__version__, "threads": 1}
    path.write_text(json.dumps({"machine": machine, "cells": cells}, indent=1) + "\n")
    rows = [[shown(value) for value in cell.values()] for cell in cells]
    columns = [name.replace("_", " ") for name in cells[0]]
    table = Table("States over time, to a residual of 1e-6", columns, rows, NOTES)
    path.with_suffix(".md").write_text(f"{provenance()}\n\n{table.markdown()}")


def shown(value: str | float) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def processor() -> str:
    info = Path("/proc/cpuinfo")
    names = info.read_text().splitlines() if info.is_file() else []
    found = [line.split(":", 1)[1].strip() for line in names if line.startswith("model name")]
    return found[0] if found else platform.machine()


if __name__ == "__main__":
    main()
