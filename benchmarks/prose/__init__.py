"""Figures in prose are made, not typed: `python -m benchmarks.prose` writes them.

README.md and the pages of docs/ have places between `<!-- name -->` and `<!-- /name -->`. What
stands there is benchmarks/prose/NAME.md, in which figures are named by their place in a table of
results:

    {small_data: mean > LiftedMLP}

is the first number in the column LiftedMLP of the one row that has a cell `mean`, in a table of
benchmarks/results/small_data.md. Several cells of a row, the heading above its table, or the line
before it are joined by ` & `, and * stands for any letters of a cell. ` ~ 3` rounds to three
digits, ` ~ all` takes mean and deviation, and ` minus ` between two places takes their difference.

`<!-- chart-NAME -->` is the place of a chart, which charts.toml describes.
"""

from __future__ import annotations

import json
import re
import runpy
from fnmatch import fnmatchcase
from functools import cache
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.prose import charts

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
TEMPLATES = Path(__file__).parent
PICTURES = {"error_bars": "13_error_bars"}  # of README.md, drawn where they are not there
CHARTS = ROOT / "docs/_static/charts"
_PLACE = re.compile(r"(<!-- ([\w-]+) -->)(.*?)(<!-- /\2 -->)", re.DOTALL)
_FIGURE = re.compile(r"\{([\w/-]+: [^{}]+ > [^{}]+)\}")
_BETWEEN = re.compile(r"(?<=\s)\|(?=\s)|(?<=-)\|(?=-)")  # a norm in a cell, as |x|, stays whole
_NUMBER = re.compile(r"-?\d*\.?\d+(?:e[-+]\d+)?")


def place(name: str) -> Path:
    """Return the file of results of that name."""
    places = (ROOT / "results" / name / "README.md", ROOT / "benchmarks/results" / f"{name}.md")
    return next(place for place in places if place.is_file())


@cache
def rows(name: str) -> list[dict[str, str]]:
    """Return the rows of all Markdown tables of a file of results, by column."""
    found: list[dict[str, str]] = []
    section, above, columns = "", "", list[str]()
    for line in place(name).read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            columns, above = [], line.strip() or above
            section = line.lstrip("# ") if line.startswith("#") else section
            continue
        cells = [cell.strip() for cell in _BETWEEN.split(line.strip()[1:-1])]
        if not columns:
            columns = cells
        elif set(line) - set("|-: "):
            where = {"section": section, "above": above}
            found.append(where | dict(zip(columns, cells, strict=False)))
    return found


def cell(where: str) -> str:
    """Return the cell that a place names.

    Raises:
        LookupError: no row or several rows fit, or there is no such column.
    """
    name, _, rest = where.partition(": ")
    keys, _, column = rest.rpartition(" > ")
    fitting = [
        row
        for row in rows(name)
        if column in row
        and all(any(fnmatchcase(value, key) for value in row.values()) for key in keys.split(" & "))
    ]
    if len(fitting) != 1:
        raise LookupError(f"{where!r} fits {len(fitting)} rows of the results.")
    return fitting[0][column]


def figure(where: str) -> str:
    """Return a figure as a page shows it."""
    where, _, form = where.partition(" ~ ")
    first, _, second = where.partition(" minus ")
    if form == "all":
        return re.sub(r" \(\d+\)$", "", cell(first))
    numbers = [_NUMBER.findall(cell(each))[0] for each in (first, second) if each]
    if not form and not second:
        return str(numbers[0])
    value = float(numbers[0]) - (float(numbers[1]) if second else 0.0)
    return f"{value:.{form or 4}f}"


def solvers() -> str:
    """Return the rows of benchmarks/results/solvers.json below .8, and how the others are."""
    lines = [
        "| problem | ours, samples/s (residual) | fastest other | which | ratio |",
        "| --- | --- | --- | --- | --- |",
    ]
    for ours, best in pairs():
        if best["ratio"] >= _NEAR or _BLOCK.search(best["problem"]):
            continue
        cells = [f"{x['samples_per_second']:,.0f} ({x['residual']:.0e})" for x in (ours, best)]
        cells = [ours["problem"], *cells, best["method"], _times(best["ratio"])]
        lines.append(f"| {' | '.join(cells)} |")
    machine = ", ".join(
        f"{name} {value}" for name, value in _of_solvers()["machine"].items() if name in _MACHINE
    )
    measured = "; ".join(sorted({ours["measured"] for ours, _ in pairs()}))
    told = []
    blocks = [best for _, best in pairs() if _BLOCK.search(best["problem"])]
    drawn = [best for _, best in pairs() if best not in blocks]
    for what, some in (("drawn problems", drawn), ("blocks of trainings", blocks)):
        ratios = [best["ratio"] for best in some]
        ahead = [ratio for ratio in ratios if ratio >= 1]
        told.append(
            f"Of {len(ratios)} {what} we lead in {len(ahead)}, {_times(median(ratios))} in the "
            f"median of all; {sum(_NEAR <= x < 1 for x in ratios)} more are above {_NEAR:g}."
        )
    below: dict[str, list[float]] = {}
    for best in blocks:
        if best["ratio"] < _NEAR:
            below.setdefault(best["problem"].partition(",")[0], []).append(best["ratio"])
    kinds = (
        f"{len(x)} of {kind} ({_times(min(x))} to {_times(max(x))})" for kind, x in below.items()
    )
    told.append(f"Below are {', '.join(kinds)}.")
    alone = len({row["problem"] for row in _of_solvers()["rows"]}) - len(pairs())
    told.append(f"On {alone} more no other program came to a residual of {_SOLVED:g}.")
    return "\n".join([*lines, "", f"{' '.join(told)} ({machine}; {measured}.)"])


_NEAR = 0.8  # of the speed of the fastest other
_SOLVED = 1e-4  # a relative residual from which on a row counts as solved
_BLOCK = re.compile(r"(states|weights) \d of ")
_MACHINE = ("threads", "torch", "python")


@cache
def pairs() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return ours and the fastest other of each problem; a ratio above 1 says that ours leads."""
    found = []
    for _, group in groupby(_of_solvers()["rows"], key=lambda row: str(row["problem"])):
        each = list(group)
        ours = next(row for row in each if row["method"].startswith("liftednet"))
        others = [row for row in each if not row["method"].startswith("liftednet")]
        others = [row for row in others if row["residual"] <= _SOLVED]
        if others:
            found.append((ours, max(others, key=lambda row: float(row["samples_per_second"]))))
    return found


def _of_solvers() -> Any:
    return json.loads((ROOT / "benchmarks/results/solvers.json").read_text(encoding="utf-8"))


def _times(ratio: float) -> str:
    return f"{ratio:.2g}" if ratio < 10 else f"{ratio:,.0f}"


def demo() -> str:
    """Return the table that benchmarks/demo.py has written."""
    shown = [list(rows("demo")[0])[2:], ["---"] * (len(rows("demo")[0]) - 2)]
    shown += [list(row.values())[2:] for row in rows("demo")]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in shown)


MADE = {"solvers": solvers, "demo": demo}


def text(name: str) -> str:
    """Return what stands between the marks of that name."""
    if name in MADE:
        return MADE[name]()
    if name.startswith("chart-"):
        return charts.text(name.removeprefix("chart-"))
    template = (TEMPLATES / f"{name}.md").read_text(encoding="utf-8").rstrip("\n")
    return _FIGURE.sub(lambda found: figure(found[1]), template)


def written(page: str) -> str:
    """Return a page with all its figures as the results have them."""

    def filled(found: re.Match[str]) -> str:
        opening, name, before, closing = found.groups()
        inline = not before.startswith("\n")
        return opening + (text(name) if inline else f"\n\n{text(name)}\n\n") + closing

    return _PLACE.sub(filled, page)


def picture(path: Path, example: str) -> None:
    """Write the picture that an example of the site draws."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with plt.rc_context({"svg.hashsalt": "liftednet"}):
        runpy.run_path(str(ROOT / "docs/examples" / f"{example}.py"))
        plt.gcf().savefig(path, metadata={"Date": None})
        plt.close("all")


def main() -> None:
    """Write pictures that are not there, all charts, and then the pages that show them."""
    for name, example in PICTURES.items():
        if not (path := CHARTS.parent / f"{name}.svg").exists():
            picture(path, example)
            print(f"written: {path.relative_to(ROOT)}")
    for name in charts.specs():
        path = CHARTS / f"{name}.svg"
        if not path.exists() or charts.kept(path) != charts.drawn(name):
            charts.draw(name, path)
            print(f"written: {path.relative_to(ROOT)}")
    for path in PAGES:
        before = path.read_text(encoding="utf-8")
        if (after := written(before)) != before:
            path.write_text(after, encoding="utf-8")
            print(f"written: {path.relative_to(ROOT)}")
