"""The README's table of solvers: where the first of ours is behind the fastest of the others.

Run it with `python benchmarks/solvers_summary.py [--readme]` after `python -m benchmarks.solvers`;
with --readme the table in README.md is replaced, else all rows are printed.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
_OF_ROWS = ("date", "load")
PLACE = re.compile(r"(<!-- solvers -->\n).*?(<!-- /solvers -->)", re.DOTALL)


def pairs(results: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield each problem, ours, and the fastest other, whose ratio above 1 says that ours leads."""
    for problem, group in groupby(results["rows"], key=lambda row: str(row["problem"])):
        rows = list(group)
        ours = next(row for row in rows if row["method"].startswith("liftednet"))
        others = [row for row in rows if not row["method"].startswith("liftednet")]
        yield problem, ours, max(others, key=lambda row: float(row["samples_per_second"]))


def line(problem: str, ours: dict[str, Any], best: dict[str, Any]) -> str:
    """Return one row."""
    cells = (
        problem,
        f"{ours['samples_per_second']:,.0f} ({ours['residual']:.0e})",
        f"{best['samples_per_second']:,.0f} ({best['residual']:.0e})",
        best["method"],
        _shown(best["ratio"]),
        ours["measured"],
    )
    return f"| {' | '.join(cells)} |"


def _shown(ratio: float) -> str:
    return f"{ratio:.2g}" if ratio < 10 else f"{ratio:,.0f}"


def table(results: dict[str, Any], lost: bool) -> str:
    """Return all rows, or those we lose and what the others are, and what has measured them."""
    found = list(pairs(results))
    head = "| problem | ours, samples/s (residual) | fastest other | which | ratio | measured |"
    lines = [head, "| --- | --- | --- | --- | --- | --- |"]
    lines += [line(*each) for each in found if not lost or each[2]["ratio"] < 1]
    fixed = {name: value for name, value in results["machine"].items() if name not in _OF_ROWS}
    measured = ", ".join(f"{name} {value}" for name, value in fixed.items())
    ahead = [best["ratio"] for _, _, best in found if best["ratio"] >= 1]
    others = (
        f"In {len(ahead)} of {len(found)} rows we lead, by {_shown(min(ahead))} to "
        f"{_shown(max(ahead))} times, {_shown(median(ahead))} in the median. ({measured}.)"
    )
    return "\n".join(["", *lines, "", others, ""])


def main(*options: str) -> None:
    found = json.loads((HERE / "results" / "solvers.json").read_text(encoding="utf-8"))
    print(table(found, lost=False))
    if "--readme" in options:
        before, text = README.read_text(encoding="utf-8"), table(found, lost=True)
        README.write_text(PLACE.sub(rf"\g<1>{text}\g<2>", before), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
