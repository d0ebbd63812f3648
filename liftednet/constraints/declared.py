"""A constraint on scores that is declared in CVXPY alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from liftednet.constraints.constraint import Constraint
from liftednet.errors import DeclarationError
from liftednet.evaluation import stating
from liftednet.lazy import cvxpy as cp
from liftednet.validation import name_of

if TYPE_CHECKING:
    from cvxpy.constraints.constraint import Constraint as Stated
    from cvxpy.expressions.expression import Expression


class Declared(Constraint):
    """Any convex constraint on the scores, which the reference solver holds.

    Args:
        function: takes U (samples, outputs) as a CVXPY expression and returns constraints, or one.

    Raises:
        DeclarationError: at first use, what it returns is no constraint, or not convex to CVXPY.

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
