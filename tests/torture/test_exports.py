"""A few of the drawn modules of `make torture`."""

from __future__ import annotations

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from tests.torture.exports import findings


def test_drawn_modules_compute_the_same_elsewhere() -> None:
    found = findings(0.02)
    assert len(found) == 3
    for finding in found:
        assert not finding.wrong, finding.example
