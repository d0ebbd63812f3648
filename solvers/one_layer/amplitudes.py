"""How much there is of every unit: the convex fit of all outputs, by an active set."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from .problem import OneLayer, Units

_STEPS = 100
_TOLERANCE = 1e-13  # relative decrease that a step expects, from which on it is rounding
_ROUNDS, _MET = 60, 1e-10  # of prices, and by how much limits may be off at their end
_RISE, _STIFF = 4.0, 1e6  # of mu where a round has left more than that share; of the first mu
_RIDGE = 1e-12  # of the diagonal, where answers of units depend on each other


def fitted(problem: OneLayer, units: Units) -> Units:
    """Return the units with the best amplitudes, constant and linear layer, without those of 0.

    min over t >= 0, c, Q of the loss + 2 rho sum t + linear |Q|^2 by Newton steps, each the
    minimizer of a quadratic over t >= 0, found by steps along which no t becomes negative: what
    comes to 0 is held there (Lawson and Hanson, Solving Least Squares Problems, 1974, with several
    units at a time). Limits on scores are held by squares with prices, in rounds that end when
    neither moves; where no amplitudes meet them, prices say by which units.
    """
    J, limits, before = _jacobian(problem, units), problem.limits, math.inf
    if limits is None:
        found = _moved(problem, units, J, None, 0.0)
        return found.take(found.t > 0)
    felt, mu = limits.slopes(J), limits.mu
    for _ in range(_ROUNDS):
        units = _moved(problem, units, J, felt, mu)
        prices = mu * limits.excess(problem.f(units), units.prices, mu)
        off = float((prices - units.prices).abs().max()) / mu
        units = replace(units, prices=prices)
        if off <= _MET * (1 + float(problem.scores.targets.abs().max())):
            break
        mu *= _RISE if off > before / _RISE and mu < _STIFF * limits.mu else 1.0
        before = off
    return units.take(units.t > 0)


def _moved(problem: OneLayer, units: Units, J: Tensor, felt: Tensor | None, mu: float) -> Units:
    """Return the units with the best numbers, limits A f = `felt` x held by mu and prices."""
    count, shape = len(units), problem.scores.targets.shape
    pull = J.new_zeros(J.shape[1])
    if units.Q is not None and problem.linear is not None:
        pull[count + shape[1] :] = 2 * problem.linear
    push = torch.zeros_like(pull)
    push[:count] = 2 * problem.rho
    parts = [units.t, units.c, *([] if units.Q is None else [units.Q.flatten()])]
    x, limits = torch.cat(parts), problem.limits

    def at(x: Tensor) -> tuple[Tensor, float]:
        f = (J @ x).view(shape)
        total = float(problem.scores.value(f) + push @ x + pull @ x.square() / 2)
        if limits is not None:
            total += mu / 2 * float(limits.excess(f, units.prices, mu).square().sum())
        return f, total

    (f, objective), majorized = at(x), False
    for _ in range(_STEPS):
        V, above = problem.scores.residuals(f), problem.scores.majorant(f)
        B = above if majorized and above is not None else problem.scores.curvature(f)
        gradient = push + pull * x - J.T @ V.flatten()
        H = J.T @ (B @ J.view(*shape, -1)).flatten(0, 1)
        H.diagonal().add_(pull)
        if limits is not None and felt is not None:
            excess = limits.excess(f, units.prices, mu)
            held = felt[excess != 0]
            gradient = gradient + mu * (felt.T @ excess)
            H = H + mu * (held.T @ held)
        step = _constrained(H, gradient, x, count)
        expected = -float(gradient @ step)
        if not expected > _TOLERANCE * abs(objective):
            break
        length, stepped = 1.0, False
        while length > 1e-6 and not stepped:
            ahead = x + length * step
            reached, total = at(ahead)
            stepped = total < objective
            length /= 2
        if not stepped and (majorized or above is None):
            break
        majorized = length < 0.5  # where this step was cut, its Hessian told too little
        if stepped:
            x, f, objective = ahead, reached, total
    t, c, Q = x[:count], x[count : count + shape[1]], x[count + shape[1] :]
    return replace(units, t=t, c=c, Q=None if units.Q is None else Q.view(units.Q.shape))


def _jacobian(problem: OneLayer, units: Units) -> Tensor:
    """Return the derivatives of all scores in t, c and Q, (samples outputs, numbers)."""
    h = problem.phi.of(problem.X @ units.w.T + units.b)
    samples, outputs = problem.scores.targets.shape
    unit = torch.eye(outputs).to(h)
    parts = [h[:, None] * units.z.T, unit.expand(samples, -1, -1)]
    if units.Q is not None:
        parts.append((problem.X[:, None, :, None] * unit[:, None]).flatten(2))
    return torch.cat(parts, 2).flatten(0, 1)


def _constrained(H: Tensor, gradient: Tensor, x: Tensor, count: int) -> Tensor:
    """Return argmin of <g, s> + <s, H s> / 2 where the first numbers of x + s are not negative."""
    free = torch.ones_like(x, dtype=torch.bool)
    free[:count] = (x[:count] > 0) | (gradient[:count] < 0)
    y, slope = x.clone(), gradient
    for _ in range(10 * len(x) + 10):
        among = free.nonzero()[:, 0]
        step = torch.zeros_like(x)
        step[among] = -_solved(H[among][:, among], slope[among])
        falls = free[:count] & (step[:count] < 0)
        held = falls & (y[:count] <= 0)
        if bool(held.any()):
            free[:count] &= ~held
            continue
        ratio = torch.where(falls, -y[:count] / step[:count], torch.inf)
        length = float(ratio.amin().clamp(max=1.0)) if count else 1.0
        y = y + length * step
        ended = falls & (ratio <= length)
        y[:count].masked_fill_(ended, 0.0)
        free[:count] &= ~ended
        slope = gradient + H @ (y - x)
        if length == 1.0:
            break
    return y - x


def _solved(H: Tensor, right: Tensor) -> Tensor:
    """Return H^-1 b, with a little more on the diagonal as long as H is singular."""
    ridge = _RIDGE
    while True:
        damped = H.clone()
        damped.diagonal().add_(ridge * H.diagonal().max())
        factor, failed = torch.linalg.cholesky_ex(damped)
        if not failed:
            return torch.cholesky_solve(right[:, None], factor)[:, 0]
        ridge *= 100
