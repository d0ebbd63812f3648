"""Damped Gauss-Newton steps on a sum of convex losses of a smooth map."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

_SMALLEST_DAMPING = 1e-10  # in units of the mean curvature
_ATTEMPTS = 20


@dataclass(frozen=True, eq=False)
class Quadratic:
    """<g, s> + <s, C s> / 2, what an objective is near a point.

    Attributes:
        gradient: g, (parameters,), float64.
        curvature: C, (parameters, parameters), float64 and positive semidefinite.
        scale: the largest entry of a term of g, by which the gradient is judged.
    """

    gradient: Tensor
    curvature: Tensor
    scale: float

    @property
    def residual(self) -> float:
        """The largest entry of the gradient over the scale."""
        return float(self.gradient.abs().max()) / max(self.scale, torch.finfo(torch.float64).tiny)

    def value(self, step: Tensor) -> float:
        """Return <g, s> + <s, C s> / 2."""
        return float(self.gradient @ step + step @ (self.curvature @ step) / 2)


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
    """Minimizes the quadratic model + mu |s|^2 / 2, with a damping mu that learns from each step.

    mu is multiplied by max(1/3, 1 - (2 r - 1)^3) after a step whose decrease is r times that of
    the model, and by 2, 4, 8, ... where the objective would rise: Nielsen, Damping Parameter in
    Marquardt's Method, 1999.

    Attributes:
        damping: mu in units of the first model's mean curvature.
    """

    damping: float = 1.0
    name: str = field(default="levenberg-marquardt", init=False)
    _mu: float = field(default=0.0, init=False, repr=False)

    def descend(self, model: Quadratic, decrease: Callable[[Tensor], float]) -> Descended | None:
        """Return a step that lowers the objective, or None where none is found.

        Args:
            model: of the objective at the current point.
            decrease: by how much a step lowers the objective; NaN counts as a rise.
        """
        unit = float(model.curvature.diagonal().mean())
        self._mu = max(self._mu or self.damping * unit, _SMALLEST_DAMPING * unit)
        growth = 2.0
        for attempt in range(1, _ATTEMPTS + 1):
            step = self._step(model)
            gained, expected = decrease(step), -model.value(step)
            if gained > 0 and expected > 0:
                self._mu *= max(1 / 3, 1 - (2 * min(gained / expected, 1.0) - 1) ** 3)
                return Descended(step, gained, attempt)
            self._mu *= growth
            growth *= 2
        return None

    def _step(self, model: Quadratic) -> Tensor:
        damped = model.curvature.clone()
        damped.diagonal().add_(self._mu)
        factor, failed = torch.linalg.cholesky_ex(damped)
        if failed:  # rounding of a curvature far larger than mu
            solved: Tensor = torch.linalg.lstsq(damped, -model.gradient[:, None]).solution
            return solved[:, 0]
        return torch.cholesky_solve(-model.gradient[:, None], factor)[:, 0]
