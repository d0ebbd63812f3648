"""A convex set of scores, over all samples at once, and what all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from liftednet.errors import DataError, DeclarationError
from liftednet.lazy import cvxpy as cp
from liftednet.lazy import sparse

if TYPE_CHECKING:
    from cvxpy.constraints.constraint import Constraint as Stated
    from cvxpy.expressions.expression import Expression

Array = NDArray[Any]
_MET = 1e-9  # sum of what must give way, relative to the limits, below which nothing must


@dataclass(frozen=True, eq=False)
class Limits:
    """l <= A u <= h, for scores U (samples, outputs) as one column u, row after row.

    Attributes:
        matrix: A, (limits, samples * outputs), sparse.
        lower: l, (limits,), -inf where there is none.
        upper: h, (limits,), inf where there is none; an equality where it is l.
        shape: in which prices are given, of as many entries as there are limits.
    """

    matrix: sparse.csr_matrix
    lower: Array
    upper: Array
    shape: tuple[int, ...]

    def through(self, scale: Array, center: Array) -> Limits:
        """Return the same limits on V where U = V scale + center; both are (outputs,)."""
        samples = self.matrix.shape[1] // len(scale)
        matrix = sparse.csr_matrix(self.matrix @ sparse.diags(np.tile(scale, samples)))
        return replace(self.moved(np.tile(center, samples)), matrix=matrix)

    def moved(self, constant: Array) -> Limits:
        """Return the same limits on V where U = V + constant, (samples, outputs)."""
        shift = self.matrix @ constant.reshape(-1)
        return replace(self, lower=self.lower - shift, upper=self.upper - shift)

    def excess(self, u: Array) -> Array:
        """Return by how much each limit is passed, (limits,), of scores (samples, outputs)."""
        at = self.matrix @ u.reshape(-1)
        found: Array = np.maximum(np.maximum(self.lower - at, at - self.upper), 0.0)
        return found

    @cached_property
    def norms(self) -> Array:
        """(limits,) Euclidean norm of every row of A."""
        found: Array = np.sqrt(self.matrix.multiply(self.matrix).sum(axis=1)).A1
        return found

    def normed(self) -> Limits:
        """Return the same limits with rows of norm 1."""
        matrix = sparse.csr_matrix(sparse.diags(1 / self.norms) @ self.matrix)
        lower, upper = self.lower / self.norms, self.upper / self.norms
        return replace(self, matrix=matrix, lower=lower, upper=upper)

    @property
    def equal(self) -> Array:
        """(limits,) whether it is an equality."""
        found: Array = self.lower == self.upper
        return found


def stacked(limits: Sequence[Limits]) -> Limits:
    """Return several limits as one."""
    lower, upper = (np.concatenate([getattr(x, end) for x in limits]) for end in ("lower", "upper"))
    matrix = sparse.csr_matrix(sparse.vstack([x.matrix for x in limits]))
    return Limits(matrix, lower, upper, lower.shape)


class Constraint(ABC):
    """A convex set of the scores U (samples, outputs) of all samples of a fit.

    Scores are the last pre-activations: the outputs of a regression, the logits of a classifier.
    Probabilities are not meant: a set of them is not convex in the weights.

    Example:
        >>> import torch
        >>> from liftednet.constraints import Bounds, Constraint
        >>> isinstance(Bounds(upper=1.0), Constraint)
        True
        >>> Bounds(upper=1.0).violation(torch.tensor([[1.5]]))
        0.5
    """

    @abstractmethod
    def limits(self, samples: int, outputs: int) -> Limits | None:
        """Return the constraint as limits, or None where CVXPY alone knows it.

        Raises:
            DataError: it does not fit scores of this shape.
        """

    def each(self, outputs: int) -> Limits:
        """Return the limits on the scores of one sample, (1, outputs).

        Raises:
            DataError: it speaks of several samples, or does not fit the outputs.
        """
        raise DataError(f"{self!r} is not one on each sample by itself, as Bounds and Linear are.")

    def stated(self, u: Expression) -> list[Stated]:
        """Return a constraint that is known to CVXPY alone, for U (samples, outputs)."""
        raise DeclarationError(f"{self!r} is stated by its limits.")

    def violation(self, scores: Tensor) -> float:
        """Return by how much scores (samples, outputs) break it at most, in their units."""
        u = scores.detach().double().cpu().numpy()
        limits = self.limits(*u.shape)
        if limits is not None:
            return float(limits.excess(u).max(initial=0.0))
        variable = cp.Variable(u.shape)
        variable.value = u
        return max(float(np.max(x.violation())) for x in self.stated(variable))


@dataclass(frozen=True, eq=False)
class Rescaled(Constraint):
    """A constraint on U = V scale + center, as one on V.

    Attributes:
        constraint: on U.
        scale: (outputs,) positive.
        center: (outputs,).
    """

    constraint: Constraint
    scale: Tensor
    center: Tensor

    def limits(self, samples: int, outputs: int) -> Limits | None:
        """Return the limits on V."""
        found = self.constraint.limits(samples, outputs)
        return None if found is None else found.through(*self._moments())

    def stated(self, u: Expression) -> list[Stated]:
        """Return what is stated of V scale + center."""
        scale, center = self._moments()
        ones = np.ones((u.shape[0], 1))
        return self.constraint.stated(u @ np.diag(scale) + ones @ center[None])

    def __repr__(self) -> str:
        """Be named as it was declared, in whose units excess is."""
        return repr(self.constraint)

    def _moments(self) -> tuple[Array, Array]:
        return self.scale.double().cpu().numpy(), self.center.double().cpu().numpy()


def require_constraints(constraints: object) -> tuple[Constraint, ...]:
    """Return constraints as a tuple.

    Raises:
        DeclarationError: they are no sequence of them.
    """
    if not isinstance(constraints, Sequence):
        kind = type(constraints).__name__
        raise DeclarationError(f"constraints must be a list, as in [Budget(1.0)]; got {kind}.")
    for one in constraints:
        if not isinstance(one, Constraint):
            room, hint = type(one).__module__, ""
            if room.startswith("liftednet."):  # where others have a Declared, too
                hint = f" of {room}, which is no constraint on scores"
            elif isinstance(one, cp.Constraint):
                hint = ": declare it of the scores U, as in Declared(lambda U: cp.norm(U) <= 1)"
            raise DeclarationError(
                f"constraints must be those of liftednet.constraints, such as Budget(1.0); got "
                f"{one!r}{hint}."
            )
    return tuple(constraints)


def refuse_contradictions(constraints: Sequence[Constraint], samples: int, outputs: int) -> None:
    """Raise `DataError` where no scores (samples, outputs) meet all constraints.

    Those that CVXPY alone knows are not looked at.
    """
    known = [(x, x.limits(samples, outputs)) for x in constraints]
    linear = [(x, limits) for x, limits in known if limits is not None]
    if not linear:
        return
    given = stacked([limits for _, limits in linear])
    excess = least_excess(given.matrix, given.lower, given.upper)
    if excess is None:
        return
    ends = np.cumsum([len(limits.lower) for _, limits in linear])[:-1]
    parts = np.split(excess, ends)
    names = [
        f"{constraint!r} by {part.max():.3g}"
        for (constraint, _), part in zip(linear, parts, strict=True)
        if part.max(initial=0.0) > 0
    ]
    raise DataError(
        "the constraints contradict each other, whatever the network: no scores meet all of them; "
        f"nearest to it, what gives way is {' and '.join(names)}."
    )


def least_excess(matrix: Any, lower: Array, upper: Array) -> Array | None:
    """Return by how much limits must give way, (limits,) of least sum, or None if nothing must.

    Args:
        matrix: A of l <= A x <= h, (limits, unknowns), sparse or dense.
        lower: l.
        upper: h.
    """
    above, below = np.isfinite(upper), np.isfinite(lower)
    sides = sparse.vstack([sparse.csr_matrix(matrix)[above], -sparse.csr_matrix(matrix)[below]])
    count, unknowns = sides.shape
    from scipy.optimize import linprog

    found = linprog(
        np.concatenate([np.zeros(unknowns), np.ones(count)]),
        A_ub=sparse.hstack([sides, -sparse.eye(count)]),
        b_ub=np.concatenate([upper[above], -lower[below]]),
        bounds=[(None, None)] * unknowns + [(0, None)] * count,
        method="highs",
    )
    size = max(1.0, *np.abs(np.concatenate([upper[above], lower[below]])))
    if found.x is None or found.fun <= _MET * size:
        return None
    slack, excess = found.x[unknowns:], np.zeros(len(lower))
    excess[above] = slack[: above.sum()]
    excess[below] = np.maximum(excess[below], slack[above.sum() :])
    return np.where(excess > _MET * size, excess, 0.0)


def violations(constraints: Sequence[Constraint], scores: Tensor) -> tuple[float, ...]:
    """Return by how much scores break each constraint at most, in units of the scores.

    Args:
        constraints: of `liftednet.constraints`.
        scores: (samples, outputs) last pre-activations.

    Example:
        >>> import torch
        >>> from liftednet.constraints import Budget, Order, violations
        >>> violations([Budget(1.0), Order([(0, 1)])], torch.tensor([[3.0], [2.5]]))
        (1.75, 0.5)
    """
    return tuple(one.violation(scores) for one in require_constraints(constraints))


def as_array(name: str, value: Any, endless: float | None = None) -> Array:
    """Return numbers as a float64 array.

    Args:
        name: in messages.
        value: numbers.
        endless: an infinite one that some of them may be.

    Raises:
        DataError: they are none, or not finite.
    """
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    try:
        array: Array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} must be numbers, got {type(value).__name__}.") from error
    bad = ~np.isfinite(array)
    if endless is not None and not bad.all():
        bad &= array != endless
    if bad.any():
        raise DataError(f"{name} must be finite; {int(bad.sum())} are not.")
    return array


def as_prices(flat: Array, shape: tuple[int, ...]) -> Tensor:
    """Return prices in the shape of their constraint, float64."""
    return torch.from_numpy(np.ascontiguousarray(flat)).reshape(shape)
