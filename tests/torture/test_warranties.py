"""A few of the drawn warranties."""

from __future__ import annotations

from .warranties import findings


def test_warranties_are_broken_as_seldom_as_they_say() -> None:
    (found,) = findings(0.002)
    assert found.wrong == 0, found.example
