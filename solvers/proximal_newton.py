"""Newton steps to where a proximal gradient step stands still, for small fits that resist."""

from __future__ import annotations

import torch
from torch import Tensor

from liftednet.problems import WeightFit

from .dense_newton import hessian

_STEPS = 200
_LEAST = 1e-12  # of the damping, below which there is none
_ROUNDING = 1e-9  # of the objective, by which it may seem to rise
_RAISED, _EASED = 10.0, 3.0  # the damping after a step that fails, and one that helps


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
        slope = slope.reshape(size, size)
        none = self.value.new_zeros(0, self.value.shape[1])
        u = torch.cat([none, *(u for _, _, u in problem.pre_activations(self.value))])
        curved = problem.lam * hessian(problem, u)
        identity = torch.eye(size, dtype=self.value.dtype, device=self.value.device)
        system = (1 + mu) * identity - slope @ (identity - curved / self.smoothness)
        right = -self.moved.reshape(-1, 1)
        found: Tensor = torch.linalg.lstsq(system.cpu(), right.cpu(), driver="gelsd").solution
        return found.reshape(self.value.shape).to(self.value)


def proximal(problem: WeightFit, stacked: Tensor, t: float) -> Tensor:
    """Return the prox of t pi on the rows of W, with that of b as it is."""
    features = problem.design.features
    matrix = problem.penalty.prox(stacked[:features], t)
    return torch.cat([matrix, stacked[features:]])
