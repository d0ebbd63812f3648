"""Penalties pi(W) on a weight matrix: what a weight fit adds to its divergence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from liftednet.deferred import at_least
from liftednet.errors import DeclarationError
from liftednet.lazy import cvxpy as cp
from liftednet.validation import require_positive

if TYPE_CHECKING:
    from cvxpy.constraints.constraint import Constraint
    from cvxpy.expressions.expression import Expression


class Penalty(ABC):
    """A convex function of a weight matrix W (inputs, units); biases are never penalized.

    Attributes:
        smooth: whether pi has a gradient, so that `stationarity` needs no smoothness.
        proximable: whether `prox` is known; only the reference solver does without it.
    """

    smooth: bool = False
    proximable: bool = True

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
        step = 1 / at_least(smoothness, torch.finfo(weight.dtype).tiny)
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


@dataclass(frozen=True, eq=False)
class Bounded(Penalty):
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

    def expression(self, weight: Expression) -> Expression:
        """Return 0."""
        return cp.Constant(0.0)

    def value(self, weight: Tensor) -> Tensor:
        """Return 0, a scalar."""
        return weight.new_zeros(())


@dataclass(frozen=True, eq=False)
class SquaredFrobenius(Weighted):
    """pi(W) = rho |W - W_0|_F^2, a pull to zero or to previous weights.

    Lifted Neural Networks, eq. (5).

    Attributes:
        rho: the weight of the penalty, positive.
        center: W_0, (inputs, units), or None for zero.
    """

    center: Tensor | None = None
    smooth = True

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


@dataclass(frozen=True)
class L1(Weighted):
    """pi(W) = rho sum |W_ij|, which makes weights sparse.

    Attributes:
        rho: the weight of the penalty, positive.
    """

    def expression(self, weight: Expression) -> Expression:
        """Return rho |W|_1."""
        return self.rho * cp.sum(cp.abs(weight))

    def value(self, weight: Tensor) -> Tensor:
        """Return rho |W|_1, a scalar."""
        return self.rho * weight.abs().sum()

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return sign(W) max(|W| - t rho, 0)."""
        return weight.sign() * (weight.abs() - t * self.rho).clamp(min=0)


@dataclass(frozen=True)
class GroupLasso(Weighted):
    """pi(W) = rho sum_i |W_i|_2 over the rows of W, which switches whole inputs off.

    Attributes:
        rho: the weight of the penalty, positive.
    """

    def expression(self, weight: Expression) -> Expression:
        """Return rho times the sum of the row norms."""
        return self.rho * cp.sum(cp.norm(weight, 2, axis=1))

    def value(self, weight: Tensor) -> Tensor:
        """Return rho times the sum of the row norms, a scalar."""
        return self.rho * weight.norm(dim=1).sum()

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return W_i max(1 - t rho / |W_i|, 0) for every row."""
        norms = weight.norm(dim=1, keepdim=True)
        shrunk = (norms - t * self.rho).clamp(min=0)
        return weight * (shrunk / norms.clamp(min=torch.finfo(weight.dtype).tiny))


@dataclass(frozen=True)
class Nonnegative(Weighted):
    """pi(W) = rho |W|_F^2 on W >= 0.

    Attributes:
        rho: the weight of the penalty, positive.
    """

    def expression(self, weight: Expression) -> Expression:
        """Return rho |W|_F^2."""
        return self.rho * cp.sum_squares(weight)

    def domain(self, weight: Expression) -> list[Constraint]:
        """Return W >= 0."""
        return [weight >= 0]

    def value(self, weight: Tensor) -> Tensor:
        """Return rho |W|_F^2, a scalar."""
        return self.rho * weight.square().sum()

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return max(W, 0) / (1 + 2 t rho)."""
        return weight.clamp(min=0) / (1 + 2 * t * self.rho)


@dataclass(frozen=True)
class RowNorm(Bounded):
    """pi(W) = 0 where every row of W has norm at most `bound`.

    Attributes:
        bound: the largest row norm, positive.
    """

    def domain(self, weight: Expression) -> list[Constraint]:
        """Return |W_i|_2 <= bound for every row."""
        return [cp.norm(weight, 2, axis=1) <= self.bound]

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return W with longer rows scaled down to the bound."""
        norms = weight.norm(dim=1, keepdim=True)
        return weight * (self.bound / norms.clamp(min=self.bound))


@dataclass(frozen=True)
class SpectralNorm(Bounded):
    """pi(W) = 0 where no singular value of W exceeds `bound`.

    With bound 1 it is the convex hull of the matrices with orthonormal columns (or rows), the
    constraint that Lifted Neural Networks name as future work; orthogonality itself is not convex.

    Attributes:
        bound: the largest singular value, positive.
    """

    bound: float = 1.0

    def domain(self, weight: Expression) -> list[Constraint]:
        """Return |W|_2 <= bound."""
        return [cp.sigma_max(weight) <= self.bound]

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return W with larger singular values cut down to the bound."""
        left, singular, right = torch.linalg.svd(weight, full_matrices=False)
        return (left * singular.clamp(max=self.bound)) @ right


@dataclass(frozen=True)
class Declared(Penalty):
    """A penalty that is declared in CVXPY alone; the reference solver serves it.

    Attributes:
        function: takes W (inputs, units) as a CVXPY expression and returns pi(W).
        constraints: takes W and returns constraints on it, or None.
    """

    function: Callable[[Expression], Expression]
    constraints: Callable[[Expression], list[Constraint]] | None = None
    proximable = False

    def expression(self, weight: Expression) -> Expression:
        """Return the declared pi(W)."""
        return self.function(weight)

    def domain(self, weight: Expression) -> list[Constraint]:
        """Return the declared constraints."""
        return [] if self.constraints is None else self.constraints(weight)

    def value(self, weight: Tensor) -> Tensor:
        """Return pi(W), evaluated by CVXPY in float64."""
        constant = cp.Constant(weight.detach().double().cpu().numpy())
        return weight.new_tensor(self.function(constant).value)

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Refuse: nothing is known of pi but its expression.

        Raises:
            DeclarationError: always.
        """
        raise DeclarationError(
            'a penalty that is declared in CVXPY alone has no `prox`: use solver="reference", '
            "or subclass Penalty."
        )
