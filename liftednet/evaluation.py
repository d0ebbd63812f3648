"""The value of a CVXPY expression that may have variables of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftednet.lazy import cvxpy as cp

if TYPE_CHECKING:
    from cvxpy.expressions.expression import Expression


def evaluate(expression: Expression) -> float:
    """Return the value of a scalar expression, minimized over the variables inside it."""
    return evaluate_all([expression])[0]


def evaluate_all(expressions: list[Expression]) -> list[float]:
    """Return the values of scalar expressions, minimized over the variables inside them."""
    total = sum(expressions)
    if isinstance(total, cp.Expression) and total.variables():
        cp.Problem(cp.Minimize(total)).solve(solver=cp.CLARABEL)
    return [float(cp.Constant(0.0).value + expression.value) for expression in expressions]
