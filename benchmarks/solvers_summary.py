"""The README's table of solvers: the first of ours beside the fastest of the others.

Run it with `python benchmarks/solvers_summary.py [--readme]` after `python -m benchmarks.solvers`;
with --readme the table in README.md is replaced.
"""

from __future__ import annotations

import json
import re
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
_OF_ROWS = ("date", "load")
PLACE = re.compile(r"(<!-- solvers -->\n).*?(<!-- /solvers -->)", re.DOTALL)


def line(problem: str, rows: list[dict[str, Any]]) -> str:
    """Return one row; a ratio above 1 means that ours is faster."""
    ours = next(row for row in rows if row["method"].startswith("liftednet"))
    others = [row for row in rows if not row["method"].startswith("liftednet")]
    best = max(others, key=lambda row: float(row["samples_per_second"]))
    cells = (
        problem,
        f"{ours['samples_per_second']:,.0f} ({ours['residual']:.0e})",
        f"{best['samples_per_second']:,.0f} ({best['residual']:.0e})",
        best["method"],
        f"{best['ratio']:.2g}" if best["ratio"] < 10 else f"{best['ratio']:,.0f}",
        ours["measured"],
    )
    return f"| {' | '.join(cells)} |"


def table(results: dict[str, Any]) -> str:
    """Return the table, and below it where and when it was measured."""
    grouped = groupby(results["rows"], key=lambda row: row["problem"])
    head = "| problem | ours, samples/s (residual) | fastest other | which | ratio | measured |"
    fixed = {name: value for name, value in results["machine"].items() if name not in _OF_ROWS}
    measured = ", ".join(f"{name} {value}" for name, value in fixed.items())
    lines = [head, "| --- | --- | --- | --- | --- | --- |"]
    lines += [line(problem, list(rows)) for problem, rows in grouped]
    return "\n".join(["", *lines, "", f"({measured}.)", ""])


def main(*options: str) -> None:
    found = json.loads((HERE / "results" / "solvers.json").read_text(encoding="utf-8"))
    text = table(found)
    print(text)
    if "--readme" in options:
        before = README.read_text(encoding="utf-8")
        README.write_text(PLACE.sub(rf"\g<1>{text}\g<2>", before), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
