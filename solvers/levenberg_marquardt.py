"""Damped Gauss-Newton steps on a sum of convex losses of a smooth map."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

_SMALLEST_DAMPING = 1e-10  # in units of the first model's mean curvature
_ATTEMPTS = 20


@dataclass(frozen=True, eq=False)
class Damped:
    """A minimizer of a damped model.

    Attributes:
        step: s, (parameters,).
        expected: by how much it lowers the model without its damping.
    """

    step: Tensor
    expected: float


class Model(Protocol):
    """<g, s> + <s, C s> / 2 with C positive semidefinite, what an objective is near a point."""

    @property
    def residual(self) -> float:
        """The largest entry of g over the largest of its terms."""
        ...

    @property
    def mean_curvature(self) -> float:
        """The mean of the diagonal of C, or an estimate of it."""
        ...

    def minimizer(self, damping: float) -> Damped:
        """Return a minimizer of the model + damping |s|^2 / 2, or a good step towards it."""
        ...


@dataclass(frozen=True, eq=False)
class Quadratic:
    """The model with a dense C, whose damped minimizer is exact.

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
        return relative(self.gradient, self.scale)

    @property
    def mean_curvature(self) -> float:
        """The mean of the diagonal of C."""
        return float(self.curvature.diagonal().mean())

    def value(self, step: Tensor) -> float:
        """Return <g, s> + <s, C s> / 2."""
        return float(self.gradient @ step + step @ (self.curvature @ step) / 2)

    def minimizer(self, damping: float) -> Damped:
        """Return -(C + damping I)^-1 g."""
        damped = self.curvature.clone()
        damped.diagonal().add_(damping)
        factor, failed = torch.linalg.cholesky_ex(damped)
        right = -self.gradient[:, None]
        if not failed:
            step = torch.cholesky_solve(right, factor)[:, 0]
        elif bool(damped.isfinite().all()):  # rounding of a curvature far larger than the damping
            step = torch.linalg.lstsq(damped, right).solution[:, 0]
        else:
            step = torch.full_like(self.gradient, torch.nan)
        return Damped(step, -self.value(step))


def relative(gradient: Tensor, scale: float) -> float:
    """Return the largest entry of a gradient over a scale."""
    return float(gradient.abs().max()) / max(scale, torch.finfo(torch.float64).tiny)


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

    mu is multiplied by max(1/3, 1 - (2 r - 1)^3) after a step whose decrease is r times that of
    the model, and by 2, 4, 8, ... where the objective would rise: Nielsen, Damping Parameter in
    Marquardt's Method, 1999.

    Attributes:
        damping: the first mu, in units of the first model's mean curvature.
        mu: the next, or 0 before the first step.
        floor: the smallest that it may become, 0 before the first step.
    """

    damping: float = 1.0
    mu: float = 0.0
    floor: float = 0.0
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
            gained, expected = decrease(damped.step), damped.expected
            if 0 < gained < math.inf and expected > 0:
                share = min(gained / expected, 1.0)
                factor = max(1 / 3, 1 - (2 * share - 1) ** 3)
                self.mu = max(self.mu * factor, self.floor)
                return Descended(damped.step, gained, attempt)
            self.mu *= growth
            growth *= 2
        return None
