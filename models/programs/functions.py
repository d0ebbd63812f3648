"""Convex functions of CVXPY at many points at once, with a subgradient at each.

Affine expressions are matrices. Sums, factors and the usual atoms are the same of torch, whose
derivatives at kinks are subgradients, so that by the rules of composition all are; what consists of
other atoms is evaluated point by point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from liftednet.errors import DeclarationError
from liftednet.lazy import sparse

from ..bounds.curves import Array

Node = Callable[[Tensor], Tensor]  # of points (points, variables), (points, entries)


def values_of(variables: Sequence[Any]) -> Array:
    """Return the values of variables, one after another."""
    return np.concatenate([np.asarray(x.value, dtype=float).flatten(order="F") for x in variables])


def assign(variables: Sequence[Any], values: Array) -> None:
    """Give variables their values, one after another."""
    first = 0
    for x in variables:
        x.save_value(values[first : first + x.size].reshape(x.shape, order="F"))
        first += x.size


def linear_in(expression: Any, variables: Sequence[Any], at: Array) -> tuple[Array, Array]:
    """Return the values of an expression, and its derivatives in variables, at a point.

    Where it has none, outside the domain of an atom, they are not numbers.
    """
    assign(variables, at)
    slopes, size = expression.grad, max(expression.size, 1)
    parts = [
        slopes[x].toarray().T
        if sparse.issparse(slopes.get(x))
        else np.broadcast_to(np.asarray(slopes.get(x, 0.0), dtype=float), (size, max(x.size, 1)))
        for x in variables
    ]
    matrix = np.concatenate(parts, axis=1) if parts else np.zeros((size, 0))
    return np.asarray(expression.value, dtype=float).flatten(order="F"), matrix


def affine_in(expression: Any, variables: Sequence[Any]) -> tuple[Array, Array]:
    """Return J and c of an affine expression J v + c."""
    if len(variables) == 1 and expression is variables[0] and expression.ndim == 1:
        return np.eye(expression.size), np.zeros(expression.size)
    offset, matrix = linear_in(expression, variables, np.zeros(sum(x.size for x in variables)))
    return matrix, offset


_ATOMS: dict[str, Callable[..., Tensor]] = {
    "abs": lambda atom, u: u.abs(),
    "exp": lambda atom, u: u.exp(),
    "log": lambda atom, u: u.log(),
    "logistic": lambda atom, u: functional.softplus(u, threshold=40.0),
    "entr": lambda atom, u: torch.special.entr(u),
    "maximum": lambda atom, *each: torch.stack(torch.broadcast_tensors(*each)).amax(0),
    "minimum": lambda atom, *each: torch.stack(torch.broadcast_tensors(*each)).amin(0),
    "Power": lambda atom, u: u ** float(getattr(atom.p, "value", atom.p)),
    "AddExpression": lambda atom, *each: sum(each[1:], start=each[0]),
    "NegExpression": lambda atom, u: -u,
}  # fmt: skip
_TOTALS: dict[str, Callable[..., Tensor]] = {
    "Sum": lambda atom, u: u.sum(1),
    "max": lambda atom, u: u.amax(1),
    "min": lambda atom, u: u.amin(1),
    "norm1": lambda atom, u: u.abs().sum(1),
    "norm_inf": lambda atom, u: u.abs().amax(1),
    "Pnorm": lambda atom, u: torch.linalg.vector_norm(u, float(atom.p), 1),
    "log_sum_exp": lambda atom, u: u.logsumexp(1),
}  # of all entries


def _node_of(expression: Any, variables: Sequence[Any]) -> Node | None:
    """Return an expression as a function of torch, or None."""
    if expression.is_affine():
        matrix, offset = map(torch.from_numpy, affine_in(expression, variables))
        return lambda v: v @ matrix.T + offset
    name = type(expression).__name__.removesuffix("Approx")
    factors = [x for x in expression.args if x.is_constant()]
    rest = [x for x in expression.args if not x.is_constant()]
    if name == "QuadForm" and len(rest) == 1 and expression.args[0] is rest[0]:
        inner = _node_of(rest[0], variables)
        matrix = torch.from_numpy(np.array(_dense(factors[0].value), dtype=float))
        if inner is None:
            return None
        whole: Node = inner
        return lambda v: ((whole(v) @ matrix) * whole(v)).sum(1, keepdim=True)
    if name in ("multiply", "MulExpression", "DivExpression", "quad_over_lin") and len(rest) == 1:
        inner = _node_of(rest[0], variables)
        number = torch.from_numpy(np.array(factors[0].value, dtype=float).flatten(order="F"))
        divided = name in ("DivExpression", "quad_over_lin")
        single = len(number) == 1 or name in ("multiply", "DivExpression")
        if inner is None or not single or (divided and expression.args[0] is not rest[0]):
            return None
        if name == "quad_over_lin":
            return lambda v: inner(v).square().sum(1, keepdim=True) / number
        return lambda v: inner(v) / number if name == "DivExpression" else inner(v) * number
    inside = [_node_of(x, variables) for x in expression.args]
    nodes = [x for x in inside if x is not None]
    if len(nodes) < len(inside):
        return None
    if name in _ATOMS:
        return lambda v: _ATOMS[name](expression, *(x(v) for x in nodes))
    if name in _TOTALS and getattr(expression, "axis", None) is None:
        return lambda v: _TOTALS[name](expression, nodes[0](v))[:, None]
    return None


def _dense(value: Any) -> Any:
    return value.toarray() if sparse.issparse(value) else value


def _widens(one: Any) -> bool:
    """Say whether there is a maximum or minimum of arguments of other shapes than its own."""
    several = type(one).__name__ in ("maximum", "minimum")
    return (several and any(x.shape != one.shape for x in one.args)) or any(map(_widens, one.args))


class Functions:
    """Convex functions of some variables, side by side, and their derivatives at many points."""

    def __init__(self, expressions: Sequence[Any], variables: Sequence[Any]) -> None:
        """Take apart what can be evaluated at many points."""
        self.expressions, self.variables = list(expressions), list(variables)
        self.size = sum(x.size for x in variables)
        self.affine = all(x.is_affine() for x in self.expressions)
        self.known: list[Any] = [
            affine_in(x, variables) if x.is_affine() else _node_of(x, variables)
            for x in self.expressions
        ]
        for one, known in zip(self.expressions, self.known, strict=True):
            if known is None and _widens(one):  # of which CVXPY's derivatives are wrong
                raise DeclarationError(
                    f"{one} takes the largest or smallest of values of several shapes within "
                    "other functions: give all the same shape, as by cp.multiply(y, np.ones(3))."
                )

    @property
    def quick(self) -> bool:
        """Whether many points cost as much as one."""
        return not any(x is None for x in self.known)

    def at(self, points: Array) -> tuple[Array, Array]:
        """Return values, (points, functions), and derivatives, (points, functions, variables).

        Of functions that have none somewhere both are not numbers.
        """
        values, slopes = list[Array](), list[Array]()
        for one, known in zip(self.expressions, self.known, strict=True):
            if known is None:
                found = [linear_in(one, self.variables, point) for point in points]
                values.append(np.stack([x[0] for x in found]))
                slopes.append(np.stack([x[1] for x in found]))
            elif one.is_affine():
                values.append(points @ known[0].T + known[1])
                slopes.append(np.broadcast_to(known[0], (len(points), *known[0].shape)))
            else:
                at = torch.from_numpy(points).requires_grad_()
                value = known(at).expand(-1, max(one.size, 1))
                each = [torch.autograd.grad(x.sum(), at, retain_graph=True)[0] for x in value.T]
                values.append(value.detach().numpy())
                slopes.append(torch.stack(each, 1).numpy())
        if len(values) == 1:
            return values[0], slopes[0]
        return np.concatenate(values, 1), np.concatenate(slopes, 1)
