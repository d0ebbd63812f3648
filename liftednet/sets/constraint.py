"""A convex set of scores, over all samples at once: what it is, and what no scores meet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from liftednet.errors import DataError, DeclarationError
from liftednet.evaluation import convex_constraints, solve_precisely
from liftednet.lazy import cvxpy as cp
from liftednet.sets.penalty import Penalty
from liftednet.sets.polyhedron import Array, Limits, giving_way, least_excess, stacked
from liftednet.validation import name_of

_NOTHING = 1e-6  # in units of the scores, by which CVXPY's solvers leave a constraint
_GIVES = 1e-3  # share of all that gives way, from which it is named


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

    def of_logarithms(self) -> Constraint:
        """Return the constraint on positive numbers as one on their logarithms.

        Raises:
            DataError: that is not linear, as those of `Bounds` are.
        """
        raise DataError(
            f"counts are held within Bounds of their rates alone: {self!r} is not linear in the "
            "logarithms of rates, which a network gives."
        )

    def of_sequences(self, lengths: Array) -> Constraint:
        """Return the same for rows that are the steps of one sequence after the other.

        Args:
            lengths: (sequences,) the steps of each.
        """
        return self

    def taken(self, rows: Array, samples: int) -> Constraint:
        """Return what it asks of some rows (some,) of so many samples, whatever the others are."""
        return _Taken(self, rows, samples)

    def stated(self, u: cp.Expression) -> list[cp.Constraint]:
        """Return the constraint in CVXPY, for U (samples, outputs)."""
        limits = self.limits(*u.shape)
        assert limits is not None  # others state themselves
        return [one for one in limits.stated(u) if one.size]

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

    def stated(self, u: cp.Expression) -> list[cp.Constraint]:
        """Return what is stated of V scale + center."""
        scale, center = self._moments()
        ones = np.ones((u.shape[0], 1))
        return self.constraint.stated(u @ np.diag(scale) + ones @ center[None])

    def __repr__(self) -> str:
        """Be named as it was declared, in whose units excess is."""
        return repr(self.constraint)

    def _moments(self) -> tuple[Array, Array]:
        return self.scale.double().cpu().numpy(), self.center.double().cpu().numpy()


@dataclass(frozen=True, eq=False)
class _Taken(Constraint):
    """What a constraint on U says of U[rows] alone: all of it, where these are all rows."""

    constraint: Constraint
    rows: Array
    samples: int

    def limits(self, samples: int, outputs: int) -> Limits | None:
        found = self.constraint.limits(self.samples, outputs)
        if found is None:
            return None
        places = (self.rows[:, None] * outputs + np.arange(outputs)).ravel()
        matrix = found.matrix.tocsc()[:, places].tocsr()
        whole = np.diff(matrix.indptr) == np.diff(found.matrix.indptr)
        shape = found.shape if whole.all() else (int(whole.sum()),)
        return Limits(matrix[whole], found.lower[whole], found.upper[whole], shape)

    def stated(self, u: cp.Expression) -> list[cp.Constraint]:
        if self.limits(*u.shape) is not None:
            return super().stated(u)
        return self.constraint.stated(u[np.argsort(self.rows)])  # CVXPY knows it of all rows alone

    def __repr__(self) -> str:
        return repr(self.constraint)


class Declared(Constraint):
    """Any convex constraint on the scores, which the reference solver holds.

    Args:
        function: takes U (samples, outputs) as a CVXPY expression and returns constraints, or one.

    Raises:
        DeclarationError: it is no function; at first use, what it returns is no constraint, or not
            convex to CVXPY.

    Example:
        >>> import cvxpy as cp
        >>> import torch
        >>> from liftednet.constraints import Declared
        >>> short = Declared(lambda U: cp.norm(U, 2, axis=1) <= 1)
        >>> round(short.violation(torch.tensor([[3.0, 4.0]])), 6)
        4.0
    """

    def __init__(
        self, function: Callable[[cp.Expression], Sequence[cp.Constraint] | cp.Constraint]
    ) -> None:
        """Keep the declaration."""
        if not callable(function):
            raise DeclarationError(
                "Declared needs a function of the scores U, as in Declared(lambda U: U <= 1); got "
                f"{function!r}."
            )
        self.function = function

    def limits(self, samples: int, outputs: int) -> None:
        """Return None: CVXPY alone knows it."""
        return

    def stated(self, u: cp.Expression) -> list[cp.Constraint]:
        """Return the declared constraints."""
        return convex_constraints(repr(self), self.function, u)

    def __repr__(self) -> str:
        """Name the class and the function."""
        return f"Declared({name_of(self.function)})"


def require_constraints(constraints: object, name: str = "constraints") -> tuple[Constraint, ...]:
    """Return constraints as a tuple.

    Raises:
        DeclarationError: they are no sequence of them.
    """
    if not isinstance(constraints, Sequence):
        kind = type(constraints).__name__
        raise DeclarationError(f"{name} must be a list, as in [Bounds(0, 1)]; got {kind}.")
    for one in constraints:
        if not isinstance(one, Constraint):
            room, hint = type(one).__module__, ""
            if isinstance(one, Penalty):
                room = "liftednet.penalties"
            if room.startswith("liftednet."):  # where others have a Declared, too
                hint = f" of {room}, which is no constraint on scores"
            elif isinstance(one, cp.Constraint):
                hint = ": declare it of the scores U, as in Declared(lambda U: cp.norm(U) <= 1)"
            raise DeclarationError(
                f"{name} must be those of liftednet.constraints, such as Bounds(0, 1); got "
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
    given = stacked([limits for _, limits in linear], samples * outputs)
    if not given.excess(np.zeros((samples, outputs))).any():
        return  # scores of zero meet them, as they do most means and differences
    excess = least_excess(given.matrix, given.lower, given.upper)
    if excess is None:
        return
    names = giving_way([(x, len(limits.lower)) for x, limits in linear], excess)
    raise DataError(
        "the constraints contradict each other, whatever the network: no scores meet all of them; "
        f"nearest to it, what gives way is {names}."
    )


def refuse_impossible(constraints: Sequence[Constraint], samples: int, outputs: int) -> None:
    """Raise `DataError` where no scores meet all constraints, some of which CVXPY alone knows.

    It is one convex problem in free scores, (samples, outputs), whatever the network: limits give
    way, by least in sum, and cones do not.
    """
    if all(one.limits(samples, outputs) is not None for one in constraints):
        return
    u = cp.Variable((samples, outputs))
    relaxed = [[_relaxed(stated) for stated in one.stated(u)] for one in constraints]
    slacks = [[slack for slack, _ in some] for some in relaxed]
    total = cp.sum(cp.hstack([cp.sum(slack) for some in slacks for slack in some]))
    held = [constraint for some in relaxed for _, more in some for constraint in more]
    problem, where = cp.Problem(cp.Minimize(total), held), ""
    try:
        solve_precisely(problem)
    except cp.error.SolverError:
        return  # nothing is proven: the fit will tell
    if problem.status != cp.INFEASIBLE:
        worst = np.array([max(np.max(np.asarray(x.value)) for x in some) for some in slacks])
        if worst.sum() <= _NOTHING:
            return
        worst[worst <= _GIVES * worst.sum()] = 0.0
        names = giving_way([(one, 1) for one in constraints], worst)
        where = f"; nearest to it, what gives way is {names}"
    names = ", ".join(map(repr, constraints))
    raise DataError(
        f"no scores meet all of the constraints {names}, whatever the network: CVXPY proves the "
        f"problem infeasible{where}."
    )


def _relaxed(stated: cp.Constraint) -> tuple[cp.Variable, list[cp.Constraint]]:
    """Return by how much a constraint gives way, and what is left of it; a cone does not."""
    slack = cp.Variable(stated.shape, nonneg=True)
    if isinstance(stated, cp.constraints.Inequality | cp.constraints.NonPos):
        return slack, [stated.expr <= slack]
    if isinstance(stated, cp.constraints.Equality | cp.constraints.Zero):
        return slack, [cp.abs(stated.expr) <= slack]
    return cp.Variable(nonneg=True), [stated]


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
