"""The starts that `liftednet demo` compares, as docs/torch_network.md has them.

Run it with `OMP_NUM_THREADS=1 python -m benchmarks.demo`, a minute. Written to
benchmarks/results/demo.md, from which `python -m benchmarks.prose` takes the README's table.
"""

from __future__ import annotations

import torch

from benchmarks.harness.report import write
from liftednet.command.demo import PLANS, compare, table
from liftednet.data import digits


def main() -> None:
    """Compare, and write the table."""
    torch.set_num_threads(1)
    shown = table(list(compare(digits(), PLANS["digits"], range(5))))
    rows = [[str(column.header) for column in shown.columns]]
    rows.append(["---"] * len(shown.columns))
    rows += map(list, zip(*(map(str, column.cells) for column in shown.columns), strict=True))
    lines = [f"| {' | '.join(row)} |" for row in rows]
    write("demo", "The demo", f"{shown.title}.", lines)


if __name__ == "__main__":
    main()
