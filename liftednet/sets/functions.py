"""Penalties on weights with a value: squares, sparsity, signs with squares, and any of CVXPY."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from liftednet.errors import DataError, DeclarationError
from liftednet.evaluation import convex_constraints, stating
from liftednet.lazy import cvxpy as cp
from liftednet.sets.penalty import SQUARES, Penalty, Weighted, statement
from liftednet.validation import is_number

__all__ = ["L1", "Declared", "GroupLasso", "Nonnegative", "SquaredFrobenius"]


@dataclass(frozen=True, eq=False)
class SquaredFrobenius(Weighted):
    """pi(W) = rho |W - W_0|_F^2, a pull to zero or to previous weights.

    Lifted Neural Networks, eq. (5).

    Attributes:
        rho: the weight of the penalty, positive.
        center: W_0, (inputs, units), or None for zero.

    Example:
        >>> import torch
        >>> from liftednet.penalties import SquaredFrobenius
        >>> W = torch.tensor([[3.0, -4.0], [0.5, 0.0]])
        >>> SquaredFrobenius(0.5).value(W)
        tensor(12.6250)
    """

    center: Tensor | None = None
    smooth = True
    by_rows = True
    place = SQUARES

    def __post_init__(self) -> None:
        """Take the center as numbers alone."""
        super().__post_init__()
        if isinstance(self.center, Tensor):
            object.__setattr__(self, "center", self.center.detach())

    @property
    def curvature(self) -> float:
        """2 rho."""
        return 2 * self.rho

    def refuse_infeasible(self, shape: tuple[int, int]) -> None:
        """Raise `DataError` where the center is not that of a W (inputs, units)."""
        if self.center is not None and self.center.shape != shape:
            given = tuple(self.center.shape)
            raise DataError(f"a center of shape {given} cannot be that of weights {shape}.")

    def expression(self, weight: cp.Expression) -> cp.Expression:
        """Return rho |W - W_0|_F^2."""
        center = 0.0 if self.center is None else self.center.double().cpu().numpy()
        return self.rho * cp.sum_squares(weight - center)

    def value(self, weight: Tensor) -> Tensor:
        """Return rho |W - W_0|_F^2, a scalar."""
        return self.rho * self._shifted(weight).square().sum()

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return (W + 2 t rho W_0) / (1 + 2 t rho)."""
        pulled = weight if self.center is None else weight + t * self.linear_term(weight)
        return pulled / (1 + 2 * t * self.rho)

    def stationarity(self, weight: Tensor, gradient: Tensor, smoothness: Any) -> Tensor:
        """Return gradient + 2 rho (W - W_0), (inputs, units)."""
        return gradient + 2 * self.rho * self._shifted(weight)

    def linear_term(self, weight: Tensor) -> Tensor:
        """Return 2 rho W_0, what the penalty adds to the right-hand side of a ridge system."""
        if self.center is None:
            return torch.zeros_like(weight)
        return 2 * self.rho * self.center.to(weight)

    def _shifted(self, weight: Tensor) -> Tensor:
        return weight if self.center is None else weight - self.center.to(weight)


@dataclass(frozen=True)
class L1(Weighted):
    """pi(W) = rho sum |W_ij|, which makes weights sparse.

    Attributes:
        rho: the weight of the penalty, positive.

    Example:
        >>> import torch
        >>> from liftednet.penalties import L1
        >>> W = torch.tensor([[3.0, -4.0], [0.5, 0.0]])
        >>> L1(1.0).prox(W, 1.0)
        tensor([[ 2., -3.],
                [ 0.,  0.]])
    """

    place = 0
    by_rows = True

    def expression(self, weight: cp.Expression) -> cp.Expression:
        """Return rho |W|_1."""
        return self.rho * cp.sum(cp.abs(weight))

    def value(self, weight: Tensor) -> Tensor:
        """Return rho |W|_1, a scalar."""
        return self.rho * weight.abs().sum()

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return sign(W) max(|W| - t rho, 0): W less its own part in [-t rho, t rho]."""
        return weight - weight.clamp(-t * self.rho, t * self.rho)

    def stationarity(self, weight: Tensor, gradient: Tensor, smoothness: Any) -> Tensor:
        """Return gradient + the part of s W - gradient in [-rho, rho].

        The prox-gradient mapping, of which the rounding of a large W leaves nothing.
        """
        pull = (smoothness * weight - gradient).clamp(-self.rho, self.rho)
        return gradient + pull


@dataclass(frozen=True)
class GroupLasso(Weighted):
    """pi(W) = rho sum_i |W_i|_2 over the rows of W, which switches whole inputs off.

    Attributes:
        rho: the weight of the penalty, positive.

    Example:
        >>> import torch
        >>> from liftednet.penalties import GroupLasso
        >>> W = torch.tensor([[3.0, -4.0], [0.5, 0.0]])
        >>> GroupLasso(1.0).prox(W, 1.0)
        tensor([[ 2.4000, -3.2000],
                [ 0.0000,  0.0000]])
    """

    place = 1
    by_rows = True

    def expression(self, weight: cp.Expression) -> cp.Expression:
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
        rho: the weight of the penalty, positive, or 0 for the constraint alone.

    Raises:
        DataError: rho is negative or not finite.

    Example:
        >>> import torch
        >>> from liftednet.penalties import Nonnegative
        >>> W = torch.tensor([[3.0, -4.0], [0.5, 0.0]])
        >>> Nonnegative().project(W)
        tensor([[3.0000, 0.0000],
                [0.5000, 0.0000]])
    """

    rho: float = 0.0
    signed = True
    by_rows = True
    place = 0

    def __post_init__(self) -> None:
        """Refuse a negative rho."""
        if not is_number(self.rho) or self.rho != 0:
            super().__post_init__()

    @property
    def parts(self) -> tuple[Penalty, ...]:
        """A square, and the constraint alone."""
        return (SquaredFrobenius(self.rho), Nonnegative()) if self.rho else (self,)

    @property
    def curvature(self) -> float:
        """2 rho."""
        return 2 * self.rho

    def expression(self, weight: cp.Expression) -> cp.Expression:
        """Return rho |W|_F^2."""
        return self.rho * cp.sum_squares(weight)

    def domain(self, weight: cp.Expression) -> list[cp.Constraint]:
        """Return W >= 0."""
        return [weight >= 0]

    def value(self, weight: Tensor) -> Tensor:
        """Return rho |W|_F^2, a scalar."""
        return self.rho * weight.square().sum()

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return max(W, 0) / (1 + 2 t rho)."""
        positive = weight.clamp(min=0)
        return positive.div_(1 + 2 * self.rho * t) if self.rho else positive

    def stationarity(self, weight: Tensor, gradient: Tensor, smoothness: Any) -> Tensor:
        """Return (gradient + 2 rho W) / (1 + 2 rho / s) where W > gradient / s, else s W.

        The prox-gradient mapping, of which the rounding of a large W leaves nothing.
        """
        stiff = smoothness * weight
        inner = (gradient + 2 * self.rho * weight) / (1 + 2 * self.rho / smoothness)
        return torch.where(stiff > gradient, inner, stiff)

    def ends(self, shape: tuple[int, int]) -> tuple[Tensor, Tensor] | None:
        """Return 0 and infinity, where there is no square."""
        lowest = torch.zeros(shape, dtype=torch.float64)
        return None if self.rho else (lowest, torch.full_like(lowest, torch.inf))

    def duals(self, weight: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        """Return the gradient, which is 0 where W is positive."""
        return (gradient.clamp(min=0),)

    def begin(self, weight: Tensor) -> Tensor:
        """Return |W|."""
        return weight.abs()

    def violation(self, weight: Tensor) -> float:
        """Return the largest negative entry."""
        return float(weight.double().neg().clamp(min=0).max())


@dataclass(frozen=True)
class Declared(Penalty):
    """A penalty that is declared in CVXPY alone, which solves a problem for every prox.

    `Declared(lambda W: 0.1 * cp.norm1(W), constraints=lambda W: [W >= 0])`.

    Attributes:
        function: takes W (inputs, units) as a CVXPY expression and returns pi(W); None for 0.
        constraints: takes W and returns constraints on it, or one; None for none.

    Raises:
        DeclarationError: there is neither; at first use, what they return is not convex.

    Example:
        >>> import cvxpy as cp
        >>> import torch
        >>> from liftednet.penalties import Declared
        >>> simplex = Declared(constraints=lambda W: [W >= 0, cp.sum(W, axis=0) == 1])
        >>> simplex.project(torch.tensor([[2.0], [0.5]])).round(decimals=4)
        tensor([[1.],
                [0.]])
    """

    function: Callable[[cp.Expression], cp.Expression | float] | None = None
    constraints: Callable[[cp.Expression], Sequence[cp.Constraint] | cp.Constraint] | None = None
    closed_form = False

    def __post_init__(self) -> None:
        """Refuse a penalty of nothing."""
        if self.function is None and self.constraints is None:
            raise DeclarationError("Declared needs a function of W, constraints on W, or both.")

    def expression(self, weight: cp.Expression) -> cp.Expression:
        """Return the declared pi(W).

        Raises:
            DeclarationError: it is not a convex scalar to CVXPY.
        """
        with stating(f"pi(W) of {self!r}"):
            given = 0.0 if self.function is None else self.function(weight)
            if isinstance(given, list | tuple | cp.Constraint):
                raise DeclarationError(
                    "the function of Declared returns pi(W), a number; got constraints, which are "
                    "declared by Declared(constraints=lambda W: [W >= 0])."
                )
            found = cp.Constant(0.0) + given
        if not found.is_scalar():
            raise DeclarationError(f"pi(W) must be a scalar; {found} has shape {found.shape}.")
        if not found.is_convex():
            raise DeclarationError(
                f"pi(W) must be convex; to CVXPY the curvature of {found} is {found.curvature}."
            )
        return found

    def domain(self, weight: cp.Expression) -> list[cp.Constraint]:
        """Return the declared constraints.

        Raises:
            DeclarationError: one is no constraint, or not convex to CVXPY.
        """
        if self.constraints is None:
            return []
        return convex_constraints(f"the constraints of {self!r}", self.constraints, weight)

    def value(self, weight: Tensor) -> Tensor:
        """Return pi(W), evaluated by CVXPY in float64."""
        return weight.new_tensor(statement(self, tuple(weight.shape)).evaluate(weight))

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return argmin over P of t pi(P) + |P - W|_F^2 / 2 by CVXPY, (inputs, units).

        Raises:
            SolverError: CVXPY's solvers fail, or the constraints exclude each other.
        """
        return statement(self, tuple(weight.shape)).prox(weight, t)

    def refuse_infeasible(self, shape: tuple[int, int]) -> None:
        """Raise `DataError` where no W (inputs, units) satisfies the constraints."""
        statement(self, shape).refuse_infeasible()
