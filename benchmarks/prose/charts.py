"""Charts of stored results: ours beside the best opponent, with spread, in one size for all rows.

charts.toml has a table for each chart:

    measure   what the axis says, with its unit
    better    "higher" or "lower"
    source    the file of results
    rows      for each line of the chart what it is called, and the cells that its rows have
    ours      the rest of the place of our figure: `method > column`, or `> column`
    others    names of opponents and the rest of their places, the best of which is drawn
    beside    likewise, of our own step without what the question is about; drawn in gray
    worst     the column of the worst, where the cell has no spread of its own
    says      the answer, in a sentence
    scale     "log"; "ratio" divides every row by ours, "difference" subtracts it, where rows have
              scales of their own: ours is then named with the row
    ends      of the axis, where a figure is far from all others; it is written at the edge then

A row may be a table with `others` of its own. Places are those of figures in prose. A cell
`mean ± deviation`, `mean (worst)` or `mean (worst x; ...)` has its own spread.
"""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import prose

SPECS = Path(__file__).parent / "charts.toml"
_NUMBER = r"-?\d*\.?\d+(?:e[-+]?\d+)?"
_SPREAD = re.compile(rf"({_NUMBER})(?: ± ({_NUMBER})| \((?:worst )?({_NUMBER})[^)]*\))?")


@dataclass(frozen=True)
class Mark:
    """A figure of a chart: of whom, its mean, and the two ends of its spread."""

    name: str
    mean: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """The larger distance of an end from the mean."""
        return max(self.high - self.mean, self.mean - self.low)


@dataclass(frozen=True)
class Line:
    """A row of a chart."""

    label: str
    ours: Mark
    best: Mark
    beside: Mark | None


@cache
def specs() -> dict[str, dict[str, Any]]:
    """Return what charts.toml says."""
    return tomllib.loads(SPECS.read_text(encoding="utf-8"))


def _mark(name: str, place: str, spec: dict[str, Any]) -> Mark:
    """Return the figure at a place, with its spread."""
    found = _SPREAD.search(prose.cell(place))
    if found is None:
        raise LookupError(f"{place!r} is no number.")
    mean = float(found[1])
    if found[2] is not None:
        return Mark(name, mean, mean - float(found[2]), mean + float(found[2]))
    worst = float(found[3]) if found[3] is not None else mean
    if "worst" in spec:
        worst = float(prose.figure(f"{place.rpartition(' > ')[0]} > {spec['worst']}"))
    return Mark(name, mean, min(mean, worst), max(mean, worst))


def _best(places: dict[str, str], start: str, spec: dict[str, Any]) -> Mark:
    """Return the best figure of those opponents that have one."""
    marks = []
    for name, place in places.items():
        try:
            marks.append(_mark(name, _joined(start, place), spec))
        except LookupError as error:
            if "fits 0 rows" not in str(error) and "no number" not in str(error):
                raise
    if not marks:
        raise LookupError(f"{start!r} has none of {', '.join(places)}.")
    sign = 1 if spec["better"] == "higher" else -1
    return max(marks, key=lambda mark: sign * mark.mean)


def _joined(start: str, place: str) -> str:
    method, _, column = place.rpartition("> ")
    keys = " & ".join(part for part in (start.partition(": ")[2], method.strip()) if part)
    return f"{start.partition(': ')[0]}: {keys} > {column}"


def lines(name: str) -> list[Line]:
    """Return the rows of a chart."""
    spec = specs()[name]
    if name == "solvers":
        return _of_solvers()
    found = []
    for row in spec["rows"]:
        row = row if isinstance(row, dict) else {"label": row[0], "cells": row[1]}
        start = f"{spec['source']}: {row['cells']}"
        ours = _mark("ours", _joined(start, row.get("ours", spec["ours"])), spec)
        best = _best(row.get("others") or spec["others"], start, spec)
        beside = spec.get("beside")
        beside = _best(beside, start, spec) if beside else None
        found.append(Line(row["label"], ours, best, beside))
    return found


def scaled(line: Line, scale: str) -> Line:
    """Return a row as its chart draws it."""
    if scale not in ("ratio", "difference"):
        return line
    by = line.ours.mean

    def moved(mark: Mark) -> Mark:
        ends = mark.mean, mark.low, mark.high
        return Mark(mark.name, *(x / by if scale == "ratio" else x - by for x in ends))

    label = f"{line.label} (ours {by:.4g})" if by != 1 else line.label
    beside = moved(line.beside) if line.beside else None
    return Line(label, moved(line.ours), moved(line.best), beside)


def _of_solvers() -> list[Line]:
    """Return a row for each problem of benchmarks/results/solvers.json, our losses first."""
    ratios = {ours["problem"]: (best["ratio"], best["method"]) for ours, best in prose.pairs()}
    found = [
        Line(problem, Mark("ours", 1.0, 1.0, 1.0), Mark(method, *[1 / ratio] * 3), None)
        for problem, (ratio, method) in ratios.items()
    ]
    return sorted(found, key=lambda line: -line.best.mean)


def verdict(name: str) -> str:
    """Say in how many rows ours is ahead, level and behind, by more than the spread of either."""
    sign = 1 if specs()[name]["better"] == "higher" else -1
    counts = {"ahead": 0, "level": 0, "behind": 0}
    for line in lines(name):
        by = sign * (line.ours.mean - line.best.mean)
        within = abs(by) <= max(line.ours.spread, line.best.spread)
        counts["level" if within else "ahead" if by > 0 else "behind"] += 1
    parts = [f"{how} in {count}" for how, count in counts.items() if count]
    rows = "row" if sum(counts.values()) == 1 else "rows"
    return f"Ours is {', '.join(parts)} of {sum(counts.values())} {rows}."


def text(name: str) -> str:
    """Return what a page shows of a chart: the answer, the picture, and the way to the table."""
    spec = specs()[name]
    table = prose.place(spec["source"]).relative_to(prose.ROOT).as_posix()
    return (
        f"{spec['says']} {verdict(name)}\n\n"
        f"![{spec['measure']}: ours beside the best opponent](_static/charts/{name}.svg)\n\n"
        f"{{download}}`The whole table <../{table}>`"
    )


def drawn(name: str) -> str:
    """Return everything that a chart shows, as its file keeps it beside the picture."""
    shown = [
        [line.label]
        + [[m.name, m.mean, m.low, m.high] for m in (line.ours, line.best, line.beside) if m]
        for line in lines(name)
    ]
    return json.dumps([specs()[name]["measure"], shown], ensure_ascii=False)


def kept(path: Path) -> str:
    """Return what the chart in a file shows."""
    found = re.search(r"<dc:description>(.*?)</dc:description>", path.read_text("utf-8"), re.DOTALL)
    return found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") if found else ""


def _at_the_edge(panel: Any, mark: Mark, height: float, ends: Any, color: Any) -> None:
    """Write a figure that the axis has no room for."""
    if ends and not ends[0] <= mark.mean <= ends[1]:
        left = mark.mean < ends[0]
        sign = f"◄ {mark.mean:.3g}" if left else f"{mark.mean:.3g} ►"
        style: dict[str, Any] = {"va": "center", "ha": "left" if left else "right", "fontsize": 8}
        style["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        panel.text(ends[0 if left else 1], height, sign, **style, **color)


def draw(name: str, path: Path) -> None:
    """Write a chart."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    spec = specs()[name]
    scale = spec.get("scale", "")
    shown = [scaled(line, scale) for line in lines(name)]
    letters = max(len(line.label) + len(line.best.name) for line in shown)
    width = 8 + 0.06 * max(0, letters - 60)
    height_of_row = 0.36 if len(shown) < 20 else 0.26
    style: Any = {"svg.hashsalt": "liftednet", "svg.fonttype": "none", "font.size": 9}
    with plt.rc_context(style):
        figure, panel = plt.subplots(
            figsize=(width, 0.8 + height_of_row * len(shown)), layout="constrained"
        )
        colors = {"ours": "#1f5fa8", "best": "#d1662b", "beside": "#8c8c8c"}
        signs = {"ours": "o", "best": "s", "beside": "D"}
        for height, line in enumerate(shown):
            for at, which in ((-0.18, "ours"), (0.18, "best"), (0.0, "beside")):
                mark = getattr(line, which)
                if mark is None:
                    continue
                color: Any = {"color": colors[which], "zorder": 3 if which == "beside" else 4}
                panel.plot([mark.low, mark.high], [height + at] * 2, lw=2, **color)
                panel.plot(mark.mean, height + at, signs[which], ms=5, **color)
                _at_the_edge(panel, mark, height + at, spec.get("ends"), color)
            side: dict[str, Any] = {
                "transform": panel.get_yaxis_transform(),
                "va": "center",
                "fontsize": 8,
            }
            panel.text(1.01, height + 0.12, line.best.name, color=colors["best"], **side)
        panel.set_yticks(range(len(shown)), [line.label for line in shown])
        panel.set(ylim=(len(shown) - 0.4, -0.6))
        if scale == "log":
            panel.set_xscale("log")
        panel.set_xlim(spec.get("ends"))
        arrow = "higher is better →" if spec["better"] == "higher" else "← lower is better"
        panel.set_xlabel(f"{spec['measure']}   ({arrow})")
        panel.grid(axis="x", color="#e4e4e4")
        panel.set_axisbelow(True)
        for edge in ("top", "right", "left"):
            panel.spines[edge].set_visible(False)
        panel.tick_params(axis="y", length=0)
        names = {"ours": "ours", "best": "best opponent (named at the right)"}
        if shown[0].beside:
            names["beside"] = shown[0].beside.name
        for which, called in names.items():
            panel.plot([], [], signs[which], color=colors[which], ls="-", label=called, ms=5)
        figure.legend(loc="outside upper left", ncols=3, frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        keep = {"Date": None, "Creator": None, "Description": drawn(name)}
        figure.savefig(path, metadata=keep)
        plt.close(figure)
