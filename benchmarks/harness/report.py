"""Tables of results, with where and when they were made."""

from __future__ import annotations

import csv
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks.harness.runs import RESULTS


@dataclass(frozen=True)
class Table:
    """A table of finished cells.

    Attributes:
        title: one line.
        columns: headings.
        rows: as many cells as there are columns.
        notes: sentences below the table.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def markdown(self) -> str:
        """Return the table as Markdown."""
        head = f"| {' | '.join(self.columns)} |"
        rule = f"| {' | '.join('---' for _ in self.columns)} |"
        body = [f"| {' | '.join(row)} |" for row in self.rows]
        notes = [f"- {note}" for note in self.notes]
        return "\n".join([f"## {self.title}", "", head, rule, *body, "", *notes, ""])


def write_report(
    folder: Path,
    title: str,
    tables: Sequence[tuple[str, Table]],
    pictures: Sequence[Path] = (),
    remarks: Sequence[str] = (),
) -> Path:
    """Write README.md with all tables and pictures, and one CSV file for each table.

    A table without rows, or that is not made any more, stays as an earlier report has it.

    Args:
        folder: where to; made where it is missing.
        title: heading of the report.
        tables: file name without ending, and table.
        pictures: files in `folder` to show.
        remarks: sentences under the heading.

    Returns:
        The path of README.md.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "README.md"
    sections = _sections(path.read_text("utf-8")) if path.is_file() else {}
    for name, table in tables:
        if not table.rows:
            continue
        sections[table.title] = table.markdown()
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(table.columns)
            writer.writerows(table.rows)
    parts = [f"# {title}", "", provenance(), "", *[f"{remark}\n" for remark in remarks]]
    titles = [table.title for _, table in tables]
    parts += [sections[title] for title in sorted(sections, key=lambda t: t not in titles)]
    parts += [f"![{picture.stem}]({picture.name})\n" for picture in pictures]
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def _sections(report: str) -> dict[str, str]:
    """Return the tables of a report by their titles, as `Table.markdown` has them."""
    found = re.finditer(r"^## (.*)\n(?:(?!## |!\[).*\n)*", report, re.MULTILINE)
    return {section[1]: section[0].rstrip("\n") + "\n" for section in found}


def provenance() -> str:
    """Return the line that says when, from which commit and on which machine."""
    known = machine()
    return (
        f"Made on {known['date'][:10]} from commit {_commit()} on {known['processor']} "
        f"({known['threads']} torch threads), Python {known['python']}, torch {known['torch']}."
    )


def machine() -> dict[str, str]:
    """Return where and when it was measured."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": f"{models[0] if models else platform.processor()}, {len(models)} cores",
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "load": f"{os.getloadavg()[0]:.1f} before the first run",
    }


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown (not run from a checkout)"
    return found.stdout.strip()


def write(name: str, title: str, text: str, table: Iterable[str]) -> None:
    """Write results/NAME.md: a title, the machine, a text, and the lines of a table."""
    known = {"written" if key == "date" else key: value for key, value in machine().items()}
    where = ", ".join(f"{key}: {value}" for key, value in known.items() if key != "load")
    lines = [f"# {title}", "", f"{where}.", "", text, "", *table, ""]
    (RESULTS / f"{name}.md").write_text("\n".join(lines), encoding="utf-8")


def mean_and_spread(values: Sequence[float], digits: int = 3) -> str:
    """Return mean, standard deviation and count, as in "0.912 ± 0.004 (10)".

    Args:
        values: one for each seed; one alone has no spread.
        digits: after the point.
    """
    mean = f"{statistics.fmean(values):.{digits}f}"
    if len(values) < 2:
        return f"{mean} (1)"
    return f"{mean} ± {statistics.stdev(values):.{digits}f} ({len(values)})"
