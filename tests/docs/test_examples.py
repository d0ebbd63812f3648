"""The README, the site's examples and pages, and notebooks run, and keep their limits."""

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import nbformat
import pytest
import torch

DOCS = Path(__file__).parents[2] / "docs"
# That which starts interpreters of its own is run by `make docs`; tests/models/test_processes.py
# has fits of several processes.
EXAMPLES = [path for path in sorted((DOCS / "examples").glob("*.py")) if "21_" not in path.stem]
PAGES = sorted(DOCS.rglob("*.md"))
ROOT = DOCS.parent
_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
_UNREAD = re.compile(r"<!--.*?-->|!?\[[^]]*\]\([^)]*\.svg\)|\]\([^)]*\)", re.DOTALL)
# Pages whose blocks run one after another: but for that which starts a process group, and Optuna's.
RUN = [page for page in PAGES if _BLOCK.search(page.read_text("utf-8"))]
RUN = [page for page in RUN if page.stem not in ("distributed", "choosing")]
EXPECTED = {
    "table": "scores.mean() > 0.9 and (low < mean).all()",
    "torch_network": "right.float().mean() > 0.9",
    "monotone_or_fair": "max(report.violations) <= 1e-9",
    "error_bars": "found.ignorance[0, 0] < 0.2 < found.ignorance[2, 0] and (lower < mean).all()",
    "activation": "(model.predict(digits.x_test) == digits.y_test).float().mean() > 0.9",
    "subproblem": "abs(ours.objective - theirs.objective) < 1e-5 * abs(theirs.objective) and "
    "abs(solve(ConstrainedFit(fit, (Bounds(upper=3.999),))).objective - held.objective"
    " - 1e-3 * held.duals[0].sum()) < 1e-4 * held.duals[0].sum()",
    "network": "(residual.predict(digits.x_test) == digits.y_test).float().mean() > 0.9"
    " and found.relative < 1e-3",
    "missing": "model.score(X[:300], y[:300]) > 0.3",
}


def run(name: str, part: str, blocks: list[str]) -> dict[str, Any]:
    """Return what the names stand for after all blocks, run one after another."""
    names: dict[str, Any] = {}
    for number, block in enumerate(blocks, start=1):
        exec(compile(block, f"{name}, {part} {number}", "exec"), names)
    return names


@pytest.fixture
def alone(monkeypatch, tmp_path) -> Iterator[Path]:
    """An empty folder to work in, and no figures before and after."""
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    plt.close("all")
    yield tmp_path
    plt.close("all")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
def test_an_example_runs_and_draws(path, alone) -> None:
    runpy.run_path(str(path), run_name="__main__")
    assert plt.get_fignums()
    assert all(plt.figure(number).axes for number in plt.get_fignums())
    assert not list(alone.iterdir())


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
@pytest.mark.filterwarnings("ignore::liftednet.FitWarning")
@pytest.mark.usefixtures("alone")
def test_the_blocks_of_a_page_run(page) -> None:
    names = run(page.name, "block", _BLOCK.findall(page.read_text("utf-8")))
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


NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
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
@pytest.mark.usefixtures("alone")
def test_it_runs_at_toy_size(path, monkeypatch) -> None:
    monkeypatch.setenv("LIFTEDNET_TOY", "1")
    run(path.name, "cell", [cell.source for cell in code_of(path)])
    assert len(plt.get_fignums()) == pictures(code_of(path))


TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def after(tmp_path_factory):
    """What the names stand for after all blocks, run in an empty folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("readme"))
        return run("README.md", "block", _BLOCK.findall(TEXT))


def test_the_interval_holds_about_as_many_answers_as_it_says(after) -> None:
    inside = (after["low"] <= after["y_test"]) & (after["y_test"] <= after["high"])
    assert 0.8 < inside.mean() < 0.98


def test_the_certified_network_rises(after) -> None:
    x = after["X_test"]
    for column, direction in enumerate(after["directions"]):
        more = x.copy()
        more[:, column] += 0.05
        if direction:
            assert (after["rising"].predict(more) >= after["rising"].predict(x) - 1e-9).all()


def test_the_users_own_network_has_learned_and_the_exported_one_predicts_the_same(after) -> None:
    assert after["right"].float().mean() > 0.9
    x = torch.from_numpy(after["X_test"])
    with torch.no_grad():
        outputs = after["network"](x.to(next(after["network"].parameters()).dtype)).flatten()
    expected = torch.from_numpy(after["rising"].predict(after["X_test"]))
    torch.testing.assert_close(outputs.double(), expected.double(), rtol=1e-4, atol=1e-2)


def test_it_is_one_screen_and_a_half_and_links_lead_somewhere() -> None:
    assert len(TEXT.split()) <= 900
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", TEXT):
        assert (ROOT / target).exists(), target
