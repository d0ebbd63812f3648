"""A Lipschitz constant of a chain of dense layers by one semidefinite problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from liftednet.errors import DeclarationError, SolverError
from liftednet.lazy import cvxpy as cp

Array = np.ndarray[Any, Any]

_MOST = 120  # rows of the matrix inequality: half a minute
_FARTHER = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)  # from where a solver stops, inwards
_MARGIN = 1e-7  # of the constant's square, beyond what rounding of eigenvalues can take


@dataclass(frozen=True)
class Chain:
    """f(x) = phi_(L-1)(... phi_1(x W_1) ...) W_L, biases and shifts left out.

    Attributes:
        weights: W_l, (units below, units), in float64.
        slopes: the smallest and the largest slope of each activation.
    """

    weights: list[Array]
    slopes: list[tuple[float, float]]


def semidefinite_lipschitz(chain: Chain) -> float:
    """Return a bound on |f(x) - f(x')| / |x - x'|, in Euclidean norms.

    The least rho^(1/2) for which some nonnegative t of every hidden unit makes
    [A; B]' [[-2 a b T, (a + b) T], [(a + b) T, -2 T]] [A; B] + diag(-rho I, 0, W_L W_L')
    negative semidefinite, where A and B give pre-activations and states, and slopes lie in [a, b];
    Fazlyab, Robey, Hassani, Morari, Pappas, Efficient and Accurate Estimation of Lipschitz
    Constants for Deep Neural Networks (2019), in the form with a diagonal T. What the solver finds
    is moved inwards, and its inequality is proved by eigenvalues with a margin for their rounding.

    Raises:
        DeclarationError: there are too many units.
        SolverError: the solver finds nothing that can be proved.
    """
    weights, slopes = [chain.weights[0]], []
    for slope, above in zip(chain.slopes, chain.weights[1:], strict=True):
        if slope[0] == slope[1]:  # one linear map with the layer below
            weights[-1] = slope[0] * weights[-1] @ above
        else:
            weights.append(above)
            slopes.append(slope)
    first, *others = weights
    if not others:
        return float(np.linalg.norm(first, 2))
    if first.shape[0] > first.shape[1]:  # what no unit sees does not count
        first = np.linalg.qr(first)[1]
    problem = _Inequality.of([first, *others], slopes)
    if problem.size > _MOST:
        raise DeclarationError(
            f"the semidefinite bound is for small networks: inputs and hidden units are "
            f"{problem.size} here, and may be {_MOST}."
        )
    t = problem.solved()
    found = [problem.proved(t, farther) for farther in _FARTHER]
    if not np.isfinite(min(found)):
        raise SolverError("the semidefinite bound on the Lipschitz constant was not proved.")
    return float(np.sqrt(min(found)))


@dataclass(frozen=True)
class _Inequality:
    """The matrix inequality in (x, z_1, .., z_(L-1)).

    Attributes:
        before: A, pre-activations of all hidden units, (hidden, size).
        after: B, their states.
        last: diag(0, .., W_L W_L'), (size, size).
        flattest: a, (hidden,).
        steepest: b, (hidden,).
    """

    before: Array
    after: Array
    last: Array
    flattest: Array
    steepest: Array

    @staticmethod
    def of(weights: Sequence[Array], slopes: Sequence[tuple[float, float]]) -> _Inequality:
        *hidden, top = weights
        inputs, units = hidden[0].shape[0], [w.shape[1] for w in hidden]
        size = inputs + sum(units)
        before, after = np.zeros((sum(units), size)), np.eye(size)[inputs:]
        rows = columns = 0
        for w in hidden:
            before[rows : rows + w.shape[1], columns : columns + w.shape[0]] = w.T
            rows, columns = rows + w.shape[1], columns + w.shape[0]
        last = np.zeros((size, size))
        last[-len(top) :, -len(top) :] = top @ top.T
        flattest, steepest = (np.repeat([s[i] for s in slopes], units) for i in (0, 1))
        return _Inequality(before, after, last, flattest, steepest)

    @property
    def size(self) -> int:
        return len(self.last)

    @property
    def inputs(self) -> int:
        return self.size - len(self.before)

    def matrix(self, t: Any) -> Any:
        """Return the matrix without rho, for t (hidden,) of numbers or of CVXPY."""
        room: Any = cp if isinstance(t, cp.Expression) else np
        diag, times = room.diag, room.multiply
        both = self.before.T @ diag(times(self.flattest + self.steepest, t)) @ self.after
        own = self.before.T @ diag(times(self.flattest * self.steepest, t)) @ self.before
        return both + both.T - 2 * own - 2 * self.after.T @ diag(t) @ self.after + self.last

    def solved(self) -> Array:
        """Return the solver's t."""
        t, rho = cp.Variable(len(self.before), nonneg=True), cp.Variable()
        inside = np.zeros(self.size)
        inside[: self.inputs] = 1
        matrix = self.matrix(t) - rho * np.diag(inside)
        problem = cp.Problem(cp.Minimize(rho), [(matrix + matrix.T) / 2 << 0])
        try:
            problem.solve(solver=cp.CLARABEL)
        except cp.SolverError as error:
            raise SolverError(f"the semidefinite bound was not found: {error}.") from error
        if t.value is None:
            raise SolverError(f"the semidefinite bound was not found: {problem.status}.")
        return np.asarray(np.maximum(t.value, 0))

    def proved(self, t: Array, farther: float) -> float:
        """Return the least rho for t moved inwards, infinite where that proves nothing."""
        matrix = self.matrix(t * (1 + farther) + farther * t.mean())
        corner, side = matrix[: self.inputs, : self.inputs], matrix[: self.inputs, self.inputs :]
        hidden = -matrix[self.inputs :, self.inputs :]
        try:
            np.linalg.cholesky(hidden)
        except np.linalg.LinAlgError:
            return float("inf")
        complement = corner + side @ np.linalg.solve(hidden, side.T)
        rho = float(np.linalg.eigvalsh(complement)[-1]) * (1 + _MARGIN)
        matrix[: self.inputs, : self.inputs] -= rho * np.eye(self.inputs)
        largest = np.linalg.eigvalsh(matrix)[-1]
        rounding = 10 * self.size * np.finfo(float).eps * np.linalg.norm(matrix, 2)
        return rho if largest <= -rounding else float("inf")
