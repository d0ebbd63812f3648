"""The one convex subproblem, of which every block of a lifted network is one."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, Generic

import torch
from torch import Tensor

from liftednet.divergences import Divergence, Raw
from liftednet.lazy import cvxpy as cp
from liftednet.problems.formulation import Formulation, Measure, Value, exact_target, to_numpy
from liftednet.problems.link import Link
from liftednet.samples import outlined

if TYPE_CHECKING:
    from cvxpy.constraints.constraint import Constraint
    from cvxpy.expressions.expression import Expression

Statement = tuple["Expression", list["Constraint"]]

_ROUNDING = 1e-14  # of the terms of a cost, in float64


class Fit(ABC, Generic[Value]):
    """min over v of g(v) - <p, v> + sum_k lam_k [R_k(A_k v + c_k) - <A_k v + c_k, t_k>].

    Frozen data of one convex problem, which states itself in CVXPY and judges a value in float64;
    no solver judges itself. `WeightFit`, `StateFit`, `OutputFit` and `StatesOverTime` are this
    problem with different g and A; `BlockFit` is any other block of a network.

    Example:
        >>> import torch
        >>> from liftednet import StateFit
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> fit = StateFit(joint(ReLU()), torch.tensor([[2.0, -2.0]]))
        >>> fit.measure(torch.tensor([[2.0, 0.0]])).residual, fit.measure(torch.ones(1, 2)).residual
        (0.0, 0.5)
    """

    __repr__ = outlined

    @property
    @abstractmethod
    def terms_above(self) -> Sequence[Link]:
        """The terms lam_k [R_k(A_k v + c_k) - <A_k v + c_k, t_k>]."""

    @property
    def quadratic(self) -> bool:
        """Whether one linear system solves it."""
        return False

    @abstractmethod
    def unknown(self) -> tuple[Expression, dict[str, cp.Variable]]:
        """Return v as a CVXPY expression of two axes, and the variables it is made of, by name."""

    @abstractmethod
    def like(self) -> Tensor:
        """Return a tensor of the shape of v."""

    @abstractmethod
    def prior(self, v: Expression, parameters: dict[str, cp.Parameter]) -> Statement:
        """Return g(v) - <p, v> and its constraints in CVXPY; parameters are added by name."""

    @abstractmethod
    def prior_data(self) -> dict[str, Tensor]:
        """Return the data of g and p, by the names of their parameters."""

    @abstractmethod
    def read(self, formulation: Formulation) -> Value:
        """Return the value of a solved formulation, on the problem's type and device."""

    @abstractmethod
    def refuse_bad_values(self) -> None:
        """Raise `DataError` where data are NaN, infinite, or make the problem unbounded."""

    @abstractmethod
    def refuse_bad_start(self, start: Value) -> None:
        """Raise `DataError` where a start is not finite or does not fit the problem."""

    @abstractmethod
    def measure(self, value: Value) -> Measure:
        """Return the objective and the relative KKT residual at a value, in float64."""

    def cost(self, value: Value) -> float:
        """Return a bound of how far the objective at a value is above the least one, in float64.

        NaN where none is known. It is proven, so that a residual need not be small, too: that of a
        potential whose slope is steep beside its domain's ends may be far larger than what it
        costs.
        """
        return math.nan

    def read_duals(self, formulation: Formulation) -> tuple[Tensor, ...]:
        """Return the duals of a solved formulation, of the constraints that it is held by."""
        return ()

    def measure_with(self, value: Value, duals: tuple[Tensor, ...]) -> Measure:
        """Return what `measure` does, of a value and its duals."""
        return self.measure(value)

    @abstractmethod
    def signature(self) -> Hashable:
        """Return what two problems must share to share one formulation."""

    def formulate(self) -> Formulation:
        """Return the problem in CVXPY, its parameters filled with the data.

        Every A v + c is a variable of its own, so that it is DPP.
        """
        v, variables = self.unknown()
        parameters: dict[str, cp.Parameter] = {}
        objective, constraints = self.prior(v, parameters)
        for number, link in enumerate(self.terms_above):
            value, coupling = self._stated(number, link, v, parameters)
            objective += value
            constraints = [*constraints, coupling]
        problem = cp.Problem(cp.Minimize(objective), constraints)
        formulation = Formulation(problem, parameters, variables)
        self.fill(formulation)
        return formulation

    def _stated(
        self, number: int, link: Link, v: Expression, parameters: dict[str, Any]
    ) -> tuple[Expression, Constraint]:
        u = cp.Variable(link.shape, name=f"pre_activation {number}")
        offset = parameter(f"offset {number}", link.shape, parameters)
        target = parameter(f"target {number}", tuple(link.target.shape), parameters)
        named = {
            name: parameter(f"{name} {number}", tuple(value.shape), parameters)
            for name, value in link.map.data(self.like()).items()
        }
        above = link.map.expression(v, named, link.shape)
        return link.lam * _summed(link, u, target), u == above + offset

    def fill(self, formulation: Formulation) -> None:
        """Put the data into the parameters of a formulation of the same signature."""
        for name, value in self.prior_data().items():
            formulation.parameters[name].value = to_numpy(value)
        for number, link in enumerate(self.terms_above):
            for name, value in link.map.data(self.like()).items():
                formulation.parameters[f"{name} {number}"].value = to_numpy(value)
            formulation.parameters[f"offset {number}"].value = link.offset_rows()
            target = exact_target(link.divergence, link.target)
            formulation.parameters[f"target {number}"].value = target


def states_cost(divergence: Divergence, lam: float, states: Tensor, gradient: Tensor) -> float:
    """Return lam [Phi(Z) + Phi*(-G / lam) + <Z, G> / lam], a bound of F(Z) - min F.

    Of F = lam Phi + f with f convex and G its gradient at Z: what is above the least of lam Phi
    plus the tangent of f, which f is above (Jaggi, Revisiting Frank-Wolfe, 2013, for a domain as
    Phi). NaN where the map takes several pre-activations for a state, or has no potential.

    Args:
        divergence: gives Phi.
        lam: its weight.
        states: Z, (samples, units), float64.
        gradient: G, likewise.
    """
    activation = divergence.activation
    if isinstance(divergence, Raw) or activation.pre_units(1) > 1:
        return math.nan
    pull = -gradient / lam
    least = activation.forward(pull)
    parts = torch.stack([
        activation.potential_value(states), -activation.potential_value(least),
        (pull * (least - states)).sum(-1),
    ])  # fmt: skip
    rounding = _ROUNDING * (parts.abs().sum() + (pull * least).abs().sum())
    return lam * float(parts.sum().clamp(min=0) + rounding)


def _summed(link: Link, u: Expression, target: Expression) -> Expression:
    """Return the sum of R(u) - <u, t> over the samples, each times its weight."""
    if link.weights is None:
        return link.divergence.link_term(u, target)
    return sum(
        weight * link.divergence.link_term(u[row : row + 1], target[row : row + 1])
        for row, weight in enumerate(link.weights.tolist())
    )


def parameter(
    name: str, shape: tuple[int, ...], parameters: dict[str, Any], **options: Any
) -> cp.Parameter:
    """Return a CVXPY parameter of a name, which is kept by it."""
    parameters[name] = cp.Parameter(shape, name=name, **options)
    return parameters[name]


def read_states(formulation: Formulation) -> Tensor:
    """Return the states of a solved formulation, float64."""
    return torch.from_numpy(formulation.variables["states"].value)
