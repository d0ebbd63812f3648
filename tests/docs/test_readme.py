"""The README is short, its Python runs as it stands, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.fixture(scope="module")
def after(tmp_path_factory):
    """What the names stand for after all blocks, run in an empty folder."""
    names: dict[str, object] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("readme"))
        for number, block in enumerate(BLOCKS, start=1):
            exec(compile(block, f"README.md, block {number}", "exec"), names)
    return names


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


def test_it_is_one_screen_and_a_half() -> None:
    assert len(TEXT.split()) <= 900


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", TEXT):
        assert (ROOT / target).exists(), target
