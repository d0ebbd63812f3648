"""Damped Newton steps with the whole Hessian, for small weight fits that resist."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from liftednet.errors import SolverError
from liftednet.problems import WeightFit
from liftednet.problems.weight_fit import LEAST_CURVATURE

from .conjugate import Point, moved

if TYPE_CHECKING:
    from .generalized_linear import WeightDescent

_JITTERS = (0.0, 1e-12, 1e-9, 1e-6)  # of the diagonal, until Cholesky succeeds
_NEWTON_STEPS, _STEPS = 100, 200  # of smooth fits, and of those with kinks
_RAISED, _EASED = 10.0, 3.0  # the damping after a step that fails, and one that helps
_LEAST = 1e-12  # of the damping, below which there is none
_ROUNDING = 1e-9  # of the objective, by which it may seem to rise
_TOLD = 1e-16  # of curvatures, below which they are rounding: those of float32's are just above


def dense_newton(descent: WeightDescent, at: Point, tolerance: float) -> tuple[Point, int]:
    """Return the point after damped Newton steps of a smooth fit, and how many.

    Softmax fits that all but interpolate their labels have curvatures of any size, which only the
    whole Hessian follows: a step then divides the violation by e at least. They end where the
    violation and what the next step has to gain are within the tolerance; in float64, for far
    weights leave float32 no digits of pre-activations.
    """
    descent = replace(descent, inputs=descent.problem.design.centered.shifted.double())
    goal, most = tolerance * descent.scale / 2, tolerance * descent.problem.design.mass / 2
    for steps in range(_NEWTON_STEPS):
        direction = _direction(descent, at)
        gain = -float((at.gradient * direction).sum()) / 2
        if gain <= most and float(descent.violation(at.gradient)) <= goal:
            return at, steps
        descent, at = _stepped(descent, replace(at, direction=direction))
    return at, _NEWTON_STEPS


def _stepped(descent: WeightDescent, at: Point) -> tuple[WeightDescent, Point]:
    """Return where the whole step leads if it halves the slope, or the line search."""
    whole = descent.anchored(replace(at, y=at.y + at.direction))
    before = descent.inner(at.gradient, at.direction).abs()
    after = descent.inner(whole[1].gradient, at.direction).abs()
    if bool((after <= before / 2).all()):
        return whole
    return descent.anchored(moved(descent, replace(at, step=torch.ones_like(at.step))))


def _direction(descent: WeightDescent, at: Point) -> Tensor:
    # Damped as far as the gradient has to fall: flat places far from the minimizer tell no step.
    left = min(float(descent.violation(at.gradient)) / descent.scale, 1.0)
    system = descent.problem.hessian(at.u, left * LEAST_CURVATURE)
    system.diagonal().add_(descent.pull_back.double().expand_as(at.y).reshape(-1))
    right = -at.gradient.double().reshape(-1, 1)
    found = torch.cholesky_solve(right, jittered_cholesky(system)).reshape(at.y.shape).to(at.y)
    if descent.problem.design.bias and descent.problem.balanced:
        found[-1] -= found[-1].mean()  # which moves nothing, and rounding sends far away
    return found


def proximal_newton(problem: WeightFit, value: Tensor, goal: float) -> tuple[Tensor, int]:
    """Return [W; b + shift W] after damped semismooth Newton steps, and how many.

    They look for the root of F(Y) = Y - prox_{pi / s}(Y - gradient / s), s the smoothness (Qi and
    Sun, A nonsmooth version of Newton's method, 1993), damped until the objective falls, or F with
    the objective level: where curvatures differ by powers of ten, first-order steps come to rest
    before it.
    """
    at, mu = _Standing(problem, value), 0.0
    for steps in range(_STEPS):
        if at.share <= goal or mu > 1:
            return at.value, steps
        ahead = _Standing(problem, at.value + at.newton_direction(mu))
        trial = _Standing(problem, ahead.following)
        level = at.total + _ROUNDING * abs(at.total)
        if trial.total < at.total or (trial.share < at.share / 2 and trial.total <= level):
            at, mu = trial, mu / _EASED if mu > _LEAST else 0.0
        else:
            mu = max(_RAISED * mu, _LEAST)
    return at.value, _STEPS


class _Standing:
    """A point and its proximal gradient step.

    Attributes:
        value: [W; b + shift W].
        moved: F there.
        share: the largest entry of s F, over that of the gradient's terms.
    """

    def __init__(self, problem: WeightFit, value: Tensor) -> None:
        self.problem, self.value = problem, value
        self.smoothness = problem.smoothness or 1.0
        gradient, scale = problem.gradient(value)
        self.begin = value - gradient / self.smoothness
        self.following = proximal(problem, self.begin, 1 / self.smoothness)
        self.moved = value - self.following
        self.total = float(problem.total(value))
        self.share = float((self.smoothness * self.moved / scale).abs().max())

    def newton_direction(self, mu: float) -> Tensor:
        """Return -(J + mu I)^-1 F, with J = I - P (I - H / s) and P the slope of the prox."""
        problem, size = self.problem, self.value.numel()
        slope = torch.func.jacfwd(lambda y: proximal(problem, y, 1 / self.smoothness))(self.begin)
        slope = slope.nan_to_num(0.0).reshape(size, size)  # 0 / 0 where singular values are alike
        curved = problem.lam * problem.hessian(problem.outputs(self.value))
        identity = torch.eye(size, dtype=self.value.dtype, device=self.value.device)
        system = (1 + mu) * identity - slope @ (identity - curved / self.smoothness)
        right = -self.moved.reshape(-1, 1)
        found = torch.linalg.lstsq(system.cpu(), right.cpu(), rcond=_TOLD, driver="gelsd").solution
        return found.reshape(self.value.shape).to(self.value)


def proximal(problem: WeightFit, stacked: Tensor, t: float) -> Tensor:
    """Return the prox of t pi on the rows of W, with that of b as it is."""
    features = problem.design.features
    matrix = problem.penalty.prox(stacked[:features], t)
    return torch.cat([matrix, stacked[features:]])


def jittered_cholesky(system: Tensor) -> Tensor:
    """Return the Cholesky factor of a system that rounding may have made singular.

    Raises:
        SolverError: it is far from positive semidefinite.
    """
    for jitter in _JITTERS:
        shifted = system.clone()
        shifted.diagonal().mul_(1 + jitter).add_(torch.finfo(system.dtype).tiny)
        factor = torch.linalg.cholesky_ex(shifted)
        if int(factor.info) == 0:
            return factor.L
    raise SolverError("the system of a weight fit is not positive definite: scale the inputs.")
