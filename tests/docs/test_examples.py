"""The site's examples run as they stand, draw something, and every public name has its page."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import pytest

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = sorted((DOCS / "examples").glob("*.py"))
START = re.findall(r"```python\n(.*?)```", (DOCS / "start.md").read_text("utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
def test_an_example_runs_and_draws(path, monkeypatch, tmp_path) -> None:
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    plt.close("all")
    try:
        runpy.run_path(str(path), run_name="__main__")
        assert plt.get_fignums()
        assert all(plt.figure(number).axes for number in plt.get_fignums())
    finally:
        plt.close("all")
    assert not list(tmp_path.iterdir())


def test_error_bars_are_large_beyond_the_data() -> None:
    text = (DOCS / "error_bars.md").read_text("utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, "error_bars.md", "exec"), names)
    near, _, far = names["found"].ignorance[:, 0]
    assert near < 0.2 < far
    assert (names["lower"] < names["mean"]).all()


def test_the_first_five_minutes_run(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for number, block in enumerate(START, start=1):
        exec(compile(block, f"start.md, block {number}", "exec"), names)
    digits, model = names["digits"], names["model"]
    assert names["scores"].mean() > 0.9
    assert names["right"].float().mean() > 0.9
    assert (model.predict(digits.x_test) == digits.y_test).float().mean() > 0.9
    assert names["exact"].predict(digits.x_test).shape == digits.y_test.shape  # as it was loaded


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_files_that_a_page_cites_are_there(page) -> None:
    for target in re.findall(r"[<(](\.\./(?!gallery/)[^>)]+)[>)]", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target
    outside = re.findall(r"\]\((?:\.\./)+(?:benchmarks|results)/[^)]*\)", page.read_text("utf-8"))
    assert not outside, "the site has no page of it: write it as {download}"
