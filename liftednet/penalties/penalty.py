"""A penalty pi(W) on a weight matrix, and what all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from liftednet.lazy import cvxpy as cp
from liftednet.penalties.statement import statement
from liftednet.validation import require_positive

if TYPE_CHECKING:
    from cvxpy.constraints.constraint import Constraint
    from cvxpy.expressions.expression import Expression

    from liftednet.penalties.sums import Sum

ROUNDING = 64  # units in the last place that a norm or a meeting of points may be off
DEGENERATE = 1e-9  # to which Dykstra's algorithm comes where terms barely touch
_CONIC_SLACK = 1e-6  # by which CVXPY's solvers leave a constraint


class Penalty(ABC):
    """A convex function of a weight matrix W (inputs, units); biases are never penalized.

    Attributes:
        smooth: whether pi has a gradient, so that `stationarity` needs no smoothness.
        proximable: whether `prox` is known; only the reference solver does without it.
        closed_form: whether `prox` is cheap; else CVXPY solves a problem every time.
        convex: whether it is; of one that is not, `prox` is one of the nearest points, a fit ends
            where its gradient and the constraint meet, and CVXPY cannot state it.
        signed: whether entries have signs, so that a start must not rely on their cancelling.
        place: where its prox stands in a chain of proxes that is the prox of their sum (see
            `Sum`), or None where no such chain is known.

    Example:
        >>> import torch
        >>> from liftednet.penalties import L1, Penalty
        >>> isinstance(L1(0.1), Penalty), L1(0.1).value(torch.ones(2, 2).double()).item()
        (True, 0.4)
    """

    smooth: bool = False
    proximable: bool = True
    closed_form: bool = True
    convex: bool = True
    signed: bool = False
    place: int | None = None

    def __add__(self, other: Penalty) -> Sum:
        """Return the sum of two penalties, one list of terms."""
        if not isinstance(other, Penalty):
            return NotImplemented
        from liftednet.penalties.sums import added  # a Sum is a Penalty itself

        return added(self, other)

    @property
    def parts(self) -> tuple[Penalty, ...]:
        """Penalties of which it is the sum, squares apart from what has a kink."""
        return (self,)

    @property
    def curvature(self) -> float:
        """A constant c such that pi(W) - c |W|_F^2 / 2 is convex; the second derivative off 0."""
        return 0.0

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

    def ends(self, shape: tuple[int, int]) -> tuple[Tensor, Tensor] | None:
        """Return the least and the largest W where pi is 0 between them and nothing else.

        Both are (inputs, units), float64, infinite where there is none. None for other penalties.
        """
        return None

    def project(self, weight: Tensor) -> Tensor:
        """Return the point of the domain nearest to W, (inputs, units): the prox with t = 0."""
        return self.prox(weight, 0.0)

    def violation(self, weight: Tensor) -> float:
        """Return by how much W misses the domain, taken in float64; 0 within."""
        return statement(self, tuple(weight.shape)).violation(weight)

    def holds(self, weight: Tensor, slack: float = 0.0) -> bool:
        """Return whether W is in the domain, but for a slack and for rounding."""
        return self.violation(weight) <= slack + _CONIC_SLACK

    def begin(self, weight: Tensor) -> Tensor:
        """Return a start in the domain, from the identity and small entries, (inputs, units)."""
        return self.project(weight)

    def refuse_infeasible(self, shape: tuple[int, int]) -> None:
        """Raise `DataError` where no W (inputs, units) satisfies the constraints; some does."""
        return None

    def stationarity(self, weight: Tensor, gradient: Tensor, smoothness: float) -> Tensor:
        """Return how far 0 is from gradient + dpi(W), (inputs, units), in units of gradient.

        The prox-gradient mapping s (W - prox_{pi / s}(W - gradient / s)) with s the smoothness of
        the rest of the objective.
        """
        step = 1 / max(smoothness, torch.finfo(weight.dtype).tiny)
        return (weight - self.prox(weight - step * gradient, step)) / step


@dataclass(frozen=True, eq=False)
class Weighted(Penalty):
    """A penalty with a weight.

    Attributes:
        rho: the weight of the penalty, positive.

    Raises:
        DataError: rho is not positive and finite.
    """

    rho: float

    def __post_init__(self) -> None:
        """Refuse a rho that is not positive."""
        object.__setattr__(self, "rho", require_positive("rho", self.rho))

    def violation(self, weight: Tensor) -> float:
        """Return 0: every W is in the domain."""
        return 0.0


class Constrained(Penalty):
    """A constraint on W: 0 where it holds."""

    def expression(self, weight: Expression) -> Expression:
        """Return 0."""
        return cp.Constant(0.0)

    def value(self, weight: Tensor) -> Tensor:
        """Return 0, a scalar."""
        return weight.new_zeros(())

    @abstractmethod
    def violation(self, weight: Tensor) -> float:
        """Return by how much W misses the domain, taken in float64; 0 within."""

    def holds(self, weight: Tensor, slack: float = 0.0) -> bool:
        """Return whether W is in the domain, but for a slack and for rounding."""
        rounding = max(ROUNDING * torch.finfo(weight.dtype).eps, DEGENERATE)
        size = max(1.0, float(weight.abs().max()) if weight.numel() else 1.0)
        return self.violation(weight) <= slack + rounding * size


@dataclass(frozen=True, eq=False)
class Bounded(Constrained):
    """A constraint on W: 0 within the bound.

    Attributes:
        bound: the largest norm, positive.

    Raises:
        DataError: the bound is not positive and finite.
    """

    bound: float

    def __post_init__(self) -> None:
        """Refuse a bound that is not positive."""
        object.__setattr__(self, "bound", require_positive("bound", self.bound))

    def inside(self, weight: Tensor) -> float:
        """Return the bound less what rounding of a projection could add to a norm."""
        return self.bound * (1 - ROUNDING * torch.finfo(weight.dtype).eps)

    @abstractmethod
    def largest(self, weight: Tensor) -> float:
        """Return the norm that is bounded, taken in float64."""

    def violation(self, weight: Tensor) -> float:
        """Return by how much the norm exceeds the bound."""
        return max(self.largest(weight) - self.bound, 0.0)
