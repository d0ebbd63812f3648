"""The README's Python is run as it stands, block after block; its links lead somewhere."""

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


def test_there_are_seven_blocks_of_one_screen() -> None:
    assert len(BLOCKS) == 7
    assert all(len(block.splitlines()) <= 20 for block in BLOCKS)


@pytest.mark.parametrize("name", ["model", "residual"])
def test_the_models_have_learned(after, name) -> None:
    digits = after["digits"]
    assert (after[name].predict(digits.x_test) == digits.y_test).float().mean() > 0.9


def test_the_exported_network_and_the_users_own_have_the_weights(after) -> None:
    digits, model = after["digits"], after["model"]
    with torch.no_grad():
        outputs = after["network"](digits.x_test).softmax(-1)
    torch.testing.assert_close(outputs, model.forward(digits.x_test), rtol=1e-5, atol=1e-6)
    for mine, layer in zip(after["mine"][::2], model.weights, strict=True):
        assert torch.equal(mine.weight, layer.matrix.T)


def figures() -> list[tuple[str, list[str]]]:
    """Return each figure of three digits or more, and the results that its section links."""
    found = []
    for section in re.split(r"\n## |\n\*\*", TEXT):
        files = re.findall(r"\]\(((?:benchmarks|results)/[^)]+\.md)\)", section)
        text = re.sub(
            r"```.*?```|<!-- solvers -->.*<!-- /solvers -->", "", section, flags=re.DOTALL
        )
        found += [(figure, files) for figure in re.findall(r"\b0?(\.\d{3,})\b", text) if files]
    return found


@pytest.mark.parametrize(("figure", "files"), figures())
def test_a_figure_stands_in_a_file_that_its_section_links(figure, files) -> None:
    texts = [(ROOT / file).read_text(encoding="utf-8") for file in files]
    assert any(rounds_to(figure, text) for text in texts), f"{figure} is in none of {files}"


def rounds_to(figure: str, text: str) -> bool:
    """Say whether a text has a number that is the figure, to its digits."""
    half = 0.5000001 * 0.1 ** (len(figure) - 1)
    return any(abs(float(x) - float(figure)) <= half for x in re.findall(r"\b[01]?\.\d+", text))


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", TEXT):
        assert (ROOT / target).exists(), target
