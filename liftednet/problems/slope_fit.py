"""The slope of a leaky ReLU as a variable; Lifted Neural Networks, section 9, names it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from liftednet import processes
from liftednet.errors import DataError
from liftednet.lazy import cvxpy as cp
from liftednet.problems.fit import Fit, Formulation, Link, Measure, Statement, parameter

if TYPE_CHECKING:
    from cvxpy.expressions.expression import Expression

LEAST_SLOPE = 1e-4


@dataclass(frozen=True, eq=False, repr=False)
class SlopeFit(Fit[float]):
    """min over alpha in [1e-4, 1] of lam (s / alpha + alpha t) / 2.

    What a tight divergence of a leaky ReLU (Lifted Neural Networks, eq. (8)) asks of its slope,
    with s the sum of squares of the negative states and t that of the negative pre-activations.

    Attributes:
        states: V, (samples, units).
        pre_activation: U, (samples, units).
        lam: the weight of the divergence, positive.

    Example:
        >>> import torch
        >>> from liftednet.problems import SlopeFit
        >>> from liftednet.solvers import solve
        >>> fit = SlopeFit(torch.tensor([[-1.0]]), torch.tensor([[-4.0]]), lam=1.0)
        >>> solve(fit).value  # |v| / |u|
        0.25
    """

    states: Tensor
    pre_activation: Tensor
    lam: float

    @cached_property
    def sums(self) -> tuple[float, float]:
        """(s, t) in float64."""
        pair = (self.states.double(), self.pre_activation.double())
        sums = torch.stack([part.clamp(max=0).square().sum() for part in pair])
        s, t = processes.total(sums)[0].tolist()
        return s, t

    @property
    def terms_above(self) -> Sequence[Link]:
        """None: it is all g."""
        return ()

    def unknown(self) -> tuple[Expression, dict[str, cp.Variable]]:
        """Return alpha, named "slope"."""
        slope = cp.Variable(pos=True, name="slope")
        return slope, {"slope": slope}

    def like(self) -> Tensor:
        """Return a number."""
        return torch.zeros((), dtype=torch.float64)

    def prior(self, v: Expression, parameters: dict[str, cp.Parameter]) -> Statement:
        """Return lam (s / alpha + alpha t) / 2 and the limits of alpha."""
        s = parameter("s", (), parameters, nonneg=True)
        t = parameter("t", (), parameters, nonneg=True)
        value = self.lam / 2 * (s * cp.inv_pos(v) + t * v)
        return value, [v >= LEAST_SLOPE, v <= 1]

    def prior_data(self) -> dict[str, Tensor]:
        """Return s and t."""
        return {name: torch.tensor(x) for name, x in zip(("s", "t"), self.sums, strict=True)}

    def read(self, formulation: Formulation) -> float:
        """Return alpha of a solved formulation."""
        value = formulation.variables["slope"].value
        assert value is not None  # read from a solved formulation alone
        return min(max(float(value), LEAST_SLOPE), 1.0)

    def refuse_bad_values(self) -> None:
        """Raise `DataError` where the sums of squares are not finite."""
        if not all(value < float("inf") for value in self.sums):
            raise DataError(f"the negative states and pre-activations sum to {self.sums}.")

    def refuse_bad_start(self, start: float) -> None:
        """Raise `DataError` where a slope is outside of (0, 1]."""
        if not 0 < start <= 1:
            raise DataError(f"a slope must be in (0, 1], got {start}.")

    def signature(self) -> Hashable:
        """Return lam."""
        return SlopeFit, self.lam

    def measure(self, value: float) -> Measure:
        """Return the objective, and the projected gradient over its larger term and alpha.

        Small slopes would look right beside 1: alpha = 1e-4 that is off by 1e-6 costs 1e-4 of the
        objective.
        """
        s, t = self.sums
        objective = self.lam / 2 * (s / value + value * t)
        scale = max(s / value**2, t)
        if scale == 0:
            return Measure(objective, 0.0)
        moved = min(max(value * (1 - (t - s / value**2) / scale), LEAST_SLOPE), 1.0)
        return Measure(objective, abs(moved - value) / value)
