"""The record of a run: JSON with every digit, and tables to read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any


@dataclass
class Report:
    """What a run found, in the order in which it was found.

    Attributes:
        heading: the card, the versions, the date.
        sections: rows by title; every row is a dataclass.
    """

    heading: dict[str, str]
    sections: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, title: str, rows: Iterable[Any], folder: Path) -> list[Any]:
        """Print and keep rows as they come, and write all that is known after each."""
        kept = self.sections.setdefault(title, [])
        print(f"\n## {title}", flush=True)
        for row in rows:
            kept.append(row)
            print("  " + " | ".join(f"{name}: {cell}" for name, cell in _cells(row)), flush=True)
            self.write(folder)
        return kept

    def write(self, folder: Path) -> None:
        """Write gpu.json and gpu.md."""
        folder.mkdir(parents=True, exist_ok=True)
        record = {
            "heading": self.heading,
            **{title: [asdict(row) for row in rows] for title, rows in self.sections.items()},
        }
        (folder / "gpu.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        (folder / "gpu.md").write_text(self.text(), encoding="utf-8")

    def text(self) -> str:
        """Return the tables in Markdown."""
        lines = ["# The kernels on a GPU", ""]
        lines += [", ".join(f"{name}: {value}" for name, value in self.heading.items()) + "."]
        for title, rows in self.sections.items():
            lines += ["", f"## {title}", "", *_table(rows)]
        return "\n".join(lines) + "\n"


def _table(rows: Sequence[Any]) -> list[str]:
    if not rows:
        return ["Nothing was measured."]
    names = [name for name, _ in _cells(rows[0])]
    lines = [f"| {' | '.join(names)} |", f"| {' | '.join('---' for _ in names)} |"]
    return lines + [f"| {' | '.join(cell for _, cell in _cells(row))} |" for row in rows]


def _cells(row: Any) -> list[tuple[str, str]]:
    return [(part.name.replace("_", " "), _shown(getattr(row, part.name))) for part in fields(row)]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(_shown, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
