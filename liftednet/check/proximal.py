"""The proximal map and the projection, against CVXPY and against the forward map."""

from __future__ import annotations

import torch
from torch import Tensor

from liftednet.activation import Activation
from liftednet.check.minimizer import Minimizer
from liftednet.check.report import Check
from liftednet.check.subject import Subject, judge, relative, shown
from liftednet.errors import SolverError
from liftednet.evaluation import nearest
from liftednet.lazy import cvxpy as cp

_WEIGHTS = (0.1, 1.0, 10.0)
_REACHED = 1e3  # pre-activations that a map which is solved for itself must serve
_NEAR = 1e-5  # to the solution, in units of 1 + |v|
_NEAR_SOLVED = 5e-3  # the same of a forward map that CVXPY solves, to the root of its gap


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
    """Check that prox(w, t) is where v = phi((w - v) / t), for w to 1,000 and t from 1e-8 to 1e8.

    For a unit-by-unit map v - phi((w - v) / t) increases with v, so that its sign on both sides of
    v says how far the root may be; for others two bounds do, v - phi((w - v) / t) itself, and the
    root of 2 t D(v, (w - v) / t), D being the tight divergence.
    """
    activation = subject.activation
    w, t = _crossed(subject)
    v = activation.prox(w, t).detach()
    near, off = _NEAR, _beside_root if activation.per_unit else _bound
    try:
        error = off(activation, w, t, v)
    except SolverError:  # a forward map that is solved for itself may not reach so far
        kept = ((w - v).abs().amax(-1) <= _REACHED * t[:, 0]) & (t[:, 0] >= 1)
        near, w, t, v = _NEAR_SOLVED, w[kept], t[kept], v[kept]
        error = off(activation, w, t, v)

    def tell(i: int) -> str:
        there = activation.forward((w[i : i + 1] - v[i : i + 1]) / t[i : i + 1]).detach()
        return (
            f"at w = {shown(w[i])} and t = {float(t[i]):.4g} prox gives v = {shown(v[i])}, but "
            f"phi((w - v) / t) is {shown(there)}."
        )

    tested = f"{subject.origin('prox')}, {len(w)} samples, t from {float(t.min()):.0e} to 1e8"
    return judge("prox: v = phi((w - v) / t)", tested, error, near, tell)


def _crossed(subject: Subject) -> tuple[Tensor, Tensor]:
    """Return w (samples, units) and t (samples, 1), every w with every t."""
    every = 1 if subject.activation.per_unit else 4  # the values of others may be CVXPY's
    points = subject.wide_u[::every]
    weights = torch.logspace(-8, 8, 17, dtype=torch.float64)[:: min(every, 2)]
    t = weights.repeat_interleave(len(points)).unsqueeze(-1)
    return points.repeat(len(weights), 1), t


def _beside_root(activation: Activation, w: Tensor, t: Tensor, v: Tensor) -> Tensor:
    """Return an error above what is allowed where the root lies farther than that from v."""
    reach = _NEAR * (1 + v.abs())
    low, high = (activation.forward((w - v + k * reach) / t).detach() for k in (-1, 1))
    near = (v + reach >= low) & (v - reach <= high)
    found = activation.forward((w - v) / t).detach()
    error = (v - found).abs() / (1 + v.abs())
    error = torch.where(near, error.clamp(max=_NEAR), error.clamp(min=2 * _NEAR))
    return torch.where(v.isfinite(), error, torch.inf).amax(-1)


def _bound(activation: Activation, w: Tensor, t: Tensor, v: Tensor) -> Tensor:
    """Return the lesser of two bounds on |v - prox(w, t)|, (samples,)."""
    x = (w - v) / t
    residual = 2 * (activation.forward(x).detach() - v).norm(dim=-1)
    values = activation.potential_value(v).detach() + activation.conjugate_value(x).detach()
    gap = (2 * t[:, 0] * (values - (x * v).sum(-1))).clamp(min=0).sqrt()
    return torch.minimum(residual.nan_to_num(torch.inf), gap.nan_to_num(torch.inf))


def safe(subject: Subject) -> Check:
    """Check that prox is finite and nonexpansive for t from 1e-8 to 1e8 in both types."""
    activation = subject.activation
    w = subject.wide_u
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
    states = subject.wide_v
    points = torch.cat([states, _anywhere(subject)])
    found = activation.project(points).detach()
    if activation.domain(cp.Variable(tuple(points.shape))):
        right = _nearest(activation, points)
    else:
        right = torch.cat([states, activation.project(found[len(states) :]).detach()])

    def tell(i: int) -> str:
        return (
            f"project moves {shown(points[i])} to {shown(found[i])}; the nearest point of the "
            f"domain is {shown(right[i])}."
        )

    tested = f"{subject.origin('project')}, {len(points)} samples"
    return judge("project: nearest in the domain", tested, relative(found, right), 1e-5, tell)


def _anywhere(subject: Subject) -> Tensor:
    """Return points near and far, (samples, units), most of them outside a bounded domain."""
    sizes = torch.logspace(0, 3, len(subject.v), dtype=torch.float64).unsqueeze(-1)
    return torch.cat([torch.full_like(sizes, 4), sizes]) * subject.normal(
        2 * len(sizes), subject.units
    )


def _nearest(activation: Activation, points: Tensor) -> Tensor:
    """Return the nearest points of the stated domain, as CVXPY finds them."""
    return torch.from_numpy(nearest(points.numpy(), activation.domain))


def outside(subject: Subject) -> Check:
    """Check that potential_value is infinite outside the domain, in both types."""
    activation, name = subject.activation, "potential_value: infinite outside"
    points = _anywhere(subject)
    off = relative(points, activation.project(points).detach()) > 1e-2
    tested = f"{int(off.sum())} samples outside, both types"
    for kind in (torch.float32, torch.float64):
        values = activation.potential_value(points.to(kind)).detach()
        error = (off & ~values.isposinf()).double()
        check = judge(name, tested, error, 0.0, _Inside(points, values).tell)
        if not check.passed:
            return check
    return check


class _Inside:
    """Says at which point outside of the domain the potential is a number."""

    def __init__(self, points: Tensor, values: Tensor) -> None:
        self.points, self.values = points, values

    def tell(self, i: int) -> str:
        return (
            f"v = {shown(self.points[i])} lies outside the domain, potential_value gives "
            f"{self.values[i]}."
        )
