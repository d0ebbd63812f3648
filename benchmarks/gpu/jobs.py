"""One piece of the benchmark after the other: none that fails stops the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Job:
    """What one row of a table takes.

    Attributes:
        name: of the row.
        work: returns the row, a dataclass; it makes its data itself.
    """

    name: str
    work: Callable[[], Any]


@dataclass(frozen=True)
class Failure:
    """A job that gave no row.

    Attributes:
        job: its name.
        error: why.
    """

    job: str
    error: str


@dataclass
class Runner:
    """Runs jobs until the time is up.

    Attributes:
        deadline: of `time.perf_counter`, after which no job begins.
        failures: jobs that failed, and those that were left out.
    """

    deadline: float
    failures: list[Failure] = field(default_factory=list)

    def rows(self, jobs: Iterable[Job]) -> Iterator[Any]:
        """Yield the rows of the jobs that give one."""
        for job in jobs:
            if time.perf_counter() > self.deadline:
                self._failed(job, "left out: the time was up")
                continue
            try:
                yield job.work()
            except Exception as error:  # whatever a card may do: the other jobs still count
                first = str(error).strip().splitlines()[:1]
                self._failed(job, ": ".join([type(error).__name__, *first]))

    def value(self, name: str, work: Callable[[], Any], otherwise: Any) -> Any:
        """Return what a job gives that is no row, or something else where it fails."""
        return next(self.rows([Job(name, work)]), otherwise)

    def _failed(self, job: Job, error: str) -> None:
        self.failures.append(Failure(job.name, error))
        print(f"  {job.name}: {error}", flush=True)
