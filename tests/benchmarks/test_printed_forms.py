"""What is said of the papers' printed forms, and that the commands which show it exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.papers.printed_forms import FORMS, SPACING, bracket, missed

ROOT = Path(__file__).parents[2]
BROKEN = ("arctanh", "sine, on", "the same, read as the leaky", "(9)")


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form[0])
def test_forms_hold_but_for_those_that_are_named(form) -> None:
    assert (missed(form)[0] > 0.1) == form[0].startswith(BROKEN)
    assert form[0].startswith(BROKEN) or missed(form)[0] <= 4 * SPACING


def test_the_printed_bracket_fails_for_one_label_and_not_for_shares() -> None:
    assert bracket(soft=False)[1] > 100
    assert bracket(soft=True)[1] == 0


def test_every_command_of_the_table_exists() -> None:
    text = (ROOT / "benchmarks/papers/README.md").read_text(encoding="utf-8")
    paths = re.findall(r"tests/[\w/.]+", text)
    modules = re.findall(r"`papers\.(\w+)`", text)
    modules += [f"../{name}" for name in re.findall(r"-m benchmarks\.(\w+)`", text)]
    places = [ROOT / "benchmarks/papers" / name for name in modules]
    assert len(paths) > 20 and len(places) > 20
    assert all((ROOT / path).exists() for path in paths)
    assert all(place.with_suffix(".py").exists() or place.is_dir() for place in places)
