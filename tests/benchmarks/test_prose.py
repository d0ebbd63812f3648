"""Figures and charts on pages are those of the stored results."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from benchmarks import prose
from benchmarks.prose import charts


@pytest.mark.parametrize("page", prose.PAGES, ids=lambda page: page.stem)
def test_writing_the_figures_changes_nothing(page) -> None:
    text = page.read_text(encoding="utf-8")
    assert prose.written(text) == text


@pytest.mark.parametrize("name", charts.specs())
def test_a_chart_shows_what_the_results_say(name) -> None:
    assert charts.kept(prose.CHARTS / f"{name}.svg") == charts.drawn(name)


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A table of results, and a page that shows it."""
    table = (
        "# Small\n\n| set | ours | theirs |\n| --- | --- | --- |\n"
        "| iris | 0.9512 ± 0.0100 (5) | **0.9400** |\n| wine | 0.9 | 0.8 |\n| wine, red | 1 | |\n"
    )
    (tmp_path / "benchmarks/results").mkdir(parents=True)
    (tmp_path / "benchmarks/results/toy.md").write_text(table)
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    monkeypatch.setattr(prose, "TEMPLATES", tmp_path)
    prose.rows.cache_clear()
    yield tmp_path
    prose.rows.cache_clear()


@pytest.mark.parametrize(
    ("place", "figure"),
    [
        ("toy: iris > ours", "0.9512"),
        ("toy: iris > ours ~ 2", "0.95"),
        ("toy: iris > ours ~ all", "0.9512 ± 0.0100"),
        ("toy: Small & wine > ours", "0.9"),
        ("toy: ir* > theirs", "0.9400"),
        ("toy: iris > ours minus toy: iris > theirs ~ 3", "0.011"),
    ],
)
def test_a_figure_is_taken_from_its_cell(results, place, figure) -> None:
    (results / "one.md").write_text("It has {" + place + "}.\n")
    page = "Before <!-- one -->old<!-- /one --> after"
    assert prose.written(page) == f"Before <!-- one -->It has {figure}.<!-- /one --> after"


@pytest.mark.parametrize("place", ["toy: wine* > ours", "toy: oak > ours", "toy: iris > none"])
def test_a_place_that_is_no_one_cell_is_refused(results, place) -> None:
    with pytest.raises(LookupError, match="rows of the results"):
        prose.figure(place)


def test_a_chart_has_the_best_of_the_opponents_with_its_spread(results, monkeypatch) -> None:
    spec: dict[str, Any] = {"better": "higher", "source": "toy", "measure": "accuracy"}
    spec["rows"] = [["iris", "iris"]]
    spec |= {"ours": "> ours", "others": {"they": "> theirs", "nobody": "> none"}, "says": "So."}
    monkeypatch.setattr(charts, "specs", lambda: {"toy": spec})
    (line,) = charts.lines("toy")
    assert (line.ours.mean, line.ours.low, line.best.mean) == (0.9512, 0.9512 - 0.01, 0.94)
    assert charts.verdict("toy") == "Ours is ahead in 1 of 1 row."
    spec["better"] = "lower"
    assert charts.verdict("toy") == "Ours is behind in 1 of 1 row."
    charts.draw("toy", results / "toy.svg")
    assert charts.kept(results / "toy.svg") == charts.drawn("toy")
    before = (results / "toy.svg").read_bytes()
    charts.draw("toy", results / "toy.svg")
    assert (results / "toy.svg").read_bytes() == before


ROOT = Path(__file__).parents[2]
SCRIPTS = [p.relative_to(ROOT) for p in sorted((ROOT / "benchmarks").rglob("*.py"))]


@pytest.mark.parametrize("script", [s for s in SCRIPTS if s.stem != "__main__"], ids=str)
def test_a_script_finds_what_it_takes_from_the_library(script: Path) -> None:
    try:
        import_module(".".join(script.with_suffix("").parts))
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] in ("benchmarks", "liftednet"):
            raise
        pytest.skip(f"{error.name} is an opponent that is not installed here")
