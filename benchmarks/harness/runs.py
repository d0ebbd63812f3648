"""A grid of runs that can be interrupted and resumed: one JSON line for each finished run."""

from __future__ import annotations

import json
import os
import time
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from rich.progress import track
from torch import Tensor

from liftednet.errors import DataError

Settings = TypeVar("Settings")
Outcome = Mapping[str, Any]
RESULTS = Path(__file__).parents[1] / "results"


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
    done = _read(store)
    missing = [item for item in settings if _key(item) not in done]
    for item in track(missing, title, disable=not missing):
        started = time.perf_counter()
        outcome = run(item)
        seconds = round(time.perf_counter() - started, 3)
        _append(store, {"settings": _named(item), "outcome": dict(outcome), "seconds": seconds})
    return finished(store, settings)


def records(
    name: str, train: Callable[[Settings], Outcome]
) -> Callable[[Sequence[Settings]], list[Record[Settings]]]:
    """Return what gives the records of runs in results/NAME.jsonl.

    With --stored it leaves out those that are missing.
    """
    parser = ArgumentParser()
    parser.add_argument("--stored", action="store_true", help="the table of what has been run")
    store = RESULTS / f"{name}.jsonl"
    if parser.parse_args().stored:
        return partial(finished, store)
    return partial(run_all, store, run=train)


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


Records = Callable[[Sequence[Settings]], list[Record[Settings]]]


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


def tuned(
    first: Settings,
    search: Sequence[tuple[str, float | tuple[Any, ...]]],
    score: Callable[[Settings], float],
) -> tuple[Settings, int]:
    """Return the best setting of a search along one field after another, and how many it tried.

    Args:
        first: a frozen dataclass.
        search: fields, each with other values to try, or with a factor by which a number goes on
            up and down until its best lies inside.
        score: of a setting on held-out data, the larger the better.
    """
    seen: dict[Settings, float] = {}

    def found(setting: Settings) -> float:
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


def _scaled(setting: Settings, field: str, factor: float) -> Settings:
    return _with(setting, field, float(f"{getattr(setting, field) * factor:.0e}"))


def _with(setting: Settings, field: str, value: Any) -> Settings:
    return replace(setting, **{field: value})  # type: ignore[type-var]


def shuffled(samples: int, size: int, order: torch.Generator) -> Sequence[Tensor]:
    """Return the rows of one pass in a new order, in batches equal in size but for one sample."""
    return torch.randperm(samples, generator=order).tensor_split(-(-samples // size))
