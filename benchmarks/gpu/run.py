"""The parts of the benchmark one after the other, inside eight minutes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import triton

from benchmarks.gpu.aims import aims
from benchmarks.gpu.checks import cases, check, gram_check
from benchmarks.gpu.race import GOAL, finishes
from benchmarks.gpu.report import Report
from benchmarks.gpu.speed import block_speeds, output_speeds, state_speeds
from benchmarks.gpu.sweeps import sweep_speeds
from benchmarks.gpu.time_checks import time_checks
from benchmarks.gpu.timing import Scale, ceilings
from benchmarks.gpu.training_data import images

_LIMIT = 450.0  # seconds


def run(device: torch.device, folder: Path) -> int:
    """Run every part, and return 0 where every kernel is right and every part ran."""
    scale, deadline = Scale(device, device.type != "cuda"), time.perf_counter() + _LIMIT
    report, failed = Report(_heading(scale)), list[str]()
    print(report.heading)
    checks = report.add("Correctness", map(check, cases(scale)), folder)
    checks += report.add("Over time", _until(deadline, time_checks(scale), failed), folder)
    checks += report.add("Gram matrices", [gram_check(scale)], folder)
    wrong = [one for one in checks if not one.passed]
    print(f"\n{len(checks) - len(wrong)} of {len(checks)} checks passed.")
    (top,) = report.add("Ceilings, a second", [ceilings(scale)], folder)
    data = images(scale)
    parts: dict[str, Iterable[Any]] = {
        "Output fits": output_speeds(scale, top),
        "State fits": state_speeds(scale, top),
        f"Full-batch sweeps, {data.name}": sweep_speeds(scale, data),
        f"Time to {GOAL} test accuracy, {data.name}": finishes(scale, data),
        "State fits, other block sizes": block_speeds(scale, top),
    }
    found = [
        report.add(title, _until(deadline, rows, failed), folder) for title, rows in parts.items()
    ]
    report.add("Aims", aims(*found[:3]), folder)
    print(f"\nwritten to {folder / 'gpu.json'} and {folder / 'gpu.md'}")
    return 1 if wrong or failed else 0


def _until(deadline: float, rows: Iterable[Any], failed: list[str]) -> Iterator[Any]:
    """Yield rows until the time is up; a part that fails is named and does not stop the others."""
    try:
        for row in rows:
            yield row
            if time.perf_counter() > deadline:
                print("  the time is up: the rest is left out")
                return
    except Exception as error:  # whatever a card may do: the other parts still count
        failed.append(f"{type(error).__name__}: {error}")
        print(f"  this part failed: {failed[-1]}")


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
