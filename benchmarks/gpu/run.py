"""The parts of the benchmark one after the other, inside eight minutes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch
import triton

from benchmarks.gpu.checks import check_jobs
from benchmarks.gpu.jobs import Job, Runner
from benchmarks.gpu.race import finishes
from benchmarks.gpu.report import Report
from benchmarks.gpu.speed import state_speeds
from benchmarks.gpu.sweeps import sweep_speeds
from benchmarks.gpu.timing import UNKNOWN, Ceilings, Scale, ceilings
from benchmarks.gpu.training_data import images

_LIMIT = 430.0  # seconds, after which no job begins; the longest takes less than a minute


def run(device: torch.device, folder: Path) -> int:
    """Run every part, and return 0 where every kernel is right and every job ran."""
    scale, runner = Scale(device, device.type != "cuda"), Runner(time.perf_counter() + _LIMIT)
    report = Report(_heading(scale))
    print(report.heading)
    checks = report.add("Correctness", runner.rows(check_jobs(scale)), folder)
    wrong = [one for one in checks if not one.passed]
    print(f"\n{len(checks) - len(wrong)} of {len(checks)} checks passed.")
    top = runner.value("ceilings", partial(ceilings, scale), UNKNOWN)
    report.add("Ceilings, a second", [top], folder)
    for title, jobs in _parts(scale, top, runner):
        report.add(title, runner.rows(jobs), folder)
    report.add("Failures", runner.failures, folder)
    report.write(folder)
    print(f"\nwritten to {folder / 'gpu.json'} and {folder / 'gpu.md'}")
    return 1 if wrong or runner.failures else 0


def _parts(scale: Scale, top: Ceilings, runner: Runner) -> Iterator[tuple[str, Iterable[Job]]]:
    """Yield titles and jobs, the most wanted ones first."""
    yield "State fits", state_speeds(scale, top)
    data = runner.value("training data", partial(images, scale), None)
    name = "no data" if data is None else data.name
    yield f"Full-batch sweeps, {name}", () if data is None else sweep_speeds(scale, data)
    yield (
        f"Time to an accuracy on the test set, {name}",
        () if data is None else finishes(scale, data),
    )


def _heading(scale: Scale) -> dict[str, str]:
    name = "the CPU under the interpreter, where times mean nothing"
    if scale.device.type == "cuda":
        name = torch.cuda.get_device_name(scale.device)
    return {
        "card": name,
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
