"""One search for the settings of every method that a table compares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

Setting = TypeVar("Setting")


def tuned(
    first: Setting,
    search: Sequence[tuple[str, float | tuple[Any, ...]]],
    score: Callable[[Setting], float],
) -> tuple[Setting, int]:
    """Return the best setting of a search along one field after another, and how many it tried.

    Args:
        first: a frozen dataclass.
        search: fields, each with other values to try, or with a factor by which a number goes on
            up and down until its best lies inside.
        score: of a setting on held-out data, the larger the better.
    """
    seen: dict[Setting, float] = {}

    def found(setting: Setting) -> float:
        if setting not in seen:
            seen[setting] = score(setting)
        return seen[setting]

    best = first
    for field, along in search:
        if isinstance(along, tuple):
            others = [_with(best, field, value) for value in along]
            best = max([best, *others], key=found)
            continue
        for factor in (along, 1 / along):
            while found(further := _scaled(best, field, factor)) > found(best):
                best = further
    return best, len(seen)


def _scaled(setting: Setting, field: str, factor: float) -> Setting:
    return _with(setting, field, float(f"{getattr(setting, field) * factor:.0e}"))


def _with(setting: Setting, field: str, value: Any) -> Setting:
    return replace(setting, **{field: value})  # type: ignore[type-var]
