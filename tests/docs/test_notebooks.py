"""The notebooks run at toy size, and those in the repository hold their pictures."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_of(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def pictures(cells) -> int:
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    return sum("image/png" in output.get("data", {}) for output in outputs)


@notebooks
def test_it_is_kept_executed_with_pictures(path) -> None:
    cells = code_of(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert pictures(cells) >= 1


@notebooks
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
def test_it_runs_at_toy_size(path, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("LIFTEDNET_TOY", "1")
    monkeypatch.chdir(tmp_path)
    plt.close("all")
    names: dict[str, object] = {}
    try:
        for number, cell in enumerate(code_of(path), start=1):
            exec(compile(cell.source, f"{path.name}, cell {number}", "exec"), names)
        assert len(plt.get_fignums()) == pictures(code_of(path))
    finally:
        plt.close("all")
