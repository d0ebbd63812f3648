"""The statement of a penalty's prox in CVXPY, for penalties and sums without a closed form."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from liftednet.errors import DataError, SolverError
from liftednet.evaluation import stating
from liftednet.lazy import cvxpy as cp

if TYPE_CHECKING:
    from cvxpy.expressions.expression import Expression

    from liftednet.penalties.penalty import Penalty

_COMPILED_ENTRIES = 1_000  # of W at most where CVXPY compiles a prox once


def _precise(tolerance: float) -> dict[str, float]:
    return dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), tolerance)


_ATTEMPTS: tuple[tuple[str, dict[str, float]], ...] = (
    *(("CLARABEL", _precise(tolerance)) for tolerance in (1e-13, 1e-11, 1e-9)),
    ("SCS", {"eps_abs": 1e-9, "eps_rel": 1e-9, "max_iters": 200_000}),
)


@dataclass(frozen=True)
class Statement:
    """min over P of t pi(P) + |P - W|_F^2 / 2 in CVXPY (DPP), compiled on its first solve.

    A large one is compiled on every solve: DPP takes a dense matrix of variables by parameters.

    Attributes:
        name: of the penalty.
        variable: P.
        center: W.
        t: the step, at least 0.
        expression: pi(P).
        problem: the whole.
    """

    name: str
    variable: cp.Variable
    center: cp.Parameter
    t: cp.Parameter
    expression: Expression
    problem: cp.Problem

    def evaluate(self, weight: Tensor) -> float:
        """Return pi(W)."""
        self.variable.value = _to_numpy(weight)
        return float(np.asarray(self.expression.value).item())

    def violation(self, weight: Tensor) -> float:
        """Return by how much W misses the constraints."""
        self.variable.value = _to_numpy(weight)
        found = [np.max(constraint.violation()) for constraint in self.problem.constraints]
        return float(max(found, default=0.0))

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return P, (inputs, units).

        Raises:
            SolverError: no solver finds it.
        """
        status = self._status(_to_numpy(weight), float(t))
        if status != cp.OPTIMAL:
            raise SolverError(f"CVXPY does not solve the prox of {self.name}: {status}.")
        return torch.from_numpy(self.variable.value).to(weight)

    def refuse_infeasible(self) -> None:
        """Raise `DataError` where the constraints exclude each other.

        Raises:
            SolverError: no solver can tell.
        """
        status = self._status(np.zeros(self.variable.shape), 0.0)
        if status == cp.INFEASIBLE:
            stated = ", ".join(map(str, self.problem.constraints))
            raise DataError(
                f"no W of shape {self.variable.shape} satisfies {self.name}: it asks for {stated}."
            )
        if status != cp.OPTIMAL:
            raise SolverError(f"CVXPY cannot tell whether {self.name} can be satisfied: {status}.")

    def _status(self, center: np.ndarray[Any, Any], t: float) -> str:
        """Solve by the first solver that can tell, and return what it or the last one tells."""
        self.center.value, self.t.value = center, t
        status = ""
        for backend, options in _ATTEMPTS:
            status = self._attempt(backend, options)
            if status in (cp.OPTIMAL, cp.INFEASIBLE):
                break
        return status

    def _attempt(self, backend: str, options: dict[str, float]) -> str:
        with warnings.catch_warnings():
            # an inaccurate solution is not taken
            warnings.filterwarnings("ignore", message="Solution may be inaccurate")
            try:
                large = self.variable.size > _COMPILED_ENTRIES
                self.problem.solve(solver=backend, ignore_dpp=large, **options)
            except cp.error.SolverError as error:
                return str(error)
        return str(self.problem.status)


@lru_cache(maxsize=16)
def statement(penalty: Penalty, shape: tuple[int, int]) -> Statement:
    """Return the statement of a penalty for weights of one shape.

    Raises:
        DeclarationError: CVXPY cannot take what the penalty states.
    """
    variable, center = cp.Variable(shape, name="W"), cp.Parameter(shape)
    with stating(repr(penalty)):
        t, expression = cp.Parameter(nonneg=True), penalty.expression(variable)
        objective = cp.Minimize(t * expression + cp.sum_squares(variable - center) / 2)
        problem = cp.Problem(objective, penalty.domain(variable))
    return Statement(repr(penalty), variable, center, t, expression, problem)


def _to_numpy(weight: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    array: np.ndarray[Any, np.dtype[np.float64]] = weight.detach().double().cpu().numpy()
    return array
