"""A grid of runs that can be interrupted and resumed: one JSON line for each finished run."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from liftednet.errors import DataError

Settings = TypeVar("Settings")
Outcome = Mapping[str, Any]


@dataclass(frozen=True)
class Record(Generic[Settings]):
    """A finished run.

    Attributes:
        settings: the frozen dataclass that names it.
        outcome: what it returned: numbers, strings and lists of them.
        seconds: wall time.
    """

    settings: Settings
    outcome: Outcome
    seconds: float


def run_all(
    store: Path,
    settings: Sequence[Settings],
    run: Callable[[Settings], Outcome],
    title: str = "runs",
) -> list[Record[Settings]]:
    """Run what is not yet in the store, and return all records in the order of `settings`.

    Every finished run is appended to the store at once, so an interruption loses only the run
    that is under way, and a second call goes on from there. Several processes may share a store.

    Args:
        store: a JSON-lines file; it and its folders are made where they are missing.
        settings: frozen dataclasses of JSON values; equal values name the same run.
        run: makes one run and returns its outcome as JSON values.
        title: shown beside the progress bar.

    Raises:
        DataError: a line of the store cannot be read.
    """
    return run_groups(store, [[s] for s in settings], lambda group: [run(group[0])], title)


def run_groups(
    store: Path,
    groups: Sequence[Sequence[Settings]],
    run: Callable[[Sequence[Settings]], Sequence[Outcome]],
    title: str = "runs",
) -> list[Record[Settings]]:
    """Run what is not yet in the store, as `run_all`, several runs at a time.

    Args:
        store: a JSON-lines file; it and its folders are made where they are missing.
        groups: settings that may be run together; those already in the store are left out.
        run: makes the runs of a group and returns their outcomes; each is booked with its share
            of the time.
        title: shown beside the progress bar.

    Raises:
        DataError: a line of the store cannot be read.
    """
    done = _read(store)
    missing = [[s for s in group if _key(s) not in done] for group in groups]
    for group in _with_progress([group for group in missing if group], title):
        started = time.perf_counter()
        outcomes = run(group)
        seconds = round((time.perf_counter() - started) / len(group), 3)
        for item, outcome in zip(group, outcomes, strict=True):
            _append(store, {"settings": _named(item), "outcome": dict(outcome), "seconds": seconds})
    return finished(store, [s for group in groups for s in group])


def finished(store: Path, settings: Sequence[Settings]) -> list[Record[Settings]]:
    """Return the records of those settings that are in the store, and run nothing.

    Args:
        store: a JSON-lines file.
        settings: frozen dataclasses of JSON values.

    Raises:
        DataError: a line of the store cannot be read.
    """
    done = _read(store)
    found = [(s, done[_key(s)]) for s in settings if _key(s) in done]
    return [Record(s, line["outcome"], line["seconds"]) for s, line in found]


def matching(records: Sequence[Record[Settings]], **values: Any) -> list[Record[Settings]]:
    """Return the records whose settings have these values."""
    wanted = values.items()
    return [r for r in records if all(getattr(r.settings, k) == value for k, value in wanted)]


def best_rate(tried: Sequence[Record[Settings]], method: str, of: str = "accuracy") -> float:
    """Return the rate at which a method has the largest outcome of that name."""
    own: list[Record[Any]] = [*matching(tried, method=method)]
    rate: float = max(own, key=lambda record: record.outcome[of]).settings.rate
    return rate


def _named(settings: Any) -> dict[str, Any]:
    return {"kind": type(settings).__name__, **asdict(settings)}


def _key(settings: Any) -> str:
    return json.dumps(_named(settings), sort_keys=True)


def _read(store: Path) -> dict[str, dict[str, Any]]:
    """Return the finished runs by key; a last line without its end is not finished."""
    if not store.is_file():
        return {}
    *lines, _ = _content(store).split(b"\n")
    done = {}
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            done[json.dumps(entry["settings"], sort_keys=True)] = entry
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"Line {number} of {store} is no finished run: {error}") from error
    return done


def _content(store: Path) -> bytes:
    try:
        return store.read_bytes()
    except OSError as error:
        raise DataError(f"The store {store} cannot be read: {error.strerror}.") from error


def _append(store: Path, entry: Mapping[str, Any]) -> None:
    """Add a line; what is there stays, but for the rest of a line that nobody will finish."""
    import fcntl

    line = json.dumps(entry, allow_nan=True) + "\n"
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        with store.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed: nobody else is in a line now
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - 1, 0))
            if size and file.read(1) != b"\n":
                file.seek(0)
                file.truncate(file.read(size).rfind(b"\n") + 1)
            file.write(line.encode())
    except OSError as error:
        raise DataError(f"The store {store} cannot be written: {error.strerror}.") from error


def _with_progress(items: Sequence[Settings], title: str) -> Iterable[Settings]:
    if not items:
        return items
    from rich.progress import track

    return track(items, description=title)
