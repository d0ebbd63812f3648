"""Values: the tight divergence, and the same potential and conjugate in CVXPY and in torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from liftednet.check.minimizer import values_of
from liftednet.check.report import Check
from liftednet.check.subject import Subject, judge, shown
from liftednet.lazy import cvxpy as cp

_ROUNDING = 1e-7  # of a value, where CVXPY minimizes over variables inside an expression
_STEP = 1e-5
_SLOPE = 1e-5


def stated_divergence(subject: Subject) -> Check:
    """Check D(v, u) = Phi(v) - <u, v> + Phi*(u), with what is declared of it in CVXPY."""
    activation = subject.activation

    def potential(v: Tensor) -> Tensor:
        if activation.declares("potential"):
            return values_of(activation.potential, v)
        return activation.potential_value(v)

    def conjugate(u: Tensor) -> Tensor:
        if activation.declares("conjugate"):
            return values_of(activation.conjugate, u)
        return activation.conjugate_value(u)

    def value(v: Tensor, u: Tensor) -> Tensor:
        return potential(v) - (u * v).sum(-1) + conjugate(u)

    return _fenchel_young(subject, "CVXPY", value)


def computed_divergence(subject: Subject) -> Check:
    """Check D(v, u) = Phi(v) - <u, v> + Phi*(u) as torch computes it."""
    activation = subject.activation

    def value(v: Tensor, u: Tensor) -> Tensor:
        potential = activation.potential_value(v).double()
        return potential - (u * v).sum(-1) + activation.conjugate_value(u).double()

    return _fenchel_young(subject, "torch", value)


def _fenchel_young(
    subject: Subject, where: str, value: Callable[[Tensor, Tensor], Tensor]
) -> Check:
    """Check that D vanishes at v = phi(u) and is nonnegative at every other pair."""
    u, states, other = subject.wide_u, subject.wide_v, subject.wide_other
    at_forward, elsewhere = value(states, u), value(other, u)
    negative = (-elsewhere).clamp(min=0)
    error = torch.where(at_forward.isnan(), at_forward, torch.maximum(at_forward.abs(), negative))
    error = torch.where(elsewhere.isnan(), elsewhere, error) / (1 + (u * states).sum(-1).abs())

    def tell(i: int) -> str:
        if float(at_forward[i].abs()) >= float(negative[i]):
            return (
                f"at u = {shown(u[i])} and v = forward(u) = {shown(states[i])} the divergence "
                f"Phi(v) - <u, v> + Phi*(u) is {float(at_forward[i]):.6g}; it must be 0."
            )
        return (
            f"at u = {shown(u[i])} and v = {shown(other[i])} the divergence Phi(v) - "
            f"<u, v> + Phi*(u) is {float(elsewhere[i]):.6g}; it must not be negative."
        )

    tested = f"{len(u)} pairs at v = forward(u), {len(u)} elsewhere"
    return judge(f"tight divergence in {where}: D >= 0", tested, error, _ROUNDING, tell)


def potential_values(subject: Subject) -> Check:
    """Check that torch and CVXPY give the same Phi(v)."""
    activation, v = subject.activation, subject.wide_v
    stated = values_of(activation.potential, v)
    return _same(subject, "potential", v, activation.potential_value(v), stated)


def conjugate_values(subject: Subject) -> Check:
    """Check that torch and CVXPY give the same Phi*(u)."""
    activation, u = subject.activation, subject.wide_u
    stated = values_of(activation.conjugate, u)
    return _same(subject, "conjugate", u, activation.conjugate_value(u), stated)


def _same(subject: Subject, method: str, points: Tensor, computed: Tensor, stated: Tensor) -> Check:
    error = (computed.detach() - stated).abs() / (1 + stated.abs())

    def tell(i: int) -> str:
        return (
            f"at {shown(points[i])} {method}_value gives {float(computed[i]):.6g} in torch, "
            f"{method} {float(stated[i]):.6g} in CVXPY."
        )

    tested = f"{len(points)} samples, torch {subject.origin(f'{method}_value')}"
    return judge(f"{method}: one value", tested, error, _ROUNDING, tell)


def excess(subject: Subject) -> Check:
    """Check that the declared excess is Phi(v) - |v|^2 / (2 L), and convex by CVXPY's rules."""
    activation, v = subject.activation, subject.wide_v
    name = "excess: potential less its square"
    if activation.lipschitz is None:
        return Check(name, "no constant L", torch.inf, 0.0, "it needs a Lipschitz constant.")
    if not activation.excess(cp.Variable(tuple(v.shape))).is_convex():
        failure = "the expression is not convex by CVXPY's rules."
        return Check(name, "CVXPY's rules (DCP)", torch.inf, 0.0, failure)
    square = v.square().sum(-1) / (2 * activation.lipschitz)
    right = activation.potential_value(v).detach() - square
    found = values_of(activation.excess, v)
    error = (found - right).abs() / (1 + square)

    def tell(i: int) -> str:
        return (
            f"at v = {shown(v[i])} it gives {float(found[i]):.6g}, Phi(v) - |v|^2 / (2 L) is "
            f"{float(right[i]):.6g}."
        )

    return judge(name, f"{len(v)} samples", error, _ROUNDING, tell)


def offset(subject: Subject) -> Check:
    """Check that the linear term of the joint divergence keeps it from falling below zero.

    With c = phi(0) it is least at u = 0, v = phi(0); any other c must leave <c, u> + L |u|^2 / 2
    above Phi*(u), which is what the tight divergence has in its place.
    """
    activation, units = subject.activation, subject.units
    c = activation.offset(units).detach()
    name, tested = "offset", "c = phi(0), or <c, u> + L |u|^2 / 2 >= Phi*(u)"
    if c.shape != (units,) or not bool(c.isfinite().all()):
        failure = f"it gives {shown(c)} of shape {tuple(c.shape)} for {units} units."
        return Check(name, tested, torch.inf, 0.0, failure)
    zero = torch.zeros(1, subject.u.shape[1], dtype=torch.float64)
    right = activation.forward(zero).detach()[0]
    error = (c - right).abs().max()
    if float(error) <= _ROUNDING or activation.lipschitz is None:
        return judge(name, tested, error[None], _ROUNDING, lambda _: _not_at_zero(c, right))
    u = torch.cat([zero, subject.wide_u])
    square = activation.lipschitz * u.square().sum(-1) / 2
    below = activation.conjugate_value(u).detach() - u @ c - square

    def tell(i: int) -> str:
        return (
            f"{_not_at_zero(c, right)[:-1]}, and at u = {shown(u[i])} <c, u> + L |u|^2 / 2 is "
            f"{float(below[i]):.6g} below Phi*(u)."
        )

    return judge(name, tested, below.clamp(min=0) / (1 + square), _ROUNDING, tell)


def _not_at_zero(c: Tensor, right: Tensor) -> str:
    return f"it gives c = {shown(c)}, and phi(0) is {shown(right)}."


def conjugate_gradient(subject: Subject) -> Check:
    """Check that the difference quotients of Phi* are forward."""
    activation, u = subject.activation, subject.wide_u
    direction = torch.ones_like(u) if u.shape[1] == 1 else subject.normal(*u.shape)
    step = _STEP * (1 + u.norm(dim=-1))
    move = step.unsqueeze(-1) * direction
    before, after = u - move, u + move
    rise = activation.conjugate_value(after) - activation.conjugate_value(before)
    quotient = rise.detach() / (2 * step)
    low = (activation.forward(before).detach() * direction).sum(-1)
    high = (activation.forward(after).detach() * direction).sum(-1)
    error = torch.maximum(low - quotient, quotient - high).clamp(min=0) / (1 + high.abs())

    def tell(i: int) -> str:
        return (
            f"at u = {shown(u[i])} the difference quotient of conjugate_value along "
            f"{shown(direction[i])} is {float(quotient[i]):.6g}, forward gives "
            f"{float((low[i] + high[i]) / 2):.6g}."
        )

    tested = f"{subject.origin('conjugate_value')}, {len(u)} difference quotients"
    return judge("conjugate: gradient is forward", tested, error, _SLOPE, tell)
