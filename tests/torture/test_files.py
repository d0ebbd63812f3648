"""A few of the mutated files, in every run of the tests."""

from __future__ import annotations

import pytest

from tests.torture.files import findings


@pytest.mark.filterwarnings("ignore")
def test_mutated_files_raise_no_errors_but_the_librarys() -> None:
    found = findings(0.04)
    assert sum(finding.drawn for finding in found) >= 180
    assert [(finding.what, finding.example) for finding in found if finding.wrong] == []
