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


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", TEXT):
        assert (ROOT / target).exists(), target
