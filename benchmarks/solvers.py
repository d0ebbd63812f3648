"""Fit solvers against what a user would pick instead, on the same data to one residual.

Run it with `python -m benchmarks.solvers [outputs|weights|narrow-states|... ...] [--quick]`; the
data folder of MNIST stands in LIFTEDNET_DATA. Without --quick the table and the figures are written
to benchmarks/results/solvers.md and solvers.json.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict, replace

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import torch

from benchmarks.harness.report import machine
from benchmarks.harness.runs import RESULTS
from benchmarks.subproblems import of_trainings, outputs, states, tight_states, weights
from benchmarks.subproblems.harness import (
    COLUMNS,
    Row,
    cells,
    compile_loops,
    drawn_seed,
    measure,
    show,
)

PROBLEMS = {
    "outputs": outputs.comparisons,
    "weights": weights.comparisons,
    "sparse-weights": weights.sparse,
    "small-states": states.small,
    "narrow-states": states.narrow,
    "wide-states": states.wide,
    "large-states": states.large,
    "boxes": states.boxes,
    "tight-states": tight_states.comparisons,
    "of-trainings": of_trainings.comparisons,
}
ROUNDS = 3
PER_ROW = "date", "load", "processor"


def earlier() -> list[Row]:
    """Return the rows that were written before."""
    path = RESULTS / "solvers.json"
    if not path.exists():
        return []
    return [Row(**row) for row in json.loads(path.read_text(encoding="utf-8"))["rows"]]


def write(found: list[Row], where: dict[str, str]) -> None:
    """Write what was found, in place of the earlier rows of the same problem; losses first."""
    RESULTS.mkdir(exist_ok=True)
    measured = f"{where['date'][:10]}, {where['processor'].rpartition(',')[0]}, "
    measured += f"load {where['load'].split()[0]}, seed {drawn_seed()}"
    found = [replace(row, measured=measured) for row in found]
    rows = [row for row in earlier() if row.problem != found[0].problem] + found
    leads = {row.problem: _lead(row.problem, rows) for row in rows}
    rows.sort(key=lambda row: (leads[row.problem], row.problem))
    document = {"machine": where, "rounds": ROUNDS, "rows": [asdict(row) for row in rows]}
    (RESULTS / "solvers.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    fixed = ", ".join(f"{k}: {v}" for k, v in where.items() if k not in PER_ROW)
    lines = ["# Fit solvers", "", f"{fixed}; the rest of what it ran on stands with each."]
    lines += [f"Medians of {ROUNDS} interleaved runs of 20 ms or more, after one. What is not of a"]
    lines += ["training run is drawn from a seed that is new in each run of the benchmark. The"]
    lines += ["certificate is the share of ours that says how good the value is.", ""]
    for problem in dict.fromkeys(row.problem for row in rows):
        own = [row for row in rows if row.problem == problem]
        lines += [f"## {problem}", "", f"{own[0].measured}.", ""]
        lines += [f"| {' | '.join(COLUMNS)} |", f"| --- |{' ---: |' * (len(COLUMNS) - 1)}"]
        lines += [f"| {' | '.join(cells(row))} |" for row in own]
        lines += [""]
    (RESULTS / "solvers.md").write_text("\n".join(lines), encoding="utf-8")


def _lead(problem: str, rows: list[Row]) -> float:
    """Return how many times the fastest other method ours, the first, is as fast as."""
    others = [row for row in rows if row.problem == problem and not row.method.startswith("lifted")]
    return min((row.ratio for row in others), default=float("inf"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problems", nargs="*", choices=[*PROBLEMS, []], default=[])
    parser.add_argument("--quick", action="store_true", help="toy sizes, nothing written")
    options = parser.parse_args()
    torch.set_num_threads(1)
    where = machine()
    compile_loops()
    for name in options.problems or PROBLEMS:
        for comparison in PROBLEMS[name](options.quick):
            found = measure(comparison, 1 if options.quick else ROUNDS)
            show(found)
            if not options.quick:
                write(found, where)


if __name__ == "__main__":
    main()
