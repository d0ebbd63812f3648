"""A constraint on scores that is declared in CVXPY alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from liftednet.constraints.constraint import Constraint, Limits
from liftednet.errors import DataError, DeclarationError
from liftednet.evaluation import solve_precisely, stating
from liftednet.lazy import cvxpy as cp
from liftednet.validation import name_of

if TYPE_CHECKING:
    from cvxpy.constraints.constraint import Constraint as Stated
    from cvxpy.expressions.expression import Expression

_GIVES = 1e-3  # share of all that gives way, from which it is named


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

    def __init__(self, function: Callable[[Expression], Sequence[Stated] | Stated]) -> None:
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

    def stated(self, u: Expression) -> list[Stated]:
        """Return the declared constraints."""
        with stating(repr(self)):
            found = self.function(u)
        constraints = list(found) if isinstance(found, Sequence) else [found]
        for one in constraints:
            if not isinstance(one, cp.Constraint):
                raise DeclarationError(f"{self!r} must return constraints, got {one!r}.")
            if not one.is_dcp():
                raise DeclarationError(f"the constraint {one} is not convex to CVXPY.")
        return constraints

    def __repr__(self) -> str:
        """Name the class and the function."""
        return f"Declared({name_of(self.function)})"


def refuse_impossible(constraints: Sequence[Constraint], samples: int, outputs: int) -> None:
    """Raise `DataError` where no scores meet all constraints, some of which CVXPY alone knows.

    It is one convex problem in free scores, (samples, outputs), whatever the network. What is in
    conflict is told by another, in which constraints give way by least in sum.
    """
    known = [(one, one.limits(samples, outputs)) for one in constraints]
    if all(limits is not None for _, limits in known):
        return
    u = cp.Variable((samples, outputs))
    each = [one.stated(u) if limits is None else _ends(limits, u) for one, limits in known]
    if _value(cp.sum_squares(u), [stated for some in each for stated in some]) < np.inf:
        return
    relaxed = [[_relaxed(stated) for stated in some] for some in each]
    slacks = [[slack for slack, _ in some] for some in relaxed]
    total = cp.sum(cp.hstack([cp.sum(slack) for some in slacks for slack in some]))
    least = _value(total, [held for some in relaxed for _, more in some for held in more])
    given: list[str] = []
    if least < np.inf:
        worst = [max(float(np.max(np.asarray(slack.value))) for slack in some) for some in slacks]
        given = [
            f"{one!r} by {by:.3g}"
            for (one, _), by in zip(known, worst, strict=True)
            if by > _GIVES * least
        ]
    where = f"; nearest to it, what gives way is {' and '.join(given)}" if given else ""
    names = ", ".join(repr(one) for one in constraints)
    raise DataError(
        f"no scores meet all of the constraints {names}, whatever the network: CVXPY proves the "
        f"problem infeasible{where}."
    )


def _value(objective: Expression, constraints: list[Stated]) -> float:
    """Return the least value, infinite where CVXPY proves that there is none."""
    problem = cp.Problem(cp.Minimize(objective), constraints)
    try:
        solve_precisely(problem)
    except cp.error.SolverError:
        return 0.0  # nothing is proven: the fit will tell
    return np.inf if problem.status == cp.INFEASIBLE else 0.0


def _ends(limits: Limits, u: Expression) -> list[Stated]:
    at = limits.matrix @ cp.vec(u, order="C")
    upper, lower = np.isfinite(limits.upper), np.isfinite(limits.lower)
    found: list[Stated] = []
    if upper.any():
        found.append(at[upper] <= limits.upper[upper])
    if lower.any():
        found.append(at[lower] >= limits.lower[lower])
    return found


def _relaxed(stated: Stated) -> tuple[cp.Variable, list[Stated]]:
    """Return by how much a constraint gives way, and what is left of it; a cone does not."""
    slack = cp.Variable(stated.shape, nonneg=True)
    if isinstance(stated, cp.constraints.Inequality | cp.constraints.NonPos):
        return slack, [stated.expr <= slack]
    if isinstance(stated, cp.constraints.Equality | cp.constraints.Zero):
        return slack, [cp.abs(stated.expr) <= slack]
    return cp.Variable(nonneg=True), [stated]
