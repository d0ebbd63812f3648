"""A generalized linear fit as conjugate gradients and Newton's method see it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from liftednet import processes
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import WeightFit, Weights

from .conjugate import Point, downhill_point
from .preconditioner import Preconditioner, preconditioner

_ROUNDING = 1e-6  # of a unit's gradient at the anchor, which products in float32 leave of it
_NOTHING = 1e-3  # of the rounding of [X, 1]'V, to which no tolerance reaches


@dataclass(frozen=True)
class Anchor:
    """What is known in full precision at one point.

    Attributes:
        y: the point, [W; b], with b for X less the shift of the design.
        u: X W + b, (samples, units).
        v: phi(u).
        pulled: [X, 1]'v, (inputs + 1, units).
    """

    y: Tensor
    u: Tensor
    v: Tensor
    pulled: Tensor


def anchor_at(problem: WeightFit, y: Tensor) -> Anchor:
    """Return the anchor at [W; b]."""
    inputs, bias = problem.design.centered.shifted, problem.design.bias
    u = _lift(inputs, bias, y)
    if problem.offset is not None:
        u = u + problem.offset
    v = weighed_gradient(problem, u)
    return Anchor(y, u, v, *processes.total(_pull(inputs, bias, v)))


@dataclass(frozen=True)
class WeightDescent:
    """min over Y = [W; b] of (pi(W) - <lam X'V, Y>) / lam + Phi*(X W + b), lam divided out.

    Products with X are taken in float32, but of differences alone: of Y from step to step, and of
    phi(u) to an anchor. Their rounding vanishes with the differences, so that the fit is as exact
    as with float64, in half of the time, if only the anchor follows now and then.

    Attributes:
        problem: the weight fit.
        inputs: X less the shift of the design, in float32.
        cross: [X, 1]'V + 2 rho W_0 / lam, (inputs + 1, units).
        pull_back: 2 rho / lam on the rows of W and 0 on that of b, (inputs + 1, 1).
        system: the preconditioner.
        anchor: the last one.
    """

    problem: WeightFit
    inputs: Tensor
    cross: Tensor
    pull_back: Tensor
    system: Preconditioner
    anchor: Anchor

    def inner(self, a: Tensor, b: Tensor) -> Tensor:
        """Return <a, b> per unit, (1, units), or in all where the activation couples units."""
        columns = (a * b).sum(0, keepdim=True)
        coupled = not self.problem.divergence.activation.per_unit
        return columns.sum(1, keepdim=True) if coupled else columns

    def paired(self, *pairs: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """Return the same of every pair over samples."""
        return processes.total(*(self.inner(*pair) for pair in pairs))

    def forward(self, u: Tensor) -> Tensor:
        """Return phi(u), times the weights of the samples."""
        return weighed_gradient(self.problem, u)

    def lift(self, y: Tensor) -> Tensor:
        """Return X W + b, by float32."""
        return _lift(self.inputs, self.problem.design.bias, y.float()).to(y)

    def pre_activation(self, y: Tensor) -> Tensor:
        """Return X W + b, by float32 from the anchor."""
        return self.anchor.u + self.lift(y - self.anchor.y)

    def quadratic_gradient(self, y: Tensor) -> Tensor:
        """Return 2 rho (W - W_0) / lam - [X, 1]'V."""
        return self.curved(y) - self.cross

    def curved(self, d: Tensor) -> Tensor:
        """Return 2 rho / lam times the rows of W."""
        return self.pull_back * d

    def pull(self, v: Tensor) -> Tensor:
        """Return [X, 1]'v, by float32 from the anchor."""
        change = (v - self.anchor.v).float()
        (pulled,) = processes.total(_pull(self.inputs, self.problem.design.bias, change))
        return self.anchor.pulled + pulled.to(v)

    def precondition(self, gradient: Tensor) -> Tensor:
        """Return the solution of the ridge system with the gradient on its right.

        A unit whose gradient may be the rounding of products rests until the anchor follows: where
        its activation is flat, nothing would hold it on its way. So does one at its minimizer: the
        squares of what is left there vanish, and the length of a step is their ratio.
        """
        columns = gradient.abs().amax(0, keepdim=True)
        return self.system.solve(gradient.where(columns > self._at_rest, 0.0))

    @cached_property
    def _at_rest(self) -> Tensor:
        """What is too little of every unit's gradient to move it, (1, units)."""
        gradient = self.quadratic_gradient(self.anchor.y) + self.anchor.pulled
        least = _NOTHING * torch.finfo(gradient.dtype).eps * self.cross.abs().max()
        return (_ROUNDING * gradient.abs().amax(0, keepdim=True)).clamp(min=least)

    def violation(self, gradient: Tensor) -> Tensor:
        """Return the largest entry of the gradient."""
        return gradient.abs().max()

    def starting_point(self) -> Point:
        """Return the anchor as a point to descend from."""
        anchor, slope = self.anchor, self.quadratic_gradient(self.anchor.y)
        return downhill_point(self, anchor.y, anchor.u, anchor.v, slope, slope + anchor.pulled)

    def anchored(self, at: Point) -> tuple[WeightDescent, Point]:
        """Return the descent with its anchor at a point, and this point in full precision."""
        anchor = anchor_at(self.problem, at.y)
        slope = self.quadratic_gradient(at.y)
        gradient = slope + anchor.pulled
        exact = replace(at, u=anchor.u, v=anchor.v, slope=slope, gradient=gradient)
        return replace(self, anchor=anchor), exact

    def renewed(self, at: Point) -> tuple[WeightDescent, Point]:
        """Return the descent with the curvature at a point, and the point to go on from."""
        system = preconditioner(self.problem, self.inputs, at.u, self.pull_back)
        renewed = replace(self, system=system)
        return renewed, downhill_point(renewed, at.y, at.u, at.v, at.slope, at.gradient)


def weight_descent(problem: WeightFit, start: Weights) -> WeightDescent:
    """Return the descent, anchored and preconditioned at the start."""
    assert isinstance(problem.penalty, SquaredFrobenius)  # asked for by obstacle
    design = problem.design.centered
    inputs, features = design.shifted, design.features
    pull_back = inputs.new_zeros(features + problem.design.bias, 1)
    pull_back[:features] = 2 * problem.penalty.rho / problem.lam
    cross = problem.cross.clone()
    cross[:features] += problem.penalty.linear_term(cross[:features]) / problem.lam
    begin = design.joined(start).to(inputs)
    anchor, single = anchor_at(problem, begin), inputs.float()
    system = preconditioner(problem, single, anchor.u, pull_back)
    return WeightDescent(problem, single, cross.to(inputs), pull_back, system, anchor)


def weighed_gradient(problem: WeightFit, u: Tensor) -> Tensor:
    """Return grad R(u) of all samples, each times the weight of its sample."""
    return problem.design.weighed(problem.divergence.link_gradient(u), slice(None))


def _lift(x: Tensor, bias: bool, y: Tensor) -> Tensor:
    """Return X W + b, stored unit by unit: products in this order are several times as fast."""
    u = y[: x.shape[1]].T @ x.T
    return (u.add_(y[-1].unsqueeze(1)) if bias else u).T


def _pull(x: Tensor, bias: bool, v: Tensor) -> Tensor:
    """Return [X, 1]'v, by the fast order again."""
    moment = (v.T @ x).T
    return torch.cat([moment, v.sum(0, keepdim=True)]) if bias else moment
