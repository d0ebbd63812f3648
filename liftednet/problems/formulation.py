"""What a subproblem gives: its statement in CVXPY, and the measure of a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from liftednet import processes
from liftednet.divergences import Divergence
from liftednet.errors import DataError

if TYPE_CHECKING:
    import cvxpy as cp

Value = TypeVar("Value")

_SLACK = {torch.float64: 1e-9, torch.float32: 1e-5}  # rounding of a target, per entry


class Measure(NamedTuple):
    """How good a value is.

    Attributes:
        objective: the objective of the problem, in float64.
        residual: the largest violation of stationarity, relative to the largest term in it; NaN
            where the problem is not smooth and only CVXPY's duals can tell.

    Example:
        >>> import torch
        >>> from liftednet import StateFit
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> fit = StateFit(joint(ReLU()), torch.tensor([[2.0, -2.0]]))
        >>> fit.measure(torch.tensor([[2.0, 0.0]]))
        Measure(objective=-2.0, residual=0.0)
    """

    objective: float
    residual: float


def measured(
    objective: Tensor | float, violation: Tensor | float, scale: Tensor | float
) -> Measure:
    """Return the measure over the samples of all processes, of what those of this one give.

    Args:
        objective: a sum over samples, ().
        violation: the largest of a violation over samples, (); NaN where it is not known.
        scale: the largest of its terms, ().
    """
    if processes.size() > 1:
        parts = processes.gathered([float(objective), float(violation), float(scale)])
        objective, (violation, scale) = parts[:, 0].sum(), parts[:, 1:].amax(0)
    return Measure(float(objective), float(violation) / float(scale))


@dataclass(frozen=True)
class Formulation:
    """A subproblem as a CVXPY problem whose data are parameters (DPP).

    Attributes:
        problem: the CVXPY problem, compiled once by CVXPY on its first solve.
        parameters: the data, by name.
        variables: the unknowns, by name.

    Example:
        >>> import torch
        >>> from liftednet import StateFit
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> stated = StateFit(joint(ReLU()), torch.tensor([[2.0, -2.0]])).formulate()
        >>> stated.problem.is_dpp(), sorted(stated.parameters), sorted(stated.variables)
        (True, ['pre_activation'], ['states'])
    """

    problem: cp.Problem
    parameters: dict[str, cp.Parameter]
    variables: dict[str, cp.Variable]


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
    nearest = divergence.nearest_target(target)
    if nearest is target or torch.equal(nearest, target):
        return
    distance = (nearest - target).abs()
    worst = float(distance.max())
    if worst > _SLACK[target.dtype]:
        where = tuple(int(i) for i in (distance == worst).nonzero()[0])
        raise DataError(
            f"{name} must lie in the domain of {divergence.activation!r}, or the fit is unbounded "
            f"below: the entry at index {where} is {float(target[where]):.4g}, {worst:.2g} away."
        )
