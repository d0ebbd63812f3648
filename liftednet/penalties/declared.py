"""A penalty that is declared in CVXPY alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from liftednet.errors import DeclarationError
from liftednet.evaluation import stating
from liftednet.lazy import cvxpy as cp
from liftednet.penalties.penalty import Penalty
from liftednet.penalties.statement import statement

if TYPE_CHECKING:
    from cvxpy.constraints.constraint import Constraint
    from cvxpy.expressions.expression import Expression


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

    function: Callable[[Expression], Expression | float] | None = None
    constraints: Callable[[Expression], Sequence[Constraint] | Constraint] | None = None
    closed_form = False

    def __post_init__(self) -> None:
        """Refuse a penalty of nothing."""
        if self.function is None and self.constraints is None:
            raise DeclarationError("Declared needs a function of W, constraints on W, or both.")

    def expression(self, weight: Expression) -> Expression:
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

    def domain(self, weight: Expression) -> list[Constraint]:
        """Return the declared constraints.

        Raises:
            DeclarationError: one is no constraint, or not convex to CVXPY.
        """
        with stating(f"the constraints of {self!r}"):
            found = [] if self.constraints is None else self.constraints(weight)
        constraints = list(found) if isinstance(found, Sequence) else [found]
        for constraint in constraints:
            if not isinstance(constraint, cp.Constraint):
                raise DeclarationError(f"constraints must return constraints, got {constraint!r}.")
            if not constraint.is_dcp():
                raise DeclarationError(f"the constraint {constraint} is not convex to CVXPY.")
        return constraints

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
