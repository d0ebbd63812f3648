"""One of the killed workers of `make torture`."""

from __future__ import annotations

from tests.torture.workers import findings


def test_a_killed_worker_ends_the_others_with_a_sentence() -> None:
    for finding in findings(0.03):
        assert finding.drawn >= 1
        assert not finding.wrong, finding.example
