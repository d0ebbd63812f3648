"""Tests of reliability by many drawn cases, written to results/reliability.md.

Run it with `make torture`, or `python -m tests.torture --share 0.01 --only subproblems`.
"""

import argparse
import platform
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import numpy
import scipy
import torch
from rich.console import Console

import liftednet
from tests.torture import files, kills, modules, subproblems
from tests.torture.report import Finding

PARTS = {"subproblems": subproblems, "modules": modules, "files": files, "kills": kills}
RESULT = Path(__file__).parents[2] / "results" / "reliability.md"


def main() -> int:
    """Draw the cases of some parts and write what they found; return 1 where one is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of all cases, 1 if not told")
    parser.add_argument("--first", type=int, default=0, help="seed of the first subproblem")
    parser.add_argument("--only", choices=PARTS, action="append", help="parts to run")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    started, console = time.perf_counter(), Console(stderr=True)
    found: list[Finding] = []
    for name in asked.only or PARTS:
        first = {"first": asked.first} if name == "subproblems" else {}
        for finding in PARTS[name].findings(asked.share, **first):
            found.append(finding)
            console.print(f"{finding.what}: {finding.wrong} of {finding.drawn} wrong")
    text = report(found, asked.share, asked.first, time.perf_counter() - started)
    RESULT.write_text(text, encoding="utf-8")
    console.print(f"written to {RESULT}")
    return int(any(finding.wrong for finding in found))


def report(found: Iterable[Finding], share: float, first: int, seconds: float) -> str:
    """Return the table of what was found, with where and by what."""
    versions = ", ".join(
        f"{module.__name__} {module.__version__}" for module in (liftednet, torch, numpy, scipy)
    )
    rows = [f"| {x.what} | {x.drawn:,} | {x.wrong:,} | {x.promise} | {x.example} |" for x in found]
    lines = "\n".join(rows)
    return f"""# Reliability

By `make torture`, {100 * share:g} % of its cases, subproblems from seed {first} on, \
{time.strftime("%Y-%m-%d")}, {seconds / 60:.0f} minutes on one thread of {platform.machine()}; \
Python {platform.python_version()}, {versions}.

| cases | drawn | wrong | what was asked of each | the first wrong one |
| --- | ---: | ---: | --- | --- |
{lines}
"""


if __name__ == "__main__":
    sys.exit(main())
