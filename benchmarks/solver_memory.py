"""How much memory does a solve take beside its data, and does it grow with the samples?

Run it with `python -m benchmarks.solver_memory [samples]`; a million by default, in float32.
Each solve runs in a process of its own; "beside the data" is the highest resident memory less that
before the solve, the states that are returned included. Written to
benchmarks/results/solver_memory.md.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import torch

from benchmarks.harness.report import machine
from benchmarks.subproblems.harness import peak_megabytes
from liftednet.activations import Identity, ReLU, SimplexProjection
from liftednet.divergences import joint
from liftednet.losses import CrossEntropy, SimplexCrossEntropy
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import Design, Link, OutputFit, StateFit, WeightFit
from liftednet.solvers import solve

RESULT = Path(__file__).parent / "results" / "solver_memory.md"
UNITS, ABOVE, OUTPUTS = 300, 100, 10


@dataclass(frozen=True)
class Case:
    """A solve.

    Attributes:
        name: as the table shows it.
        problem: what is solved.
        megabytes: of its states, or of X for weights.
    """

    name: str
    problem: Any
    megabytes: float


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def states(samples: int) -> Case:
    weight = normal(UNITS, ABOVE) / UNITS**0.5
    link = Link(joint(Identity()), weight, torch.zeros(ABOVE), normal(samples, ABOVE).relu_())
    problem = StateFit(joint(ReLU()), normal(samples, UNITS), (link,))
    return Case("nonnegative states, 300 below 100", problem, samples * UNITS * 4e-6)


def outputs(samples: int) -> Case:
    y = torch.eye(OUTPUTS)[torch.arange(samples) % OUTPUTS]
    simplex = joint(SimplexProjection())
    problem = OutputFit(SimplexCrossEntropy(), y, simplex, normal(samples, OUTPUTS))
    return Case("simplex cross-entropy, 10 outputs", problem, samples * OUTPUTS * 4e-6)


def ridge(samples: int) -> Case:
    design, v = Design(normal(samples, UNITS)), normal(samples, ABOVE)
    problem = WeightFit(joint(Identity()), design, v, SquaredFrobenius(1.0))
    return Case("ridge weights, 300 to 100", problem, samples * UNITS * 4e-6)


def multinomial(samples: int) -> Case:
    design, y = Design(normal(samples, UNITS)), torch.eye(OUTPUTS)[torch.arange(samples) % OUTPUTS]
    problem = WeightFit(CrossEntropy().divergence, design, y, SquaredFrobenius(1.0))
    return Case("multinomial weights, 300 to 10", problem, samples * UNITS * 4e-6)


def rows(samples: int) -> Iterator[str]:
    """Yield the lines of the table, one case in memory at a time."""
    makers: tuple[Callable[[int], Case], ...] = (states, outputs, ridge, multinomial)
    for make in makers:
        for count in (samples // 10, samples):
            case = make(count)
            beside = peak_megabytes(lambda problem=case.problem: solve(problem))
            started = time.process_time()
            solution = solve(case.problem)
            seconds = time.process_time() - started
            yield (
                f"| {case.name} | {count:,} | {case.megabytes:,.0f} | {beside:,.0f} | "
                f"{beside / case.megabytes:.2f} | {count / seconds:,.0f} | "
                f"{solution.residual:.0e} |"
            )


def main(samples: int = 1_000_000) -> None:
    torch.set_num_threads(1)
    where = ", ".join(f"{name}: {value}" for name, value in machine().items())
    lines = ["# Memory of a solve", "", f"{where}.", ""]
    lines += ["Float32; megabytes of the states (for weights: of X), and of what a solve takes"]
    lines += ["beside its data, the result included.", ""]
    lines += [
        "| problem | samples | states MB | beside the data MB | ratio | samples/s | residual |"
    ]
    lines += ["| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for line in rows(samples):
        print(line, flush=True)
        lines.append(line)
    RESULT.write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:]))
