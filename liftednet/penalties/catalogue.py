"""The catalogue: penalties and bounds that have a proximal map in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from liftednet.lazy import cvxpy as cp
from liftednet.penalties.penalty import Bounded, Penalty, Weighted
from liftednet.validation import is_number

if TYPE_CHECKING:
    from cvxpy.constraints.constraint import Constraint
    from cvxpy.expressions.expression import Expression


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

    @property
    def curvature(self) -> float:
        """2 rho."""
        return 2 * self.rho

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

    Example:
        >>> import torch
        >>> from liftednet.penalties import L1
        >>> W = torch.tensor([[3.0, -4.0], [0.5, 0.0]])
        >>> L1(1.0).prox(W, 1.0)
        tensor([[ 2., -3.],
                [ 0.,  0.]])
    """

    place = 0

    def expression(self, weight: Expression) -> Expression:
        """Return rho |W|_1."""
        return self.rho * cp.sum(cp.abs(weight))

    def value(self, weight: Tensor) -> Tensor:
        """Return rho |W|_1, a scalar."""
        return self.rho * weight.abs().sum()

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return sign(W) max(|W| - t rho, 0): W less its own part in [-t rho, t rho]."""
        return weight - weight.clamp(-t * self.rho, t * self.rho)

    def stationarity(self, weight: Tensor, gradient: Tensor, smoothness: float) -> Tensor:
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
        positive = weight.clamp(min=0)
        return positive.div_(1 + 2 * self.rho * t) if self.rho else positive

    def stationarity(self, weight: Tensor, gradient: Tensor, smoothness: float) -> Tensor:
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

    def begin(self, weight: Tensor) -> Tensor:
        """Return |W|."""
        return weight.abs()

    def violation(self, weight: Tensor) -> float:
        """Return the largest negative entry."""
        return float(weight.double().neg().clamp(min=0).max())


@dataclass(frozen=True)
class RowNorm(Bounded):
    """pi(W) = 0 where every row of W has norm at most `bound`.

    Attributes:
        bound: the largest row norm, positive.

    Example:
        >>> import torch
        >>> from liftednet.penalties import RowNorm
        >>> W = torch.tensor([[3.0, -4.0], [0.5, 0.0]])
        >>> RowNorm(1.0).project(W)
        tensor([[ 0.6000, -0.8000],
                [ 0.5000,  0.0000]])
    """

    place = 2

    def domain(self, weight: Expression) -> list[Constraint]:
        """Return |W_i|_2 <= bound for every row."""
        return [cp.norm(weight, 2, axis=1) <= self.bound]

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return W with longer rows scaled down to the bound."""
        return _shortened(weight, self.inside(weight), dim=1)

    def largest(self, weight: Tensor) -> float:
        """Return the largest row norm."""
        return float(weight.double().norm(dim=1).max())


@dataclass(frozen=True)
class ColumnNorm(Bounded):
    """pi(W) = 0 where every column of W, the weights of a unit, has norm at most `bound`.

    Attributes:
        bound: the largest column norm, positive.

    Example:
        >>> import torch
        >>> from liftednet.penalties import ColumnNorm
        >>> W = torch.tensor([[3.0, -0.4], [4.0, 0.3]])
        >>> ColumnNorm(1.0).project(W)
        tensor([[ 0.6000, -0.4000],
                [ 0.8000,  0.3000]])
    """

    def domain(self, weight: Expression) -> list[Constraint]:
        """Return |W_j|_2 <= bound for every column."""
        return [cp.norm(weight, 2, axis=0) <= self.bound]

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return W with longer columns scaled down to the bound."""
        return _shortened(weight, self.inside(weight), dim=0)

    def largest(self, weight: Tensor) -> float:
        """Return the largest column norm."""
        return float(weight.double().norm(dim=0).max())


@dataclass(frozen=True)
class SpectralNorm(Bounded):
    """pi(W) = 0 where no singular value of W exceeds `bound`.

    With bound 1 it is the convex hull of the matrices with orthonormal columns (or rows), the
    constraint that Lifted Neural Networks name as future work; for orthogonality itself, which is
    not convex, see `Orthogonal`.

    Attributes:
        bound: the largest singular value, positive.

    Example:
        >>> import torch
        >>> from liftednet.penalties import SpectralNorm
        >>> W = torch.tensor([[3.0, -4.0], [0.5, 0.0]])
        >>> SpectralNorm(1.0).holds(W)
        False
    """

    bound: float = 1.0

    def domain(self, weight: Expression) -> list[Constraint]:
        """Return |W|_2 <= bound."""
        return [cp.sigma_max(weight) <= self.bound]

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return W with larger singular values cut down to the bound."""
        left, singular, right = torch.linalg.svd(weight, full_matrices=False)
        return (left * singular.clamp(max=self.inside(weight))) @ right

    def largest(self, weight: Tensor) -> float:
        """Return the largest singular value."""
        return float(torch.linalg.matrix_norm(weight.double(), 2))


def _shortened(weight: Tensor, bound: float, dim: int) -> Tensor:
    """Return W with rows (dim 1) or columns (dim 0) scaled down to a norm."""
    norms = weight.norm(dim=dim, keepdim=True)
    return weight * (bound / norms.clamp(min=bound))
