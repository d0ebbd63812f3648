"""Sets of weight matrices: of entries, rows, columns and singular values, with nearest points."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from liftednet.activations.simplex import project_simplex
from liftednet.errors import DataError, DeclarationError, SolverError
from liftednet.lazy import cvxpy as cp
from liftednet.sets.penalty import Bounded, Constrained
from liftednet.validation import require_count, require_finite, require_matrix, require_positive

if TYPE_CHECKING:
    from cvxpy.constraints.constraint import Constraint
    from cvxpy.expressions.expression import Expression

__all__ = [
    "ColumnNorm",
    "DoublyStochastic",
    "FewRows",
    "FixedZeros",
    "LinearEqualities",
    "Orthogonal",
    "RowNorm",
    "Signs",
    "SimplexRows",
    "SpectralNorm",
]

_NEWTON_STEPS = 100  # of the dual of a doubly stochastic projection; about ten suffice
_ROUNDED = 1e-13  # off the sums in float64, where Newton's steps end
_NEARLY = 1e-9  # off the sums, where steps that no longer help have come far enough


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

    def domain(self, weight: Expression) -> list[Constraint]:
        """Return s W >= 0 for the signs s of entries with one side, W_ij = 0 for those with two."""
        inputs, units = weight.shape
        sides = self.ends((inputs, units))
        lowest, highest = ((side == 0).double().cpu().numpy() for side in sides)
        signs, fixed = lowest - highest, lowest * highest
        held = [cp.multiply(signs, weight) >= 0] if signs.any() else []
        return [*held, cp.multiply(fixed, weight) == 0] if fixed.any() else held

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return W with 0 in place of entries that are not between the sides."""
        lowest, highest = self.sides
        return weight.clamp(lowest.to(weight), highest.to(weight))

    def violation(self, weight: Tensor) -> float:
        """Return the largest entry that is not between the sides."""
        return float((weight - self.prox(weight, 0.0)).double().abs().max())

    def refuse_infeasible(self, shape: tuple[int, int]) -> None:
        """Raise `DataError` where the sides are not those of a W (inputs, units)."""
        _require_broadcast(type(self).__name__, self.sides[0], shape)


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

    dim: int

    def domain(self, weight: Expression) -> list[Constraint]:
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


@dataclass(frozen=True)
class SimplexRows(Constrained):
    """pi(W) = 0 where every row of W is nonnegative and has the sum `total`.

    An input is then shared out among the units: sums over units are kept.

    Attributes:
        total: of a row, positive.

    Raises:
        DataError: the total is not positive and finite.

    Example:
        >>> import torch
        >>> from liftednet.penalties import SimplexRows
        >>> SimplexRows().project(torch.tensor([[2.0, 1.5, -1.0]]))
        tensor([[0.7500, 0.2500, 0.0000]])
    """

    total: float = 1.0
    signed = True
    by_rows = True

    def __post_init__(self) -> None:
        """Refuse a total that is not positive."""
        object.__setattr__(self, "total", require_positive("total", self.total))

    @property
    def reach(self) -> float:
        """The total."""
        return self.total

    def domain(self, weight: Expression) -> list[Constraint]:
        """Return W >= 0 and the sums of its rows."""
        return [weight >= 0, cp.sum(weight, axis=1) == self.total]

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return the nearest point of the simplex to every row, by sorting."""
        return self.total * project_simplex(weight / self.total)

    def violation(self, weight: Tensor) -> float:
        """Return the largest negative entry, or how far a sum is off."""
        return _off_sums(weight.double(), self.total, (1,))


@dataclass(frozen=True)
class DoublyStochastic(Constrained):
    """pi(W) = 0 where W is square, nonnegative, and all its rows and columns have the sum 1.

    Example:
        >>> import torch
        >>> from liftednet.penalties import DoublyStochastic
        >>> DoublyStochastic().project(torch.tensor([[1.0, 0.0], [0.0, 0.5]]))
        tensor([[0.8750, 0.1250],
                [0.1250, 0.8750]])
    """

    signed = True

    @property
    def reach(self) -> float:
        """1."""
        return 1.0

    def domain(self, weight: Expression) -> list[Constraint]:
        """Return W >= 0 and the sums of its rows and columns."""
        return [weight >= 0, cp.sum(weight, axis=0) == 1, cp.sum(weight, axis=1) == 1]

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return the nearest doubly stochastic matrix, max(W - a 1' - 1 b', 0).

        By Newton's method on the dual, which is piecewise quadratic in a and b.

        Raises:
            SolverError: the sums are not reached.
        """
        self.refuse_infeasible((weight.shape[0], weight.shape[1]))
        target = weight.double()
        moved = target.new_zeros(2 * len(weight))
        for _ in range(_NEWTON_STEPS):
            shifts = moved
            found = _shifted(target, shifts)
            error = torch.cat([found.sum(1), found.sum(0)]) - 1
            off = float(error.abs().max())
            if off <= _ROUNDED * max(1.0, float(shifts.abs().max())):
                break
            moved = self._step(target, shifts, found, error)
            if torch.equal(shifts, moved):
                break
        if not off <= _NEARLY:
            raise SolverError(f"sums of a projection are off by {off:.1e}.")
        return found.to(weight)

    @staticmethod
    def _step(target: Tensor, shifts: Tensor, found: Tensor, error: Tensor) -> Tensor:
        """Return the shifts after one damped step that lowers the dual, or the same shifts."""
        active, size = (found > 0).to(found), len(found)
        system = torch.diag(torch.cat([active.sum(1), active.sum(0)]) + 1e-9)
        system[:size, size:], system[size:, :size] = active, active.T
        system.diagonal().add_(min(1.0, float(error.norm())) * 1e-3)
        step = torch.linalg.solve(system, error)

        def dual(at: Tensor) -> float:
            return float(_shifted(target, at).square().sum() / 2 + at.sum())

        value, fall = dual(shifts), float(step @ error)
        for length in (0.5**halvings for halvings in range(30)):
            if dual(shifts + length * step) <= value - 1e-4 * fall * length + 1e-15 * abs(value):
                return shifts + length * step
        return shifts

    def violation(self, weight: Tensor) -> float:
        """Return the largest negative entry, or how far a sum is off."""
        return _off_sums(weight.double(), 1.0, (0, 1))

    def refuse_infeasible(self, shape: tuple[int, int]) -> None:
        """Raise `DataError` where W is not square."""
        if shape[0] != shape[1]:
            raise DataError(f"a doubly stochastic W is square, and here its shape is {shape}.")


@dataclass(frozen=True, eq=False)
class LinearEqualities(Constrained):
    """pi(W) = 0 where A W = B, as where the weights of some inputs sum to zero in every unit.

    Attributes:
        matrix: A, (equalities, inputs).
        right: B, (equalities, units), or of a shape that becomes it; None for 0.

    Raises:
        DataError: they are no finite matrices; at first use, they do not fit W, or no W satisfies
            them.

    Example:
        >>> import torch
        >>> from liftednet.penalties import LinearEqualities
        >>> LinearEqualities(torch.ones(1, 3)).project(torch.tensor([[3.0], [0.0], [0.0]]))
        tensor([[ 2.],
                [-1.],
                [-1.]])
    """

    matrix: Tensor
    right: Tensor | None = None
    by_rows = True

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        for name, value in (("A", self.matrix), ("B", self.right)):
            if value is not None:
                require_finite(name, require_matrix(name, value))

    def domain(self, weight: Expression) -> list[Constraint]:
        """Return A W = B."""
        right = self._right.expand(len(self.matrix), weight.shape[1])
        return [self.matrix.double().cpu().numpy() @ weight == right.cpu().numpy()]

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return W - A^+ (A W - B), or the nearest by distances over t, in float64 inside."""
        matrix, inverse, right = (x.to(weight.device) for x in self._parts)
        exact = weight.double()
        if isinstance(t, Tensor) and t.ndim:
            roots = t.double().sqrt()
            inverse = roots * torch.linalg.pinv(matrix * roots.T)
        return (exact - inverse @ (matrix @ exact - right)).to(weight)

    @cached_property
    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        matrix = self.matrix.double()
        return matrix, torch.linalg.pinv(matrix), self._right

    @property
    def _right(self) -> Tensor:
        return torch.zeros(1, 1).double() if self.right is None else self.right.double()

    def violation(self, weight: Tensor) -> float:
        """Return the largest entry of A W - B."""
        matrix, _, right = (x.to(weight.device) for x in self._parts)
        return float((matrix @ weight.double() - right).abs().max())

    def refuse_infeasible(self, shape: tuple[int, int]) -> None:
        """Raise `DataError` where no W (inputs, units) satisfies A W = B."""
        if self.matrix.shape[1] != shape[0]:
            raise DataError(f"A must have {shape[0]} columns, got {tuple(self.matrix.shape)}.")
        _require_broadcast("B", self._right, (len(self.matrix), shape[1]))
        nearest = self.prox(torch.zeros(shape, dtype=torch.float64), 0.0)
        if not self.holds(nearest):
            raise DataError("no W satisfies A W = B: rows of A contradict each other.")


class _NotConvex(Constrained):
    """A constraint of which the nearest point is known, though it is not convex."""

    convex = False

    def domain(self, weight: Expression) -> list[Constraint]:
        """Refuse: CVXPY states convex constraints.

        Raises:
            DeclarationError: always.
        """
        raise DeclarationError(f"{self!r} is not convex: CVXPY cannot state it.")


@dataclass(frozen=True)
class Orthogonal(_NotConvex):
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

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return U V' of the singular value decomposition U S V', in float64 inside."""
        left, _, right = torch.linalg.svd(weight.double(), full_matrices=False)
        return (left @ right).to(weight)

    def violation(self, weight: Tensor) -> float:
        """Return the largest singular value's or the smallest one's distance from 1."""
        singular = torch.linalg.svdvals(weight.double())
        return float((singular - 1).abs().max())


@dataclass(frozen=True)
class FewRows(_NotConvex):
    """pi(W) = 0 where at most `count` rows of W are not zero: so many inputs are used.

    It is not convex; `GroupLasso` is the convex way to zero rows. The nearest point keeps the
    longest rows.

    Attributes:
        count: rows that are kept, positive.

    Raises:
        DataError: it is no positive integer.

    Example:
        >>> import torch
        >>> from liftednet.penalties import FewRows
        >>> FewRows(1).project(torch.tensor([[3.0, -4.0], [0.5, 0.0]]))
        tensor([[ 3., -4.],
                [ 0.,  0.]])
    """

    count: int

    def __post_init__(self) -> None:
        """Refuse what is no positive integer."""
        require_count("count", self.count, 1)

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return W with its longest rows alone."""
        if self.count >= len(weight):
            return weight
        kept = torch.zeros_like(weight)
        longest = weight.norm(dim=1).topk(self.count).indices
        kept[longest] = weight[longest]
        return kept

    def violation(self, weight: Tensor) -> float:
        """Return the norm of the longest row beyond those that may be there."""
        norms = weight.double().norm(dim=1).sort(descending=True).values
        return float(norms[self.count :].max()) if self.count < len(norms) else 0.0


def _shifted(target: Tensor, shifts: Tensor) -> Tensor:
    """Return max(W - a 1' - 1 b', 0), a and b one behind the other."""
    rows, columns = shifts.view(2, -1)
    return (target - rows[:, None] - columns).clamp(min=0)


def _off_sums(weight: Tensor, total: float, dims: tuple[int, ...]) -> float:
    below = float((-weight).clamp(min=0).max())
    return max(below, *(float((weight.sum(dim) - total).abs().max()) for dim in dims))


def _require_broadcast(name: str, value: Tensor, shape: tuple[int, int]) -> None:
    if any(have not in (1, want) for have, want in zip(value.shape, shape, strict=True)):
        raise DataError(f"{name} of shape {tuple(value.shape)} cannot be that of {shape}.")
