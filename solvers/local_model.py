"""An objective near a point, with the network linearized: what every form of a step needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from liftednet import processes

from .compiled.recurrent import CompiledRecurrence
from .levenberg_marquardt import Damped
from .linearized import Linearized
from .objective import Forward, Product, Tensors, joined


@dataclass(frozen=True, eq=False)
class Curvature:
    """C = J' Hess R J + pull as a map, J the Jacobian of the outputs.

    Attributes:
        forward: the objective.
        linear: J, at a point.
        curved: products with the Hessian of every loss there.
    """

    forward: Forward
    linear: Linearized | CompiledRecurrence
    curved: Sequence[Product]

    def product(self, direction: Tensor) -> Tensor:
        """Return C v for a direction v, (parameters,)."""
        ahead = self.linear.ahead(self.forward.split(direction))
        return self.back(ahead) + self.forward.pulls * direction

    def back(self, outputs: Tensors) -> Tensor:
        """Return J' Hess R d for a change d of the outputs, (parameters,)."""
        bent = [curved(part) for curved, part in zip(self.curved, outputs, strict=True)]
        return processes.total(joined(self.linear.back(bent)))[0]


class LocalModel(ABC):
    """<g, s> + <s, C s> / 2, what an objective is near a point.

    Attributes:
        point: all weights, (parameters,), float64.
        gradient: g, (parameters,), float64.
        operator: C as a map.
        free: 0 for weights that rest on an end and are pushed against it, which no step moves, 1
            for others, (parameters,), float64; None where all are free.
        corrections: of a step, that take less time than the next model.
    """

    corrections: int

    def __init__(self, forward: Forward, point: Tensor) -> None:
        """Pass forward at a point, (parameters,) in float64."""
        kind = Linearized if forward.rows is None else CompiledRecurrence
        linear = kind(forward, point)
        pairs = list(zip(forward.targets, linear.outputs, strict=True))
        slopes = zip(*(target.slopes(outputs) for target, outputs in pairs), strict=True)
        left, answered = processes.total(*(joined(linear.back(part)) for part in slopes))
        curved = [target.curved(outputs) for target, outputs in pairs]
        pulled = forward.pulls * point
        self.point, self.gradient = point, left + pulled
        self.operator = Curvature(forward, linear, curved)
        self._scale = max(float(term.abs().max()) for term in (answered, answered - left, pulled))
        held = forward.held(point, self.gradient)
        self.free = None if held is None else 1.0 - held.double()

    @property
    def residual(self) -> float:
        """The largest entry of the gradient in what is free over the largest of its terms."""
        smallest = torch.finfo(torch.float64).tiny
        return float(self.released(self.gradient).abs().max()) / max(self._scale, smallest)

    def released(self, direction: Tensor) -> Tensor:
        """Return a direction with 0 for what is held, (parameters,)."""
        return direction if self.free is None else self.free * direction

    def inside(self, step: Tensor) -> Tensor:
        """Return the step from the point to the nearest one between the ends, (parameters,)."""
        ends = self.operator.forward.ends
        if ends is None:
            return step
        return step.clamp(ends[0] - self.point, ends[1] - self.point)

    @property
    @abstractmethod
    def mean_curvature(self) -> float:
        """The mean of the diagonal of C, or an estimate of it."""

    @abstractmethod
    def minimizer(self, damping: float) -> Damped:
        """Return a minimizer of the model + damping |s|^2 / 2, or a good step towards it."""

    @torch.no_grad()
    def bend(self, step: Tensor) -> Tensor:
        """Return J' Hess R (u(w + s) - u(w) - J s) for a step s, both (parameters,).

        To first order in what the linearized outputs are wrong by, it is what the gradient after
        the step has beside the model's.
        """
        forward, linear = self.operator.forward, self.operator.linear
        reached = forward.passed(self.point + step)
        parts = zip(reached, linear.outputs, linear.ahead(forward.split(step)), strict=True)
        return self.operator.back(tuple(after - before - moved for after, before, moved in parts))
