"""Sets of weight matrices: of entries, rows, columns and singular values, with nearest points."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from liftednet.errors import DataError, DeclarationError
from liftednet.lazy import cvxpy as cp
from liftednet.sets.penalty import Bounded, Constrained
from liftednet.validation import require_matrix

__all__ = ["ColumnNorm", "FixedZeros", "Orthogonal", "RowNorm", "Signs", "SpectralNorm"]


class _Between(Constrained):
    """Entries between ends, each of which is 0 or infinite."""

    place = 0
    by_rows = True

    @property
    @abstractmethod
    def sides(self) -> tuple[Tensor, Tensor]:
        """The least and the largest entries, of a shape that becomes that of W."""

    def ends(self, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Return the sides for W (inputs, units)."""
        lowest, highest = (side.double().expand(shape) for side in self.sides)
        return lowest, highest

    def domain(self, weight: cp.Expression) -> list[cp.Constraint]:
        """Return s W >= 0 for the signs s of entries with one side, W_ij = 0 for those with two."""
        inputs, units = weight.shape
        signs, fixed = (x.numpy() for x in self._kinds((inputs, units)))
        held = [cp.multiply(signs, weight) >= 0] if signs.any() else []
        return [*held, cp.multiply(fixed, weight) == 0] if fixed.any() else held

    def duals(self, weight: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        """Return s times the gradient, and less the gradient where W_ij = 0."""
        signs, fixed = (x.to(gradient) for x in self._kinds((len(weight), weight.shape[1])))
        held = [(signs * gradient).clamp(min=0)] if bool(signs.any()) else []
        return (*held, -fixed * gradient) if bool(fixed.any()) else tuple(held)

    def _kinds(self, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Return the signs s of entries with one side, and 1 in the place of those with two."""
        lowest, highest = ((side == 0).double().cpu() for side in self.ends(shape))
        return lowest - highest, lowest * highest

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return W with 0 in place of entries that are not between the sides."""
        lowest, highest = self.sides
        return weight.clamp(lowest.to(weight), highest.to(weight))

    def violation(self, weight: Tensor) -> float:
        """Return the largest entry that is not between the sides."""
        return float((weight - self.prox(weight, 0.0)).double().abs().max())

    def refuse_infeasible(self, shape: tuple[int, int]) -> None:
        """Raise `DataError` where the sides are not those of a W (inputs, units)."""
        given = tuple(self.sides[0].shape)
        if any(have not in (1, want) for have, want in zip(given, shape, strict=True)):
            raise DataError(f"{type(self).__name__} of shape {given} cannot be that of {shape}.")


@dataclass(frozen=True, eq=False)
class Signs(_Between):
    """pi(W) = 0 where entries have given signs, as of weights that make a network monotone.

    Attributes:
        signs: 1 for W_ij >= 0, -1 for W_ij <= 0, 0 for no constraint (as in scikit-learn's
            `monotonic_cst`); (inputs, units), or of a shape that becomes it, such as (inputs, 1).

    Raises:
        DataError: it is no matrix of 1, -1 and 0; at first use, it does not fit W.

    Example:
        >>> import torch
        >>> from liftednet.penalties import Signs
        >>> W = torch.tensor([[3.0, -4.0], [0.5, 1.0], [-1.0, 2.0]])
        >>> Signs(torch.tensor([[1.0], [-1.0], [0.0]])).project(W)
        tensor([[ 3.,  0.],
                [ 0.,  0.],
                [-1.,  2.]])
    """

    signs: Tensor
    signed = True

    def __post_init__(self) -> None:
        """Refuse other numbers."""
        require_matrix("signs", self.signs)
        if not bool(((self.signs == 0) | (self.signs.abs() == 1)).all()):
            raise DataError("signs must be 1, -1 or 0 (for no constraint).")

    @cached_property
    def sides(self) -> tuple[Tensor, Tensor]:
        """0 on the side of the wrong sign."""
        free = torch.full_like(self.signs, math.inf)
        return (-free).where(self.signs <= 0, 0.0), free.where(self.signs >= 0, 0.0)

    def begin(self, weight: Tensor) -> Tensor:
        """Return W with the signs of entries changed where they are wrong."""
        signs = self.signs.to(weight)
        return weight.where(signs == 0, signs * weight.abs())


@dataclass(frozen=True, eq=False)
class FixedZeros(_Between):
    """pi(W) = 0 where chosen entries are 0: connections that are not there.

    Attributes:
        where: nonzero where W_ij is 0, booleans or numbers, (inputs, units), or of a shape that
            becomes it.

    Raises:
        DataError: it is no matrix; at first use, it does not fit W.

    Example:
        >>> import torch
        >>> from liftednet.penalties import FixedZeros
        >>> FixedZeros(torch.tensor([[True, False]])).project(torch.ones(2, 2))
        tensor([[0., 1.],
                [0., 1.]])
    """

    where: Tensor

    def __post_init__(self) -> None:
        """Keep it as numbers."""
        given = self.where.float() if isinstance(self.where, Tensor) else self.where
        object.__setattr__(self, "where", (require_matrix("where", given) != 0).float())

    @cached_property
    def sides(self) -> tuple[Tensor, Tensor]:
        """0 and 0 in the chosen places."""
        free = torch.full_like(self.where, math.inf).where(self.where == 0, 0.0)
        return -free, free

    def begin(self, weight: Tensor) -> Tensor:
        """Return W whose units pass on their largest entry, from the next input that they may."""
        inputs, kept = len(weight), self.project(weight)
        sizes, places = weight.abs().max(0)
        away = (torch.arange(inputs, device=weight.device)[:, None] - places) % inputs
        barred = self.where.to(weight.device).expand_as(weight) != 0
        place = away.masked_fill(barred, inputs).argmin(0, keepdim=True)
        return self.project(kept.scatter(0, place, sizes[None]))


class _VectorNorm(Bounded):
    """Rows (dim 1) or columns (dim 0) of a norm up to the bound."""

    def domain(self, weight: cp.Expression) -> list[cp.Constraint]:
        """Return the bound on every norm."""
        return [cp.norm(weight, 2, axis=self.dim) <= self.bound]

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return W with what is longer scaled down to the bound."""
        bound = self.inside(weight)
        return weight * (bound / weight.norm(dim=self.dim, keepdim=True).clamp(min=bound))

    def largest(self, weight: Tensor) -> float:
        """Return the largest norm."""
        return float(weight.double().norm(dim=self.dim).max())


@dataclass(frozen=True)
class RowNorm(_VectorNorm):
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

    dim = 1
    place = 2
    by_rows = True


@dataclass(frozen=True)
class ColumnNorm(_VectorNorm):
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

    dim = 0


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
        >>> round(SpectralNorm(1.0).violation(W), 3)
        4.009
    """

    bound: float = 1.0

    def domain(self, weight: cp.Expression) -> list[cp.Constraint]:
        """Return |W|_2 <= bound."""
        return [cp.sigma_max(weight) <= self.bound]

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return W with larger singular values cut down to the bound."""
        left, singular, right = torch.linalg.svd(weight, full_matrices=False)
        return (left * singular.clamp(max=self.inside(weight))) @ right

    def largest(self, weight: Tensor) -> float:
        """Return the largest singular value."""
        return float(torch.linalg.matrix_norm(weight.double(), 2))


@dataclass(frozen=True)
class Orthogonal(Constrained):
    """pi(W) = 0 where W has orthonormal columns, or rows where units are more than inputs.

    It is not convex; its convex hull is `SpectralNorm(1.0)`. The nearest point is the polar factor
    of W, in whatever metric a step has.

    Example:
        >>> import torch
        >>> from liftednet.penalties import Orthogonal
        >>> Orthogonal().project(torch.tensor([[0.0, 3.0], [-2.0, 0.0]]))
        tensor([[ 0.,  1.],
                [-1.,  0.]])
    """

    convex = False

    def domain(self, weight: cp.Expression) -> list[cp.Constraint]:
        """Refuse: CVXPY states convex constraints.

        Raises:
            DeclarationError: always.
        """
        raise DeclarationError(f"{self!r} is not convex: CVXPY cannot state it.")

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return U V' of the singular value decomposition U S V', in float64 inside."""
        left, _, right = torch.linalg.svd(weight.double(), full_matrices=False)
        return (left @ right).to(weight)

    def violation(self, weight: Tensor) -> float:
        """Return the largest singular value's or the smallest one's distance from 1."""
        singular = torch.linalg.svdvals(weight.double())
        return float((singular - 1).abs().max())
