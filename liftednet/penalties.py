"""Penalties pi(W) on a weight matrix: what a weight fit adds to its divergence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from liftednet.errors import DataError
from liftednet.lazy import cvxpy as cp

if TYPE_CHECKING:
    from cvxpy.constraints.constraint import Constraint
    from cvxpy.expressions.expression import Expression


class Penalty(ABC):
    """A convex function of a weight matrix W (inputs, units); biases are never penalized.

    Attributes:
        smooth: whether pi has a gradient, so that `stationarity` needs no smoothness.
    """

    smooth: bool = False

    @abstractmethod
    def expression(self, weight: Expression) -> Expression:
        """Return pi(W) in CVXPY."""

    def domain(self, weight: Expression) -> list[Constraint]:
        """Return constraints on W in CVXPY."""
        return []

    @abstractmethod
    def value(self, weight: Tensor) -> Tensor:
        """Return pi(W), a scalar."""

    @abstractmethod
    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return argmin over P of t pi(P) + |P - W|^2 / 2, (inputs, units)."""

    def stationarity(self, weight: Tensor, gradient: Tensor, smoothness: float) -> Tensor:
        """Return how far 0 is from gradient + dpi(W), (inputs, units), in units of gradient.

        The prox-gradient mapping s (W - prox_{pi / s}(W - gradient / s)) with s the smoothness of
        the rest of the objective.
        """
        step = 1 / max(smoothness, torch.finfo(weight.dtype).tiny)
        return (weight - self.prox(weight - step * gradient, step)) / step


@dataclass(frozen=True, eq=False)
class SquaredFrobenius(Penalty):
    """pi(W) = rho |W - W_0|_F^2, a pull to zero or to previous weights.

    Lifted Neural Networks, eq. (5).

    Attributes:
        rho: the weight of the penalty, positive.
        center: W_0, (inputs, units), or None for zero.
    """

    rho: float
    center: Tensor | None = None
    smooth = True

    def __post_init__(self) -> None:
        """Refuse a rho that is not positive."""
        if not 0 < self.rho < float("inf"):
            raise DataError(f"rho must be positive and finite, got {self.rho}.")

    def expression(self, weight: Expression) -> Expression:
        """Return rho |W - W_0|_F^2."""
        if self.center is None:
            return self.rho * cp.sum_squares(weight)
        return self.rho * cp.sum_squares(weight - self.center.double().cpu().numpy())

    def value(self, weight: Tensor) -> Tensor:
        """Return rho |W - W_0|_F^2, a scalar."""
        return self.rho * self._shifted(weight).square().sum()

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return (W + 2 t rho W_0) / (1 + 2 t rho)."""
        pulled = weight if self.center is None else weight + 2 * t * self.rho * self._at(weight)
        return pulled / (1 + 2 * t * self.rho)

    def stationarity(self, weight: Tensor, gradient: Tensor, smoothness: float) -> Tensor:
        """Return gradient + 2 rho (W - W_0), (inputs, units)."""
        return gradient + 2 * self.rho * self._shifted(weight)

    def linear_term(self, weight: Tensor) -> Tensor:
        """Return 2 rho W_0, what the penalty adds to the right-hand side of a ridge system."""
        return torch.zeros_like(weight) if self.center is None else 2 * self.rho * self._at(weight)

    def _at(self, weight: Tensor) -> Tensor:
        assert self.center is not None  # callers have asked
        return self.center.to(weight)

    def _shifted(self, weight: Tensor) -> Tensor:
        return weight if self.center is None else weight - self._at(weight)
