"""Proximal maps in a metric: they hold a penalty where the metric of a step is not the identity.

W is (inputs, units), and the metric, on the space of its rows, is the same for every unit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from liftednet.errors import SolverError
from liftednet.penalties import Mixing, Penalty, SquaredFrobenius

_EVALUATIONS = 300  # of the dual, each a prox and two thin products
_CHEAP = 6  # steps before Newton's
_TRUSTED = 20  # of Newton's steps, before any is cut
_PROGRESS = 0.9  # of the smallest residual so far: a bold step follows only upon that
_NEAR = 0.1  # the residual of a step on a minibatch
_SAMPLED = 32  # units that tell the share of entries that are not 0


@dataclass(frozen=True)
class LowRankMetric:
    """M = d (I + V diag(e) V') on the space of rows, (inputs, inputs).

    Attributes:
        scale: d, positive.
        vectors: V, orthonormal columns, (inputs, rank).
        values: e, none negative, (rank,).
    """

    scale: float
    vectors: Tensor
    values: Tensor


def low_rank_prox(
    penalty: Penalty,
    weight: Tensor,
    metric: LowRankMetric,
    t: float,
    start: Tensor | None = None,
    tolerance: float = 0.1,
) -> Tensor:
    """Return argmin over P of pi(P) + <P - W, M (P - W)> / (2 t), (inputs, units).

    With U = V diag(e)^(1/2), s = t / d and Z (rank, units), P = prox_{s pi}(W - U Z) where
    Z = U'(P - W) (Becker and Fadili, A Quasi-Newton Proximal Splitting Method, 2012). Unknowns
    are few, and P is in the domain whatever the tolerance. For rho |P - C|_F^2 there is a formula;
    of a penalty that is not convex, P is prox_{s pi}(W).

    Args:
        penalty: pi.
        weight: W, where the step ends without pi, (inputs, units).
        metric: M.
        t: the length of the step, positive.
        start: P to begin with; None begins with Z = 0, which is nearer to the solution unless the
            start solves almost the same problem.
        tolerance: KKT residual to reach, relative to the gradient M (P - W) / t.

    Raises:
        SolverError: W is not finite, or the tolerance is not reached; it carries the last P.
    """
    if not penalty.convex:  # its nearest point, and no equation that is monotone
        return penalty.prox(weight, t / metric.scale)
    dual = _Dual(penalty, weight, metric, t / metric.scale)
    if isinstance(penalty, SquaredFrobenius):
        return dual.ridge(penalty)
    for point in dual.points(start):
        if point.residual <= tolerance:
            return point.weight
        if math.isnan(point.residual):
            break
    raise SolverError(
        f"the proximal step stopped at a residual of {point.residual:.1e}, not {tolerance:.1e}.",
        point.weight,
    )


def one_step_prox(penalty: Penalty, weight: Tensor, metric: LowRankMetric, t: float) -> Tensor:
    """Return `low_rank_prox` after one safe step from Z = 0, or none, where entries have a prox.

    None where Z = 0 leaves a residual of 0.1 at most. P is in the domain, and nearer to the
    solution than prox_{s pi}(W), by descent on a convex function of Z; how near is not looked at.
    Steps on minibatches lead as far by it as by more.
    """
    if not penalty.convex or not penalty.entrywise or isinstance(penalty, SquaredFrobenius):
        return low_rank_prox(penalty, weight, metric, t)
    dual = _Dual(penalty, weight, metric, t / metric.scale)
    first = dual.first(None)
    if first.residual <= _NEAR:
        return first.weight
    step = dual.mean_inverse(first.weight) * first.error
    return penalty.prox(weight.addmm(dual.root, step, alpha=-1), dual.step)


@dataclass(frozen=True)
class _Point:
    """Where Z leads.

    Attributes:
        dual: Z, (rank, units).
        weight: P = prox(W - U Z), (inputs, units).
        error: U'(P - W) - Z, (rank, units).
        residual: the KKT residual U error / s over the gradient (I + U U')(P - W) / s, in norm;
            what P's own rounding makes of the gradient is taken off.
    """

    dual: Tensor
    weight: Tensor
    error: Tensor
    residual: float


@dataclass(frozen=True)
class _Dual:
    """The equation U'(prox_{s pi}(W - U Z) - W) = Z, monotone in Z.

    Attributes:
        penalty: pi.
        target: W, (inputs, units).
        metric: M.
        step: s = t / d.
    """

    penalty: Penalty
    target: Tensor
    metric: LowRankMetric
    step: float

    @cached_property
    def root(self) -> Tensor:
        """U, (inputs, rank)."""
        return self.metric.vectors * self.metric.values.sqrt()

    @cached_property
    def rounding(self) -> float:
        """What rounding of P makes of the gradient."""
        largest = float(self.metric.values.max()) if len(self.metric.values) else 0.0
        return torch.finfo(self.target.dtype).eps * (1 + largest) * float(self.target.norm())

    @cached_property
    def pairs(self) -> Tensor:
        """Products of two columns of U, (inputs, rank^2)."""
        return (self.root.unsqueeze(2) * self.root.unsqueeze(1)).flatten(1)

    @property
    def slope(self) -> float:
        """The largest slope of the prox."""
        return 1 / (1 + self.step * self.penalty.curvature)

    def ridge(self, penalty: SquaredFrobenius) -> Tensor:
        """Return the solution for rho |P - C|_F^2 by the formula of Woodbury."""
        pull = penalty.stationarity(self.target, self.target.new_zeros(()), 1.0)  # 2 rho (W - C)
        seen = self.root.T @ pull / (1 / self.slope + self.metric.values).unsqueeze(1)
        return self.target.sub(pull.addmm_(self.root, seen, alpha=-1), alpha=self.step * self.slope)

    def at(self, dual: Tensor) -> _Point:
        """Return where Z leads."""
        shifted = torch.addmm(self.target, self.root, dual, alpha=-1)
        return self.measured(dual, self.penalty.prox(shifted, self.step))

    def first(self, start: Tensor | None) -> _Point:
        """Return where Z = U'(P - W) leads, or Z = 0, which takes no product."""
        if start is not None:
            return self.at(self.root.T @ (start - self.target))
        dual = self.target.new_zeros(len(self.metric.values), self.target.shape[1])
        return self.measured(dual, self.penalty.prox(self.target, self.step))

    def measured(self, dual: Tensor, weight: Tensor) -> _Point:
        """Return Z and P with their error and residual."""
        moved = weight - self.target
        seen = self.root.T @ moved
        error, values = seen - dual, self.metric.values.unsqueeze(1)
        gap = float((values * error.square()).sum()) ** 0.5
        gradient = (float(moved.norm()) ** 2 + float(((2 + values) * seen.square()).sum())) ** 0.5
        tiny = torch.finfo(weight.dtype).tiny
        return _Point(dual, weight, error, max(gap - self.rounding, 0.0) / max(gradient, tiny))

    def points(self, start: Tensor | None) -> Iterator[_Point]:
        """Yield points from the start on, of which the residual tends to 0."""
        point = self.first(start)
        yield point
        yield from self.apart(point) if self.penalty.entrywise else self.together(point)

    def apart(self, first: _Point) -> Iterator[_Point]:
        """Yield points where every unit has an equation of its own."""
        for point in self.secants(first, _CHEAP):
            yield point
        yield from self.newton(point, _EVALUATIONS - _CHEAP)

    def together(self, point: _Point) -> Iterator[_Point]:
        """Yield points of mixed safe steps, see `mean_inverse`."""
        inverse, mixing = self.mean_inverse(point.weight), Mixing()
        for _ in range(_EVALUATIONS):
            safe = point.dual + inverse * point.error
            point = self.at(mixing.following(point.dual, safe))
            yield point

    def secants(self, point: _Point, steps: int) -> Iterator[_Point]:
        """Yield points of safe steps that a secant makes bold, see `mean_inverse`.

        Only upon an error that is smaller than all before, of a unit.
        """
        inverse, last, best = self.mean_inverse(point.weight), None, torch.inf
        for _ in range(steps):
            size = point.error.norm(dim=0)
            bold, best = size <= _PROGRESS * best, size.clamp(max=best)
            step = safe = inverse * point.error
            if last is not None:
                step = torch.where(bold, _secant(safe, point.dual, *last), safe)
            last = safe, point.dual
            point = self.at(point.dual + step)
            yield point

    def newton(self, point: _Point, steps: int) -> Iterator[_Point]:
        """Yield points of Newton's steps, each unit by its own slopes of the prox.

        They may circle, though none was seen to: after some steps, one at the end of which the
        error points back is cut to where the line through the errors along it is 0.
        """
        step = self.newton_step(point.weight, point.error)
        for number in range(steps):
            base, point = point, self.at(point.dual + step)
            yield point
            onward = self.newton_step(point.weight, point.error)
            if number < _TRUSTED:
                step = onward
                continue
            before, after = (base.error * step).sum(0), (point.error * step).sum(0)
            share = after / (before - after).clamp(min=torch.finfo(step.dtype).tiny)
            step = torch.where(after < 0, share * step, onward)

    def mean_inverse(self, weight: Tensor) -> Tensor:
        """Return 1 / (1 + a e), a the share of entries that are not 0, (rank, 1).

        Times the error it is a safe step: with a above a half of the largest slope of the prox,
        gradient descent on a convex function in a metric above half of its Hessian.
        """
        share = float((weight[:, :_SAMPLED] != 0).to(weight.dtype).mean())
        return 1 / (1 + self.slope * max(share, 0.5) * self.metric.values).unsqueeze(1)

    def newton_step(self, weight: Tensor, error: Tensor) -> Tensor:
        """Return (I + U'A U)^{-1} error for each unit, A the slopes of its own prox."""
        active = (weight != 0).to(weight.dtype)
        rank = len(error)
        systems = self.slope * (active.T @ self.pairs).unflatten(1, (rank, rank))
        systems.diagonal(dim1=1, dim2=2).add_(1)
        return _solved(systems, error)


def _secant(safe: Tensor, dual: Tensor, safe_before: Tensor, dual_before: Tensor) -> Tensor:
    """Return the step to where the line through two safe steps of a unit is shortest.

    Anderson's mixing of depth one, (rank, units).
    """
    change = safe - safe_before
    squares = change.square().sum(0).clamp(min=torch.finfo(safe.dtype).tiny)
    share = (change * safe).sum(0) / squares
    return safe - share * (dual - dual_before + change)


def _solved(systems: Tensor, right: Tensor) -> Tensor:
    """Return the solutions of one system a unit, (rows, units)."""
    factors = torch.linalg.cholesky(systems)
    return torch.cholesky_solve(right.T.unsqueeze(2), factors).squeeze(2).T
