"""Damped Gauss-Newton steps on a sum of convex losses of a smooth map."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

_SMALLEST_DAMPING = 1e-10  # in units of the first model's mean curvature
_ATTEMPTS = 20
_PAYS = 0.1  # of what a step lowers: by less than that, no further correction is worth its time


@dataclass(frozen=True, eq=False)
class Damped:
    """A minimizer of a damped model.

    Attributes:
        step: s, (parameters,).
        expected: by how much it lowers the model without its damping.
        solve: b -> (C + damping)^-1 b as well as the step was solved for, (parameters,).
    """

    step: Tensor
    expected: float
    solve: Callable[[Tensor], Tensor]


class Model(Protocol):
    """<g, s> + <s, C s> / 2 with C positive semidefinite, what an objective is near a point."""

    @property
    def mean_curvature(self) -> float:
        """The mean of the diagonal of C, or an estimate of it."""
        ...

    @property
    def corrections(self) -> int:
        """How many solves with the matrix of a step take together less time than the next model."""
        ...

    def minimizer(self, damping: float) -> Damped:
        """Return a minimizer of the model + damping |s|^2 / 2, or a good step towards it."""
        ...

    def inside(self, step: Tensor) -> Tensor:
        """Return the nearest step that keeps weights between their ends."""
        ...

    def bend(self, step: Tensor) -> Tensor:
        """Return what the gradient after a step has beside that of the model, to first order."""
        ...


@dataclass(frozen=True, eq=False)
class Descended:
    """What a damped step did.

    Attributes:
        step: s, (parameters,).
        decrease: by how much it lowers the objective, positive.
        attempts: how many dampings were tried.
    """

    step: Tensor
    decrease: float
    attempts: int


@dataclass
class LevenbergMarquardt:
    """Minimizes the model + mu |s|^2 / 2, with a damping mu that learns from each step.

    Further solves with the same matrix correct the step for what the linearized network is wrong
    by, s <- s_0 - (C + mu)^-1 J' Hess R (u(w + s) - u(w) - J s), as long as each lowers the
    objective by more than the last. The first is the second-order correction of Nocedal and Wright,
    Numerical Optimization, section 18.3, here with the effect of the geodesic acceleration of
    Transtrum and Sethna (2012); all are the simplified Newton iteration of Deuflhard, Newton
    Methods for Nonlinear Problems, 2004. Steps follow the valley that they would else cross.

    mu is multiplied by max(1/3, 1 - (2 r - 1)^3) after a step whose decrease is r times that of
    the model, and by 2, 4, 8, ... where the objective would rise: Nielsen, Damping Parameter in
    Marquardt's Method, 1999.

    Attributes:
        damping: the first mu, in units of the first model's mean curvature.
        mu: the next, or 0 before the first step.
        floor: the smallest that it may become, 0 before the first step.
        corrections: of a step at most, as many as the model has use for where it is None.
    """

    damping: float = 1.0
    mu: float = 0.0
    floor: float = 0.0
    corrections: int | None = None
    name: str = field(default="levenberg-marquardt", init=False)

    def descend(self, model: Model, decrease: Callable[[Tensor], float]) -> Descended | None:
        """Return a step that lowers the objective, or None where none is found.

        Args:
            model: of the objective at the current point.
            decrease: by how much a step lowers the objective; NaN or infinity counts as a rise.
        """
        if self.mu == 0.0:
            unit = model.mean_curvature
            self.mu, self.floor = self.damping * unit, _SMALLEST_DAMPING * unit
        growth = 2.0
        for attempt in range(1, _ATTEMPTS + 1):
            damped = model.minimizer(self.mu)
            most = model.corrections if self.corrections is None else self.corrections
            step, gained = _corrected(model, damped, decrease, most)
            if 0 < gained < math.inf and damped.expected > 0:
                share = min(gained / damped.expected, 1.0)
                factor = max(1 / 3, 1 - (2 * share - 1) ** 3)
                self.mu = max(self.mu * factor, self.floor)
                return Descended(step, gained, attempt)
            self.mu *= growth
            growth *= 2
        return None


def _corrected(
    model: Model, damped: Damped, decrease: Callable[[Tensor], float], most: int
) -> tuple[Tensor, float]:
    """Return the best of a damped step and its corrections, and by how much it lowers."""
    best, gained = damped.step, decrease(damped.step)
    for _ in range(most):
        step = model.inside(damped.step - damped.solve(model.bend(best)))
        found = decrease(step)
        if not gained < found < math.inf:
            break
        pays = found - gained > _PAYS * abs(found)
        best, gained = step, found
        if not pays:
            break
    return best, gained
