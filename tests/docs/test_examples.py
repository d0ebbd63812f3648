"""The site's examples and blocks run as they stand, draw something, and pages keep their limits."""

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
PAGES = sorted(DOCS.rglob("*.md"))
_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
_UNREAD = re.compile(r"<!--.*?-->|!?\[[^]]*\]\([^)]*\.svg\)|\]\([^)]*\)", re.DOTALL)
# Pages whose blocks run one after another: but for that which starts a process group, and Optuna's.
_NOT_HERE = ("distributed", "choosing")
RUN = [page for page in PAGES if _BLOCK.search(page.read_text("utf-8"))]
RUN = [page for page in RUN if page.stem not in _NOT_HERE]
EXPECTED = {
    "table": "scores.mean() > 0.9 and (low < mean).all()",
    "torch_network": "right.float().mean() > 0.9",
    "monotone_or_fair": "max(report.violations) <= 1e-9",
    "error_bars": "found.ignorance[0, 0] < 0.2 < found.ignorance[2, 0] and (lower < mean).all()",
    "activation": "(model.predict(digits.x_test) == digits.y_test).float().mean() > 0.9",
    "subproblem": "abs(ours.objective - theirs.objective) < 1e-5 * abs(theirs.objective)",
    "network": "(residual.predict(digits.x_test) == digits.y_test).float().mean() > 0.9"
    " and found.relative < 1e-3",
    "missing": "model.score(X[:300], y[:300]) > 0.3",
}


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


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
@pytest.mark.filterwarnings("ignore::liftednet.FitWarning")
def test_the_blocks_of_a_page_run(page, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for number, block in enumerate(_BLOCK.findall(page.read_text("utf-8")), start=1):
        exec(compile(block, f"{page.name}, block {number}", "exec"), names)
    assert eval(EXPECTED.get(page.stem, "True"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_short_and_cites_files_that_are_there(page) -> None:
    text = page.read_text("utf-8")
    looked_up = page.parent.name in ("mathematics", "reference") or page.stem == "glossary"
    assert looked_up or len(_UNREAD.sub(" ", text).split()) <= 1000
    for target in re.findall(r"[<(](\.\./(?!gallery/)[^>)]+)[>)]", text):
        assert (page.parent / target).exists(), target
    outside = re.findall(r"\]\((?:\.\./)+(?:benchmarks|results)/[^)]*\)", text)
    assert not outside, "the site has no page of it: write it as {download}"
