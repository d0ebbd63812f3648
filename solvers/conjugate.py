"""Preconditioned nonlinear conjugate gradients for min over y of q(y) + Phi*(a + T y).

State fits with quadratic links (in their dual) and generalized linear weight fits are both of this
form: a quadratic q, a linear map T, and a smooth Phi* whose gradient is the forward map. A step
costs one product with T and one with its transpose; the line search moves along u = a + T y, where
it needs neither.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from .state_links import OfSamples

_SEARCHES = 40  # evaluations of phi in one line search; two are the rule
_FLAT = 0.5  # a line search ends when every slope has fallen to this share
_REFRESH = 25  # steps after which rounding in u is cleared


class _Composition(Protocol):
    """q(y) + Phi*(a + T y), a batch of problems that `inner` tells apart."""

    # <a, b> of each problem for a and b like y, to be broadcast against y and u
    def inner(self, a: Tensor, b: Tensor) -> Tensor: ...
    # the same of every pair of a and b like u
    def paired(self, *pairs: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]: ...
    # phi(u), the gradient of Phi*
    def forward(self, u: Tensor) -> Tensor: ...
    # T y
    def lift(self, y: Tensor) -> Tensor: ...
    # a + T y
    def pre_activation(self, y: Tensor) -> Tensor: ...
    # the gradient of q at y
    def quadratic_gradient(self, y: Tensor) -> Tensor: ...
    # the Hessian of q times d
    def curved(self, d: Tensor) -> Tensor: ...
    # T'v
    def pull(self, v: Tensor) -> Tensor: ...
    # an approximate inverse Hessian times the gradient
    def precondition(self, gradient: Tensor) -> Tensor: ...


@dataclass
class Point(OfSamples):
    """Where the descent stands, and where it goes.

    Attributes:
        y: the unknowns.
        u: a + T y.
        v: phi(u).
        slope: the gradient of q at y.
        gradient: the gradient of the whole at y.
        direction: where the next step goes.
        decrease: <gradient, preconditioned gradient>.
        step: the length of the last step.
    """

    y: Tensor
    u: Tensor
    v: Tensor
    slope: Tensor
    gradient: Tensor
    direction: Tensor
    decrease: Tensor
    step: Tensor


def starting_point(problem: _Composition, y: Tensor) -> Point:
    """Return the point y with the preconditioned gradient as its first direction."""
    u, slope = problem.pre_activation(y), problem.quadratic_gradient(y)
    v = problem.forward(u)
    return downhill_point(problem, y, u, v, slope, slope + problem.pull(v))


def downhill_point(
    problem: _Composition, y: Tensor, u: Tensor, v: Tensor, slope: Tensor, gradient: Tensor
) -> Point:
    """Return a point whose direction is the preconditioned gradient."""
    downhill = problem.precondition(gradient)
    decrease = problem.inner(gradient, downhill)
    return Point(y, u, v, slope, gradient, -downhill, decrease, torch.ones_like(decrease))


def advance(problem: _Composition, at: Point, steps: int) -> Point:
    """Return the point after one step, by the rule of Polak, Ribiere and Polyak, beta >= 0."""
    to = moved(problem, at, fresh=steps % _REFRESH == 0)
    downhill = problem.precondition(to.gradient)
    decrease = problem.inner(to.gradient, downhill)
    beta = (decrease - problem.inner(at.gradient, downhill)) / at.decrease
    direction = beta.clamp(min=0).nan_to_num(0.0, 0.0, 0.0) * at.direction - downhill
    uphill = problem.inner(to.gradient, direction) >= 0
    direction = torch.where(uphill, -downhill, direction)
    return replace(to, direction=direction, decrease=decrease)


def moved(problem: _Composition, at: Point, fresh: bool = True) -> Point:
    """Return the minimizer along the direction of a point; `fresh` clears rounding in u."""
    change, curved = problem.lift(at.direction), problem.curved(at.direction)
    step, v = _search(problem, at, change, curved)
    y = torch.addcmul(at.y, step, at.direction)
    u = problem.pre_activation(y) if fresh else torch.addcmul(at.u, step, change)
    v = problem.forward(u) if fresh else v
    slope = problem.quadratic_gradient(y) if fresh else torch.addcmul(at.slope, step, curved)
    gradient = slope + problem.pull(v)
    return replace(at, y=y, u=u, v=v, slope=slope, gradient=gradient, step=step)


def _search(
    problem: _Composition, at: Point, change: Tensor, curved: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the step to where the slope along d has all but vanished, and phi(u) there.

    The slope increases with the step, so that secants in a bracket find its root. It is counted
    from where it starts: the sum of its parts would be as inexact as the change T d.
    """
    initial = problem.inner(at.gradient, at.direction)
    curvature = problem.inner(at.direction, curved)
    step = at.step
    v = problem.forward(torch.addcmul(at.u, step, change))
    first, pushed = problem.paired((at.v, change), (v, change))
    linear = initial - first
    slope = linear + step * curvature + pushed

    low, low_slope = torch.zeros_like(initial), initial
    high = torch.full_like(initial, torch.inf)
    for _ in range(_SEARCHES):
        following = step - slope * (step - low) / (slope - low_slope)
        below = slope < 0
        high = torch.where(below, high, step)
        low = torch.where(below, step, low)
        low_slope = torch.where(below, slope, low_slope)
        middle = torch.where(high.isinf(), 4 * step, (low + high) / 2)
        following = torch.where((following > low) & (following < high), following, middle)
        step = torch.where(slope.abs() <= 1e-3 * initial.abs(), step, following)
        v = problem.forward(torch.addcmul(at.u, step, change))
        slope = linear + step * curvature + problem.paired((v, change))[0]
        if not bool((slope.abs() > _FLAT * initial.abs()).any()):
            break
    return step, v
