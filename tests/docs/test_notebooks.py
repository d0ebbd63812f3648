"""The notebooks run at toy size, and those in the repository hold their pictures."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def outputs(notebook):
    return [
        output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    ]


def pictures(notebook) -> int:
    return sum("image/png" in output.get("data", {}) for output in outputs(notebook))


def test_there_are_five() -> None:
    assert len(NOTEBOOKS) == 5


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_kept_executed_with_pictures(path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert pictures(notebook) >= 1
    assert not [output for output in outputs(notebook) if output.output_type == "error"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_at_toy_size(path, monkeypatch) -> None:
    monkeypatch.setenv("LIFTEDNET_TOY", "1")
    monkeypatch.delenv("MPLBACKEND", raising=False)  # the notebook's own backend draws inline
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(path, as_version=4)
    kept = pictures(notebook)
    NotebookClient(notebook, timeout=120).execute()
    assert pictures(notebook) == kept
