"""Runs methods in turn on the same data, and judges each by the problem's own residual."""

from __future__ import annotations

import multiprocessing
import resource
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import isnan, nan
from statistics import median
from typing import Any
from unittest import mock

from rich.console import Console
from rich.table import Table

from liftednet.solvers import Solver
from liftednet.solvers.compiled import solvers as compiled

_GOAL = 1e-6  # relative KKT residual
_TOLERANCES = [10 ** (-half / 2) for half in range(4, 25)]  # 1e-2 to 1e-12
_TUNING = 6.0  # seconds after which a solver is tuned no further
COLUMNS = (
    "method", "samples/s", "CPU s", "spread", "ours is", "residual", "peak MB", "certificate",
)  # fmt: skip
_LEAST = 0.02  # seconds that a run is measured over
_BRIEF = 0.2  # seconds up to which a run has one before it that is not counted
_SLOW = 4.0  # seconds from which a method is not run once more for warmth or memory


@cache
def drawn_seed() -> int:
    """Return the seed of all data of a run that are drawn: a new one each time."""
    return secrets.randbelow(1 << 16)


def compile_loops() -> None:
    """Compile what of ours is compiled, so that it waits for no compiler as opponents do not."""
    for kind in ("float64", "float32"):
        compiled.on_simplex(kind)
        compiled.ridges(kind)
    compiled.below_links("float64")
    compiled.sweeps()
    compiled.of_groups()


@dataclass(frozen=True)
class Method:
    """One way to solve a problem.

    Attributes:
        name: as the table shows it.
        run: solves; returns the value that `Comparison.judge` takes.
        samples: how many samples a run solves; slow methods get fewer.
        ours: whether it is a solver of liftednet.
        forks: whether a forked process, in which memory is measured, can run it.
    """

    name: str
    run: Callable[[], Any]
    samples: int
    ours: bool = False
    forks: bool = True


@dataclass(frozen=True)
class Comparison:
    """Methods for one problem.

    Attributes:
        problem: what is solved, with its sizes.
        methods: the first is the one that ratios refer to.
        judge: returns the relative KKT residual of a value in float64.
    """

    problem: str
    methods: Sequence[Method]
    judge: Callable[[Any], float]


@dataclass(frozen=True)
class Row:
    """What was measured of one method; seconds are per run, memory beyond that of the data.

    The certificate of ours is the share of its seconds that say how good the value is.
    """

    problem: str
    method: str
    samples: int
    seconds: float
    fastest: float
    slowest: float
    samples_per_second: float
    ratio: float
    residual: float
    peak_megabytes: float
    measured: str = ""
    certificate: float = nan


def loosest(
    build: Callable[[float], Callable[[], Any]], judge: Callable[[Any], float]
) -> Callable[[], Any]:
    """Return the run with the loosest tolerance that reaches a residual of 1e-6, or gets nearest.

    Other people's solvers stop by measures of their own, of which each must be tuned to ours: a
    tolerance that is tighter than it need be would flatter us.
    """
    nearest, best, started = None, float("inf"), time.process_time()
    for tolerance in _TOLERANCES:
        run = build(tolerance)
        residual = judge(run())
        if nearest is None or residual < best:
            nearest, best = run, residual
        if residual <= _GOAL or time.process_time() - started > _TUNING:
            break
    assert nearest is not None
    return nearest


def measure(comparison: Comparison, rounds: int) -> list[Row]:
    """Run the methods interleaved, and return a row for each.

    Seconds are of processor time, on one thread: other work on the machine counts little. The
    first run of a method warms up and is not counted, unless it is a slow one, nor is one before
    each brief run; what takes less than 20 ms is run as often as goes into them.
    """
    times: dict[str, list[float]] = {method.name: [] for method in comparison.methods}
    last = dict.fromkeys(times, 0.0)
    residuals: dict[str, float] = {}
    repeats = dict.fromkeys(times, 1)
    for number in range(rounds + 1):
        for method in comparison.methods:
            if len(times[method.name]) == rounds:
                continue
            if number and last[method.name] < _BRIEF:  # wide registers sleep where others need none
                method.run()
            started = time.process_time()
            for _ in range(repeats[method.name]):
                value = method.run()
            elapsed = (time.process_time() - started) / repeats[method.name]
            repeats[method.name] = max(1, int(_LEAST / elapsed))
            last[method.name] = elapsed
            if number > 0 or elapsed > _SLOW:
                times[method.name].append(elapsed)
            residuals[method.name] = comparison.judge(value)
    first = comparison.methods[0]
    base = first.samples / median(times[first.name])
    return [_row(comparison, m, times[m.name], residuals[m.name], base) for m in comparison.methods]


def _row(
    comparison: Comparison, method: Method, times: list[float], residual: float, base: float
) -> Row:
    rate = method.samples / median(times)
    return Row(
        comparison.problem,
        method.name,
        method.samples,
        median(times),
        min(times),
        max(times),
        rate,
        base / rate,
        residual,
        peak_megabytes(method.run) if method.forks and median(times) < _SLOW else nan,
        certificate=certificate_share(method.run) if method.ours else nan,
    )


def certificate_share(run: Callable[[], Any]) -> float:
    """Return how much of the time of one of our solvers judges what it has found."""
    spent, judged = [0.0], Solver.judged

    def timed(*given: Any) -> Any:
        started = time.process_time()
        try:
            return judged(*given)
        finally:
            spent[0] += time.process_time() - started

    started = time.process_time()
    with mock.patch.object(Solver, "judged", timed):
        run()
    return spent[0] / (time.process_time() - started)


def peak_megabytes(run: Callable[[], Any]) -> float:
    """Return how far a run raises the resident memory of a process of its own."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def child() -> None:
        before = _resident()
        run()
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        sender.send(max(0.0, after - before))

    process = context.Process(target=child)
    process.start()
    found = receiver.recv() if receiver.poll(600) else float("nan")
    process.join()
    return float(found)


def _resident() -> float:
    with open("/proc/self/statm", encoding="ascii") as pages:
        return int(pages.read().split()[1]) * resource.getpagesize() / 2**20


def show(rows: Sequence[Row]) -> None:
    table = Table(title=rows[0].problem, title_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "method" else "right")
    for row in rows:
        table.add_row(*cells(row))
    Console(width=110).print(table)


def cells(row: Row) -> tuple[str, ...]:
    """Return a row as text."""
    return (
        row.method,
        f"{row.samples_per_second:,.0f}",
        f"{row.seconds:.3g}",
        f"{row.fastest:.3g} to {row.slowest:.3g}",
        f"{row.ratio:.3g} x",
        f"{row.residual:.1e}",
        "-" if isnan(row.peak_megabytes) else f"{row.peak_megabytes:,.0f}",
        "" if isnan(row.certificate) else f"{row.certificate:.0%}",
    )
