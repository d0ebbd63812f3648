"""A few of the kills of `make torture`."""

from __future__ import annotations

from tests.torture.kills import findings


def test_killed_trainings_go_on_to_the_same_bits():
    for finding in findings(0.03):
        assert finding.drawn >= 2
        assert not finding.wrong, finding.example
