"""What a solver returns: the value, how good it is, and what that means."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from typing import Generic, TypeVar

from torch import Tensor

from liftednet.errors import SolverError

Value = TypeVar("Value")


class Status(Enum):
    """How a solve ended; each member's value explains itself and says what to try.

    Example:
        >>> from liftednet.solvers import Status
        >>> Status.SOLVED.value
        'the KKT residual is within the tolerance'
    """

    SOLVED = "the KKT residual is within the tolerance"
    ITERATION_LIMIT = (
        "the iteration limit came before the tolerance was reached: raise max_iterations, "
        "loosen the tolerance, or use float64"
    )
    STALLED = (
        "rounding keeps the residual above the tolerance: use float64, a larger ridge penalty, "
        "or a looser tolerance"
    )
    FAILED = (
        "the solver reached no usable point: check the scale of the data and the penalty, "
        'or try solver="reference"'
    )


@dataclass(frozen=True)
class Solution(Generic[Value]):
    """The result of one convex subproblem, judged by the problem and not by the solver.

    Attributes:
        value: the minimizer; a tensor (samples, units), or `Weights` for a weight fit.
        objective: the problem's objective at `value`, in float64.
        residual: the problem's relative KKT residual at `value`, in float64.
        iterations: iterations of the solver (0 for a closed form).
        tolerance: the residual at which it counts as solved.
        unfinished: how the solve ended where the residual is larger.
        seconds: wall time of the solve, without its certificate.
        solver: name of the solver that was used.
        duals: of the constraints on scores or states (`ConstrainedFit`), or of those of a penalty
            that is one set of weights and squares, as `formulate` states them; for each in its
            shape, float64: the rate at which the objective falls where a limit is moved.

    Example:
        >>> import torch
        >>> from liftednet.problems import StateFit
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> from liftednet.solvers import solve
        >>> solution = solve(StateFit(joint(ReLU()), torch.tensor([[2.0, -2.0]])))
        >>> solution.status.name, solution.residual, solution.value
        ('SOLVED', 0.0, tensor([[2., 0.]]))
    """

    value: Value
    objective: float
    residual: float
    iterations: int
    tolerance: float
    unfinished: Status
    seconds: float
    solver: str
    duals: tuple[Tensor, ...] = ()

    @property
    def status(self) -> Status:
        """How the solve ended."""
        return Status.SOLVED if self.residual <= self.tolerance else self.unfinished

    def __repr__(self) -> str:
        """Return how the solve ended and its figures, without the value."""
        return (
            f"Solution(status={self.status.name}, objective={self.objective!r}, "
            f"residual={self.residual:.2e}, tolerance={self.tolerance:.0e}, "
            f"iterations={self.iterations}, seconds={self.seconds:.3g}, solver={self.solver!r})"
        )

    def require_usable(self) -> Solution[Value]:
        """Return self, or raise `SolverError` where the objective is not finite."""
        if math.isfinite(self.objective):
            return self
        raise SolverError(
            f"{self.solver} reached an objective of {self.objective}: {Status.FAILED.value}.",
            replace(self, unfinished=Status.FAILED, tolerance=-math.inf),
        )

    def require_solved(self) -> Solution[Value]:
        """Return self, or raise `SolverError` with this solution where it is not solved."""
        if self.status is Status.SOLVED:
            return self
        raise SolverError(
            f"{self.solver} stopped after {self.iterations} iterations with residual "
            f"{self.residual:.2e}: {self.status.value}.",
            solution=self,
        )
