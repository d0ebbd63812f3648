"""The starts that `liftednet demo` compares, as the README has them.

Run it with `OMP_NUM_THREADS=1 python -m benchmarks.demo`, a minute. Written to
benchmarks/results/demo.md, from which `python -m benchmarks.prose` takes the README's table.
"""

from __future__ import annotations

import torch

from benchmarks.harness.report import write
from liftednet.command.demo import PLANS, chosen_setting, curves_of, table, task_of


def main() -> None:
    """Compare, and write the table."""
    torch.set_num_threads(1)
    plan = PLANS["digits"]
    task = task_of("digits", plan.hidden)
    shown = table(curves_of(task, plan, chosen_setting(task, plan), seeds=5))
    rows = [[str(column.header).replace("\n", ", ") for column in shown.columns]]
    rows.append(["---"] * len(shown.columns))
    rows += map(list, zip(*(map(str, column.cells) for column in shown.columns), strict=True))
    lines = [f"| {' | '.join(row)} |" for row in rows]
    about = f"{shown.title}. {shown.caption}"
    write("demo", "The demo", about, lines)


if __name__ == "__main__":
    main()
