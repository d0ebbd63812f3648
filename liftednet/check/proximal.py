"""The proximal map and the projection, against CVXPY and against the forward map."""

from __future__ import annotations

import torch
from torch import Tensor

from liftednet.check.minimizer import Minimizer
from liftednet.check.report import Check
from liftednet.check.subject import Subject, judge, relative, shown
from liftednet.evaluation import nearest
from liftednet.lazy import cvxpy as cp

_WEIGHTS = (0.1, 1.0, 10.0)
_SHIFT = 1e-6
_ROUNDING = 1e-9


def solved(subject: Subject) -> Check:
    """Check prox(w, t) against CVXPY's argmin of t Phi(v) + |v - w|^2 / 2."""
    activation, w = subject.activation, 2 * subject.u
    name, allowed = "prox: argmin", subject.tolerance("potential")
    tested = f"{subject.origin('prox')}, {len(w)} samples, t = 0.1, 1, 10, solved by CVXPY"
    v, t = cp.Variable(tuple(w.shape)), cp.Parameter(nonneg=True)
    distance = cp.sum_squares(v - w.numpy()) / 2
    problem = Minimizer(t * activation.potential(v) + distance, activation.domain(v), v, t)
    for weight in _WEIGHTS:
        found = activation.prox(w, weight).detach()
        right = problem.solve(torch.tensor(weight))
        if isinstance(right, str):
            return Check(name, tested, torch.inf, allowed, f"at t = {weight}: {right}.")
        check = judge(
            name, tested, relative(found, right), allowed, _Tale(w, weight, found, right).tell
        )
        if not check.passed:
            return check
    return check


class _Tale:
    """Says what is wrong with the prox at a sample."""

    def __init__(self, w: Tensor, t: float, found: Tensor, right: Tensor) -> None:
        self.w, self.t, self.found, self.right = w, t, found, right

    def tell(self, i: int) -> str:
        return (
            f"at w = {shown(self.w[i])} and t = {self.t:g} prox gives {shown(self.found[i])}, but "
            f"the argmin of t Phi(v) + |v - w|^2 / 2 is {shown(self.right[i])}."
        )


def stationary(subject: Subject) -> Check:
    """Check v = prox(w, t) by v = phi((w - v) / t), for a t of its own in every sample."""
    activation, w = subject.activation, 2 * subject.u
    t = torch.logspace(-2, 2, len(w), dtype=torch.float64).unsqueeze(-1)
    v = activation.prox(w, t).detach()
    x = (w - v) / t
    shift = _SHIFT * (1 + x.abs()) if activation.per_unit else torch.zeros_like(x)
    low, high = (activation.forward(x + sign * shift).detach() for sign in (-1, 1))
    error = torch.maximum(low - v, v - high).clamp(min=0) / (1 + v.abs())

    def tell(i: int) -> str:
        return (
            f"at w = {shown(w[i])} and t = {float(t[i]):.4g} prox gives v = {shown(v[i])}, but "
            f"phi((w - v) / t) is {shown((low[i] + high[i]) / 2)}."
        )

    tested = f"{subject.origin('prox')}, {len(w)} samples, t from 0.01 to 100"
    return judge("prox: v = phi((w - v) / t)", tested, error.amax(-1), 1e-6, tell)


def safe(subject: Subject) -> Check:
    """Check that prox is finite and nonexpansive for t from 1e-8 to 1e8 in both types."""
    activation = subject.activation
    w = 10 * subject.u
    name, tested = "prox: finite, nonexpansive", f"{len(w)} samples, t from 1e-8 to 1e8, both types"
    for kind, slack in ((torch.float32, 1e-4), (torch.float64, 1e-7)):
        for t in (1e-8, 1e-3, 1e3, 1e8):
            v = activation.prox(w.to(kind), t).detach().double()
            moved, step = v - v.roll(1, 0), w - w.roll(1, 0)
            excess = (moved.norm(dim=-1) - step.norm(dim=-1)).clamp(min=0) / (1 + w.norm(dim=-1))
            check = judge(name, tested, excess, slack, _Expansion(w, v, t, kind).tell)
            if not check.passed:
                return check
    return check


class _Expansion:
    """Says which pair of points the prox moves apart, or where it is not a number."""

    def __init__(self, w: Tensor, v: Tensor, t: float, kind: torch.dtype) -> None:
        self.w, self.v, self.t, self.kind = w, v, t, kind

    def tell(self, i: int) -> str:
        before = i - 1
        return (
            f"with t = {self.t:g} in {self.kind} prox gives {shown(self.v[i])} at w = "
            f"{shown(self.w[i])} and {shown(self.v[before])} at w = {shown(self.w[before])}; both "
            "must be finite and no farther apart than the two w."
        )


def projection(subject: Subject) -> Check:
    """Check that project keeps phi(u), and gives the nearest point of the stated domain."""
    activation = subject.activation
    points = torch.cat([subject.v, 4 * subject.normal(len(subject.v), subject.units)])
    found = activation.project(points).detach()
    if activation.domain(cp.Variable(tuple(points.shape))):
        right = torch.from_numpy(nearest(points.numpy(), activation.domain))
    else:
        right = torch.cat([subject.v, activation.project(found[len(subject.v) :]).detach()])

    def tell(i: int) -> str:
        return (
            f"project moves {shown(points[i])} to {shown(found[i])}; the nearest point of the "
            f"domain is {shown(right[i])}."
        )

    tested = f"{subject.origin('project')}, {len(points)} samples"
    return judge("project: nearest in the domain", tested, relative(found, right), 1e-5, tell)


def outside(subject: Subject) -> Check:
    """Check that potential_value is infinite outside the domain."""
    activation = subject.activation
    points = 4 * subject.normal(len(subject.v), subject.units)
    off = relative(points, activation.project(points).detach()) > 1e-2
    values = activation.potential_value(points).detach()

    def tell(i: int) -> str:
        return f"v = {shown(points[i])} lies outside the domain, potential_value gives {values[i]}."

    error = (off & ~values.isposinf()).double()
    tested = f"{int(off.sum())} samples outside"
    return judge("potential_value: infinite outside", tested, error, 0.0, tell)
