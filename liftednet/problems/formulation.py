"""What every subproblem can do: state itself in CVXPY, and judge a value in float64."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from liftednet.divergences import Divergence
from liftednet.errors import DataError

if TYPE_CHECKING:
    import cvxpy as cp

Value = TypeVar("Value")

_SLACK = {torch.float64: 1e-9, torch.float32: 1e-5}  # rounding of a target, per entry


class Measure(NamedTuple):
    """How good a value is; on a GPU both numbers stay there until they are read.

    Attributes:
        objective: the objective of the problem, in float64.
        residual: the largest violation of stationarity, relative to the largest term in it; NaN
            where the problem is not smooth and only CVXPY's duals can tell.
    """

    objective: float
    residual: float


@dataclass(frozen=True)
class Formulation:
    """A subproblem as a CVXPY problem whose data are parameters (DPP).

    Attributes:
        problem: the CVXPY problem, compiled once by CVXPY on its first solve.
        parameters: the data, by name.
        variables: the unknowns, by name.
    """

    problem: cp.Problem
    parameters: dict[str, cp.Parameter]
    variables: dict[str, cp.Variable]


@runtime_checkable
class Subproblem(Protocol[Value]):
    """Frozen data of one convex problem; no solver judges itself."""

    def refuse_bad_values(self) -> None:
        """Raise `DataError` where data are NaN, infinite, or make the problem unbounded."""
        ...

    def refuse_bad_start(self, start: Value) -> None:
        """Raise `DataError` where a start is not finite or does not fit the problem."""
        ...

    def formulate(self) -> Formulation:
        """Return the problem in CVXPY, its parameters filled with the data."""
        ...

    def fill(self, formulation: Formulation) -> None:
        """Put the data into the parameters of a formulation of the same signature."""
        ...

    def read(self, formulation: Formulation) -> Value:
        """Return the value of a solved formulation, on the problem's type and device."""
        ...

    def signature(self) -> Hashable:
        """Return what two problems must share to share one formulation."""
        ...

    def measure(self, value: Value) -> Measure:
        """Return the objective and the relative KKT residual at a value, in float64."""
        ...


def to_numpy(value: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return a tensor as a float64 numpy array."""
    array: np.ndarray[Any, np.dtype[np.float64]] = value.detach().double().cpu().numpy()
    return array


def exact_target(divergence: Divergence, target: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return V in float64, moved onto the domain where rounding has left it.

    A float32 row of the simplex sums to 1 within 1e-7 only, which an interior-point method takes
    for an unbounded problem.
    """
    return to_numpy(divergence.nearest_target(target.double()))


def require_bounded(name: str, divergence: Divergence, target: Tensor) -> None:
    """Raise `DataError` where R(u) - <u, V> is unbounded below for a target V."""
    distance = (divergence.nearest_target(target) - target).abs()
    worst = float(distance.max())
    if worst > _SLACK[target.dtype]:
        where = tuple(int(i) for i in (distance == worst).nonzero()[0])
        raise DataError(
            f"{name} must lie in the domain of {divergence.activation!r}, or the fit is unbounded "
            f"below: the entry at index {where} is {float(target[where]):.4g}, {worst:.2g} away."
        )
