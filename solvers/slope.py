"""The slope of a leaky ReLU, in closed form."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from liftednet.problems import Fit, SlopeFit
from liftednet.problems.slope_fit import LEAST_SLOPE
from liftednet.solution import Solution, Status

from .base import Solver, judged

_TOLERANCE = 1e-8


@dataclass(frozen=True)
class Slope(Solver[SlopeFit, float, None]):
    """Solves a slope fit: alpha = sqrt(s / t), inside its limits."""

    name: str = field(default="slope", init=False)

    def obstacle(self, problem: Fit[Any]) -> str | None:
        """Ask for a slope fit."""
        return None if isinstance(problem, SlopeFit) else "it solves slope fits alone"

    def solve(
        self, problem: SlopeFit, start: float | None = None, cache: None = None
    ) -> Solution[float]:
        """Return the exact minimizer; a start stays where every slope is as good."""
        started = time.perf_counter()
        s, t = problem.sums
        slope = (s / t) ** 0.5 if t > 0 else (1.0 if s > 0 else start or 1.0)
        slope = min(max(slope, LEAST_SLOPE), 1.0)
        return judged(problem, slope, 0, started, _TOLERANCE, self.name, Status.STALLED)
