"""The argmin: a convex problem in each block by CVXPY's rules, whose one solution is `forward`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from liftednet.activation import DivergenceActivation
from liftednet.check.report import Check
from liftednet.check.subject import Subject, judge, relative, shown
from liftednet.errors import LiftedError
from liftednet.evaluation import evaluate_all, solve_precisely
from liftednet.lazy import cvxpy as cp

if TYPE_CHECKING:
    from cvxpy.constraints.constraint import Constraint
    from cvxpy.expressions.expression import Expression

_TILT = 1e-4  # of the linear term: it moves a unique argmin by little, any other by much
_APART = 1e-2  # how far the argmin of the tilted problems may be apart


@dataclass(frozen=True)
class Blocks:
    """The divergence of an activation as two problems, each with the other block a parameter."""

    subject: Subject

    def in_states(self, v: Expression, u: Expression) -> Expression:
        """Return the part of D that depends on v."""
        activation = self.subject.activation
        if isinstance(activation, DivergenceActivation):
            return activation.divergence(v, u)
        return activation.potential(v) - cp.sum(cp.multiply(u, v))

    def in_pre_activations(self, v: Expression, u: Expression) -> Expression:
        """Return the part of D that depends on u."""
        activation = self.subject.activation
        if isinstance(activation, DivergenceActivation):
            return activation.divergence(v, u)
        return activation.conjugate(u) - cp.sum(cp.multiply(v, u))

    @cached_property
    def argmin(self) -> Minimizer:
        """The problem min over v of D(v, u) + <tilt, v>, with u and the tilt parameters."""
        v = cp.Variable(tuple(self.subject.v.shape))
        u = cp.Parameter(tuple(self.subject.u.shape), value=self.subject.u.numpy())
        tilt = cp.Parameter(v.shape)
        objective = self.in_states(v, u) + cp.sum(cp.multiply(tilt, v))
        return Minimizer(objective, self.subject.activation.domain(v), v, tilt)


@dataclass(frozen=True)
class Minimizer:
    """A CVXPY problem that is solved for several values of one parameter."""

    objective: Expression
    domain: list[Constraint]
    variable: cp.Variable
    parameter: cp.Parameter

    @cached_property
    def problem(self) -> cp.Problem:
        """The problem, compiled once."""
        return cp.Problem(cp.Minimize(self.objective), self.domain)

    def solve(self, value: Tensor) -> Tensor | str:
        """Return the minimizer for a value of the parameter, or what CVXPY says instead."""
        self.parameter.value = value.numpy()
        try:
            solve_precisely(self.problem)
        except cp.error.SolverError as error:
            return str(error)
        if self.variable.value is None:
            return f"CVXPY reports {self.problem.status}"
        return torch.from_numpy(self.variable.value)


def convex_in_states(subject: Subject) -> Check:
    """Check that D is convex in v, and its parameters DPP, by CVXPY's rules."""
    shape = tuple(subject.v.shape)
    v, u = cp.Variable(shape), cp.Parameter(tuple(subject.u.shape))
    name = "divergence" if subject.is_raw else "potential"
    return _convex(
        f"{name}: convex in v",
        lambda: (Blocks(subject).in_states(v, u), subject.activation.domain(v)),
        lambda: _bulge(subject),
    )


def convex_in_pre_activations(subject: Subject) -> Check:
    """Check that D is convex in u, and its parameters DPP, by CVXPY's rules."""
    v, u = cp.Parameter(tuple(subject.v.shape)), cp.Variable(tuple(subject.u.shape))
    name = "divergence" if subject.is_raw else "conjugate"
    return _convex(
        f"{name}: convex in u",
        lambda: (Blocks(subject).in_pre_activations(v, u), []),
        lambda: None,
    )


def _convex(
    name: str,
    state: Callable[[], tuple[Expression, list[Constraint]]],
    example: Callable[[], str | None],
) -> Check:
    tested = "CVXPY's rules (DCP, DPP)"
    try:
        objective, constraints = state()
        problem = cp.Problem(cp.Minimize(cp.sum(objective)), constraints)
    except LiftedError:
        raise
    except Exception as error:  # whatever a user's expression may raise
        reason = " ".join(str(error).split())
        failure = f"CVXPY cannot build the expression: {type(error).__name__}: {reason}"
        return Check(name, tested, torch.inf, 0.0, failure)
    if objective.size != 1:
        failure = f"the expression has shape {objective.shape}; it must be a sum, one number."
        return Check(name, tested, torch.inf, 0.0, failure)
    if problem.is_dpp():
        return Check(name, tested, 0.0, 0.0)
    kind = "is convex, but a product of parameters keeps it from being compiled once (DPP)"
    if not problem.is_dcp():
        kind = f"is {objective.curvature.lower()} by CVXPY's rules, or its domain is not convex"
    return Check(name, tested, torch.inf, 0.0, f"the expression {kind}{example() or '.'}")


def _bulge(subject: Subject) -> str | None:
    """Return the first pair of states between which Phi lies above its chord, in words."""
    if subject.is_raw:
        return None
    left, right = subject.v, subject.other
    rows = torch.cat([left, right, (left + right) / 2])
    low, high, middle = values_of(subject.activation.potential, rows).chunk(3)
    above = middle > (low + high) / 2 + 1e-9 * (1 + low.abs() + high.abs())
    if not bool(above.any()):
        return None
    i = int(above.nonzero()[0])
    return (
        f": halfway between v = {shown(left[i])} and v' = {shown(right[i])} Phi is "
        f"{float(middle[i]):.6g}, above the mean {float((low[i] + high[i]) / 2):.6g} of its ends."
    )


def values_of(expression: Callable[[Expression], Expression], rows: Tensor) -> Tensor:
    """Return the value of a CVXPY expression at each row, (samples,)."""
    values = evaluate_all([expression(cp.Constant(row[None])) for row in rows.numpy()])
    return torch.tensor(values, dtype=torch.float64)


def unique(subject: Subject) -> Check:
    """Check that tilting D by -1e-4 and 1e-4 in v leaves its argmin where it is."""
    name, tested = "argmin: unique", f"{len(subject.u)} samples, tilted by {_TILT:g} both ways"
    solve = Blocks(subject).argmin.solve
    ends = [solve(torch.full_like(subject.v, sign * _TILT)) for sign in (1.0, -1.0)]
    low, high = ends
    if isinstance(low, str) or isinstance(high, str):
        return Check(name, tested, torch.inf, 0.0, _unsolved(subject, str(low)))
    distance = relative(low, high)

    def tell(i: int) -> str:
        return (
            f"at u = {shown(subject.u[i])} both v = {shown(low[i])} and v = {shown(high[i])} "
            f"minimize D(v, u); forward gives {shown(subject.v[i])}."
        )

    return judge(name, tested, distance, _APART, tell)


def argmin(subject: Subject) -> Check:
    """Check that the argmin of D over v, as CVXPY solves it, is `forward`."""
    name = "argmin: equals forward"
    tested = f"{len(subject.u)} samples, solved by CVXPY"
    allowed = subject.tolerance("potential")
    found = Blocks(subject).argmin.solve(torch.zeros_like(subject.v))
    if isinstance(found, str):
        return Check(name, tested, torch.inf, allowed, _unsolved(subject, found))

    def tell(i: int) -> str:
        return (
            f"at u = {shown(subject.u[i])} forward gives {shown(subject.v[i])}, but the argmin "
            f"of the divergence is {shown(found[i])}."
        )

    return judge(name, tested, relative(subject.v, found), allowed, tell)


def argmin_far(subject: Subject) -> Check:
    """Check the argmin at far pre-activations, each solved by itself."""
    near, activation = len(subject.u), subject.activation
    u, v = subject.wide_u[near:], subject.wide_v[near:]
    name, tested = "argmin: equals forward, far", f"{len(u)} samples, solved by CVXPY"
    state, above = cp.Variable((1, v.shape[1])), cp.Parameter((1, u.shape[1]))
    objective = Blocks(subject).in_states(state, above)
    problem = Minimizer(objective, activation.domain(state), state, above)
    found = torch.full_like(v, torch.nan)
    for i in range(len(u)):
        solution = problem.solve(u[i : i + 1])
        if not isinstance(solution, str):
            found[i] = solution[0]

    def tell(i: int) -> str:
        return (
            f"at u = {shown(u[i])} forward gives {shown(v[i])}, but the argmin of the divergence "
            f"is {shown(found[i])}."
        )

    return judge(name, tested, relative(v, found), subject.tolerance("potential"), tell)


def _unsolved(subject: Subject, status: str) -> str:
    """Name the first sample for which CVXPY finds no argmin."""
    for i in range(len(subject.u)):
        v = cp.Variable((1, subject.v.shape[1]))
        objective = Blocks(subject).in_states(v, cp.Constant(subject.u[i : i + 1].numpy()))
        problem = cp.Problem(cp.Minimize(objective), subject.activation.domain(v))
        solve_precisely(problem)
        if problem.status not in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE):
            return (
                f"at u = {shown(subject.u[i])} D(v, u) has no minimum over v: CVXPY reports "
                f"{problem.status}; forward gives {shown(subject.v[i])}."
            )
    return f"CVXPY finds no argmin for the samples together: {status}."
