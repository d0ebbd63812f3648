"""Newton steps with the whole Hessian, for small generalized linear fits that resist."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from liftednet import processes
from liftednet.problems import WeightFit
from liftednet.samples import row_chunks

from . import deferred
from .conjugate import Point, moved
from .deferred import Late
from .preconditioner import LEAST_CURVATURE, jittered_cholesky
from .weight_descent import WeightDescent

_STEPS = 100
_LARGEST = 1_024  # unknowns


def dense_newton(descent: WeightDescent, at: Point, goal: float) -> tuple[Point, int]:
    """Return the point after damped Newton steps, and how many.

    Softmax fits that all but interpolate their labels have curvatures of any size, which only the
    whole Hessian follows: a step then divides the violation by e at least.
    """
    steps, looks = 0, Late[Point]()
    while steps < _STEPS:
        share, then = looks.seen(descent.violation(at.gradient) / goal, at)
        if then is not None and share <= 1:
            return then, steps
        steps += 1
        descent, at = _stepped(descent, replace(at, direction=_direction(descent, at)))
    return at, steps


def _stepped(descent: WeightDescent, at: Point) -> tuple[WeightDescent, Point]:
    """Return where the whole step leads if it halves the slope, or the line search."""
    whole = descent.anchored(replace(at, y=at.y + at.direction))
    before = descent.inner(at.gradient, at.direction).abs()
    after = descent.inner(whole[1].gradient, at.direction).abs()
    halves = (after <= before / 2).all()
    on_device = deferred.stays_on_device(halves)
    if not on_device and bool(halves):
        return whole
    searched = moved(descent, replace(at, step=torch.ones_like(at.step)))
    if on_device:
        searched.y = torch.where(halves, whole[1].y, searched.y)
    return descent.anchored(searched)


def is_small(problem: WeightFit) -> bool:
    """Say whether the whole Hessian is cheap."""
    return (problem.design.features + problem.design.bias) * problem.units <= _LARGEST


def _direction(descent: WeightDescent, at: Point) -> Tensor:
    system = hessian(descent.problem, at.u)
    system.diagonal().add_(descent.pull_back.double().expand_as(at.y).reshape(-1))
    right = -at.gradient.double().reshape(-1, 1)
    return torch.cholesky_solve(right, jittered_cholesky(system)).reshape(at.y.shape).to(at.y)


def hessian(problem: WeightFit, u: Tensor) -> Tensor:
    """Return sum_i x_i x_i' (x) phi'(u_i), ((inputs + 1) units) squared, in float64."""
    design, units = problem.design.centered, u.shape[1]
    features = design.features + design.bias
    identity = torch.eye(units, dtype=u.dtype, device=u.device)
    total = u.new_zeros(features, units * units * features, dtype=torch.float64)
    for part, x in design.rows():
        for some in row_chunks(len(x), units * units * features):
            slopes = _slopes(problem, u[part][some].double())
            slopes = design.weighed(slopes, _within(part, some)) + LEAST_CURVATURE * identity
            weighted = slopes.unsqueeze(-1) * x[some, None, None, :]
            total += x[some].T @ weighted.flatten(1)
    (total,) = processes.total(total)
    size = features * units
    return total.reshape(features, units, units, features).transpose(2, 3).reshape(size, size)


def _within(part: slice, some: slice) -> slice:
    return slice(part.start + some.start, part.start + some.stop)


def _slopes(problem: WeightFit, u: Tensor) -> Tensor:
    """Return phi'(u) of every sample, (samples, units, units)."""
    divergence = problem.divergence
    if divergence.activation.per_unit:
        return torch.diag_embed(divergence.link_curvature(u))
    columns = [
        torch.func.jvp(divergence.link_gradient, (u,), (unit.expand_as(u),))[1]
        for unit in torch.eye(u.shape[1], dtype=u.dtype, device=u.device)
    ]
    return torch.stack(columns, -1)
