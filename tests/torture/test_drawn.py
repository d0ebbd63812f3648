"""A little of everything that `make torture` draws."""

from __future__ import annotations

from importlib import import_module

import pytest

DRAWN = {
    "exports": 0.02, "files": 0.02, "kills": 0.02, "subproblems": 0.003, "warranties": 0.002,
    "workers": 0.02,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "share"), DRAWN.items())
def test_nothing_that_is_drawn_is_wrong(kind: str, share: float) -> None:
    if kind == "exports":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    found = list(import_module(f"tests.torture.{kind}").findings(share))
    assert found and all(finding.drawn for finding in found)
    assert [(finding.what, finding.example) for finding in found if finding.wrong] == []
