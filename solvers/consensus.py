"""Weight fits under several penalties at once, each by its own prox and in one loop."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from liftednet.penalties import Penalty, Sum
from liftednet.problems import WeightFit
from liftednet.sets.splitting import Splitting

# What points may be apart, by how much less where the verdict asks for more, and the least.
_NEAR, _STRICTER, _LEAST = 1e-9, 0.1, 1e-14


def is_split(penalty: Penalty) -> bool:
    """Say whether a penalty is a sum whose prox is a problem of its own."""
    return isinstance(penalty, Sum) and penalty.split


def consensus(problem: WeightFit, start: Tensor, tolerance: float) -> tuple[Tensor, int]:
    """Return [W; b + shift W] where all penalties meet, and the rounds that it took.

    The model of the divergence is its gradient and lam L [X, 1]'[X, 1], its Hessian where it is
    quadratic. b is at its minimum in it.

    Raises:
        SolverError: the penalties do not meet; they may exclude each other.
    """
    penalty = problem.penalty
    assert isinstance(penalty, Sum)  # asked for by the caller
    splitting, goal = _splitting(problem, penalty, start), min(0.1 * tolerance, _NEAR)
    best, found = math.inf, start
    while True:
        met = splitting.meeting(goal)
        matrix = penalty.nearly(met) if met.apart <= goal else penalty.project(met.points[-1])
        value = torch.cat([matrix, met.value[len(matrix) :]])
        if problem.design.bias:
            value[-1] -= _slope_in_bias(problem, value)
        residual = problem.measure(problem.design.centered.split(value)).residual
        if residual < best:
            best, found = residual, value
        if residual <= tolerance or met.apart > goal or goal < _LEAST:
            return found, met.rounds
        goal *= _STRICTER


def _slope_in_bias(problem: WeightFit, value: Tensor) -> Tensor:
    """Return Newton's step in b as the smoothness bounds it, exact where R is quadratic."""
    assert problem.divergence.smoothness is not None
    steep = problem.lam * problem.divergence.smoothness * problem.design.mass
    return problem.gradient(value)[0][-1] / steep


def _splitting(problem: WeightFit, penalty: Sum, start: Tensor) -> Splitting:
    design, features = problem.design.centered, problem.design.features
    assert problem.divergence.smoothness is not None  # asked for by obstacle
    curvature = problem.lam * problem.divergence.smoothness
    gram, mean = design.gram[:features, :features], None
    if design.bias:
        mean, mass = design.gram[-1, :-1] / design.gram[-1, -1], design.gram[-1, -1]
        gram = gram - mass * mean.outer(mean)
    sizes, basis = torch.linalg.eigh(curvature * gram)
    sizes = sizes.clamp(min=0) + sum(square.curvature for square in penalty.squares)

    def model(value: Tensor, center: Tensor, weight: float) -> Tensor:
        gradient, following = problem.gradient(value)[0], value.clone()
        right = gradient[:features]
        for square in penalty.squares:
            right = square.stationarity(value[:features], right, 1.0)
        if mean is not None:
            right = right - mean.outer(gradient[-1])
        right = weight * (center - value[:features]) - right
        move = basis @ ((basis.T @ right) / (sizes + weight).unsqueeze(1))
        following[:features] += move
        if mean is not None:
            following[-1] -= gradient[-1] / (curvature * mass) + mean @ move
        return following

    begin = start.clone()
    begin[:features] = 0.0
    steepest = float(problem.gradient(begin)[0][:features].abs().max())
    rho = max(float(sizes.mean()), steepest / penalty.reach, torch.finfo(start.dtype).tiny)
    maps = [member.prox for member in penalty.members]
    points = start[:features].expand(len(maps), -1, -1)
    return Splitting(maps, model, start, points, rho)
