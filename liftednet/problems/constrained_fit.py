"""A fit whose scores, pre-activations or states, are held by constraints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from liftednet.errors import DeclarationError
from liftednet.lazy import cvxpy as cp
from liftednet.problems.fit import Fit, Formulation, Link, Measure
from liftednet.problems.priors import Prior
from liftednet.problems.state_fit import OutputFit, StateFit
from liftednet.problems.weight_fit import WeightFit
from liftednet.sets.constraint import Constraint, refuse_contradictions, require_constraints
from liftednet.sets.polyhedron import Array, Limits, stacked

Prices = tuple[Tensor, ...]


@dataclass(frozen=True)
class ConstrainedFormulation(Formulation):
    """A fit in CVXPY with its constraints on scores.

    Attributes:
        linear: those that are limits: equalities, upper and lower ends.
        declared: those that CVXPY alone knows, for each that was declared.
    """

    linear: tuple[cp.Constraint, ...]
    declared: tuple[list[cp.Constraint], ...]


@dataclass(frozen=True, eq=False, repr=False)
class ConstrainedFit(Fit[Any]):
    """min over v of a fit's objective, subject to constraints on its scores U.

    U is X W + b of a weight fit, and Z of a state or output fit. With l <= A u <= h for the linear
    constraints, the Lagrangian at prices y is the same fit, tilted by A'y: a value with prices is
    solved where it minimizes that, meets the limits, and pays for none that it does not touch. The
    price of a limit is the rate at which the objective falls where it is moved: positive where U
    rests on its upper end, negative on its lower end (Boyd and Vandenberghe, Convex Optimization,
    2004, section 5.6.3).

    Attributes:
        fit: a `WeightFit`, `StateFit` or `OutputFit`.
        constraints: of `liftednet.constraints`.

    Raises:
        DataError: a constraint does not fit, or they contradict each other.
        DeclarationError: it is another fit, or a constraint is none.

    Example:
        >>> import torch
        >>> from liftednet.problems import ConstrainedFit, OutputFit
        >>> from liftednet.activations import Identity
        >>> from liftednet.constraints import Budget
        >>> from liftednet.divergences import tight
        >>> from liftednet.losses import SquaredError
        >>> from liftednet.solvers import solve
        >>> y = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
        >>> fit = OutputFit(SquaredError(), y, tight(Identity()), y)
        >>> solution = solve(ConstrainedFit(fit, (Budget(1.0),)))
        >>> solution.value.round().abs().T, solution.duals[0].round(decimals=4)
        (tensor([[0., 2.]], dtype=torch.float64), tensor([4.], dtype=torch.float64))
    """

    fit: Any  # WeightFit | StateFit | OutputFit
    constraints: tuple[Constraint, ...]

    def __post_init__(self) -> None:
        """Refuse what does not fit together."""
        if not isinstance(self.fit, WeightFit | StateFit | OutputFit):
            raise DeclarationError(
                "constraints are held in a WeightFit, a StateFit or an OutputFit, got "
                f"{type(self.fit).__name__}."
            )
        object.__setattr__(self, "constraints", require_constraints(self.constraints))
        refuse_contradictions(self.constraints, *self.shape)

    @property
    def shape(self) -> tuple[int, int]:
        """(samples, outputs) of the scores."""
        if isinstance(self.fit, WeightFit):
            return self.fit.design.samples, self.fit.units
        samples, outputs = self.fit.like().shape
        return samples, outputs

    @cached_property
    def _each(self) -> tuple[Limits | None, ...]:
        return tuple(one.limits(*self.shape) for one in self.constraints)

    @property
    def linear(self) -> bool:
        """Whether every constraint has limits."""
        return all(one is not None for one in self._each)

    @cached_property
    def limits(self) -> Limits:
        """All limits, one after the other; where there is none, an empty matrix."""
        samples, outputs = self.shape
        return stacked([one for one in self._each if one is not None], samples * outputs)

    def scores(self, value: Any) -> Tensor:
        """Return U (samples, outputs) of a value, in float64."""
        if not isinstance(self.fit, WeightFit):
            return value.double()
        u = self.fit.design.inputs.double() @ value.matrix.double()
        for part in (value.bias, self.fit.offset):
            u = u if part is None else u + part.double()
        return u

    def violations(self, value: Any) -> tuple[float, ...]:
        """Return by how much each constraint is broken at most, in units of the scores."""
        scores = self.scores(value)
        return tuple(one.violation(scores) for one in self.constraints)

    def split(self, flat: Array, declared: Sequence[Tensor] = ()) -> Prices:
        """Return prices for each constraint in its shape, of those of `limits`."""
        rest, found, first = iter(declared), [], 0
        for one in self._each:
            if one is None:
                found.append(next(rest))
                continue
            last = first + len(one.lower)
            found.append(torch.from_numpy(flat[first:last].copy()).reshape(one.shape))
            first = last
        return tuple(found)

    def joined(self, prices: Prices) -> Array:
        """Return prices of the linear constraints as those of `limits`, (limits,)."""
        pairs = zip(prices, self._each, strict=True)
        flat = [price.reshape(-1).numpy() for price, one in pairs if one is not None]
        return np.concatenate([np.zeros(0), *flat])

    def slopes(self, prices: Prices) -> Tensor:
        """Return A'y (samples, outputs), what the linear constraints ask of every score."""
        pulled = self.limits.matrix.T @ self.joined(prices)
        like = self.fit.like()
        return torch.from_numpy(pulled).reshape(self.shape).to(like.device)

    def tilted(self, slopes: Tensor) -> WeightFit:
        """Return the weight fit with <A'y, U> more in its objective, slopes A'y like U."""
        found, design = replace(self.fit), self.fit.design
        unweighed = replace(design, weights=None).centered
        cross = self.fit.cross - unweighed.cross(slopes) / self.fit.lam
        found.__dict__["cross"] = cross  # targets cannot tilt a sample of weight 0
        found.__dict__["balanced"] = False  # prices do not sum to 0 over units
        return found

    def gap(self, value: Any, prices: Prices) -> float:
        """Return the duality gap of the linear constraints, y times what is left to their ends.

        The objective lies above the dual objective at y by no more, where the value minimizes the
        Lagrangian.
        """
        limits, y = self.limits, self.joined(prices)
        at = limits.matrix @ self.scores(value).cpu().numpy().reshape(-1)
        paid = np.where(y > 0, limits.upper, limits.lower)[y != 0]
        return float(np.abs(y[y != 0] * (paid - at[y != 0])).sum())

    def measure_with(self, value: Any, prices: Prices) -> Measure:
        """Return the objective and the relative KKT residual of a value and its prices.

        The residual is the largest of that of the tilted fit, the violation over the largest score
        (or 1), and the gap over 1 + |objective|. It is NaN where CVXPY alone knows a constraint,
        and of states and outputs, which CVXPY alone solves.
        """
        objective = self.fit.measure(value).objective
        if not (self.linear and isinstance(self.fit, WeightFit)):
            return Measure(objective, torch.nan)
        stationarity = self.tilted(self.slopes(prices)).measure(value).residual
        largest = max(1.0, float(self.scores(value).abs().max()))
        violation = max(self.violations(value), default=0.0) / largest
        gap = self.gap(value, prices) / (1 + abs(objective))
        return Measure(objective, float(np.max([stationarity, violation, gap])))

    # What every fit is asked.

    def measure(self, value: Any) -> Measure:
        """Return the objective; without prices there is no residual."""
        return Measure(self.fit.measure(value).objective, torch.nan)

    @property
    def terms_above(self) -> Sequence[Link]:
        """Those of the fit."""
        return self.fit.terms_above

    @property
    def block(self) -> Prior:
        """That of the fit."""
        return self.fit.block

    def formulate(self) -> ConstrainedFormulation:
        """Return the fit in CVXPY with its constraints."""
        inner = self.fit.formulate()
        name = "pre_activation 0" if isinstance(self.fit, WeightFit) else "states"
        u = inner.problem.var_dict[name]
        linear = self.limits.stated(u)
        pairs = zip(self.constraints, self._each, strict=True)
        declared = tuple(one.stated(u) for one, known in pairs if known is None)
        held = [x for x in linear if x.size] + [x for group in declared for x in group]
        problem = cp.Problem(inner.problem.objective, [*inner.problem.constraints, *held])
        return ConstrainedFormulation(problem, inner.variables, linear, declared)

    def read_duals(self, formulation: Formulation) -> Prices:
        """Return the prices of a solved formulation, for each constraint in its shape."""
        assert isinstance(formulation, ConstrainedFormulation)  # made above
        flat, (equal, upper, lower) = np.zeros(len(self.limits.lower)), self.limits.sides
        for rows, stated, sign in zip((upper, lower), formulation.linear[1:], (1, -1), strict=True):
            if rows.any():  # a price below 0 is rounding
                flat[rows] += sign * np.maximum(np.ravel(stated.dual_value), 0.0)
        if equal.any():
            flat[equal] = np.ravel(formulation.linear[0].dual_value)
        found = [
            torch.from_numpy(np.concatenate([np.ravel(x.dual_value) for x in group]))
            for group in formulation.declared
        ]
        return self.split(flat, found)

    def refuse_bad_values(self) -> None:
        """Raise `DataError` where the data of the fit are bad."""
        self.fit.refuse_bad_values()
