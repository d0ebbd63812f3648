"""Units one by one to the global optimum: what is missing most is added, until nothing is."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..quasi_newton import lbfgs
from .amplitudes import fitted
from .branches import Branches
from .oracle import Answers, ascended, exact
from .problem import OneLayer, Units

_ADDED = 30  # units of a round at most
_DRAWN = 100  # units that more than two inputs begin with
_CELLS, _CELLS_A_SECOND = 30, 1e8  # an input that a proof takes, and as many times rows
_STARTS = 200  # random directions of a local search
_SWEPT = 200  # rows that units in the plane are sought through before a proof
_STEPS = 300  # of units that slide
_VIOLATED = 1e-9  # relatively, by which rounding may have a unit answer more than 2 rho
_HALVINGS = 40


@dataclass(frozen=True, eq=False)
class Round:
    """What a round has reached.

    Attributes:
        units: of amplitudes that are not 0.
        objective: of them.
        bound: what no network has an objective below, proven; 0 before a proof.
        missing: units that answer residuals most, as far as the round has searched.
    """

    units: Units
    objective: float
    bound: float
    missing: Answers

    @property
    def gap(self) -> float:
        """(objective - bound) / objective."""
        return 0.0 if self.objective <= 0 else 1.0 - self.bound / self.objective


def rounds(
    problem: OneLayer,
    units: Units,
    most_units: int,
    gap: float,
    seconds: float,
    number: int = 0,
    bound: float = 0.0,
) -> Generator[Round, None, bool]:
    """Yield one round after another, of lower and lower objectives.

    Each adds the units that answer residuals most and fits all amplitudes; beyond two inputs all
    units slide together, too (Denoyelle, Duval, Peyre and Soubies, The Sliding Frank-Wolfe
    Algorithm, 2019). Where no unit is found that would lower the objective by more than the gap,
    that there is none is proven: exactly in one and two inputs, by branch and bound beyond.

    Args:
        problem: the network and its data.
        units: to begin with, of amplitudes that are `fitted`.
        most_units: that there may be.
        gap: the relative one that is asked for.
        seconds: until when a new round or a proof goes on; half of it is left for a proof.
        number: of the first round, which random directions are drawn by.
        bound: that is known.

    Returns:
        Whether the gap is proven. Else the time is over, there is no room for more units, or no
        more are found.
    """
    ends = time.perf_counter() + seconds
    inputs = problem.X.shape[1]
    reserve = seconds / 2 if _CELLS**inputs * len(problem.X) < _CELLS_A_SECOND * seconds else 0.0
    if inputs > 2 and not len(units):
        units = _begun(problem, units, most_units)
    while True:
        generator = torch.Generator().manual_seed(number)
        V, objective = problem.residuals(problem.f(units)), problem.objective(units)
        found, most = searched(problem, units, V, generator)
        goal = None if most is not None else _goal(problem, V, objective, gap)
        reached, left = float(found.values[0]), ends - time.perf_counter()
        late = left < reserve  # which is left for a proof of what there is
        if most is None and (late or (goal is not None and reached <= goal)):
            others, most = _proven(problem, V, max(goal or 0.0, reached), left)
            found = others if others.values[0] > found.values[0] else found
        if most is not None:
            bound = max(bound, problem.bound(V, most))
        now, number = Round(units, objective, bound, found), number + 1
        yield now
        if now.gap <= gap:
            return True
        least, room = (1 + _VIOLATED) * 2 * problem.rho, min(_ADDED, most_units - len(units))
        if time.perf_counter() > ends or room < 1 or float(found.values[0]) <= least:
            return False
        new = found.distinct(problem.phi, problem.X, least, room)
        answers = problem.phi.of(problem.X @ new.w.T + new.b).T @ V
        units = fitted(problem, units.joined(new.w, new.b, normalize(answers, dim=1)))
        if inputs > 2:
            slid = fitted(problem, _slid(problem, units))
            units = min(units, slid, key=problem.objective)


def _begun(problem: OneLayer, units: Units, most: int) -> Units:
    """Return drawn units through drawn rows, fitted and slid: where many slide, few are missing."""
    X, outputs = problem.X, problem.scores.targets.shape[1]
    generator = torch.Generator().manual_seed(0)
    count = min(most, _DRAWN)
    w = normalize(torch.randn(count, X.shape[1], generator=generator, dtype=X.dtype), dim=1).to(X)
    z = normalize(torch.randn(count, outputs, generator=generator, dtype=X.dtype), dim=1).to(X)
    b = -(w * X[torch.randint(len(X), (count,), generator=generator)]).sum(1)
    drawn = fitted(problem, units.joined(w, b, z))
    return fitted(problem, _slid(problem, drawn)) if len(drawn) else drawn


def _proven(problem: OneLayer, V: Tensor, goal: float, seconds: float) -> tuple[Answers, float]:
    """Return units that answer much, and what no unit answers more than, `goal` where it can be."""
    if problem.X.shape[1] <= 2:
        found = exact(problem.phi, problem.X, V)
        return found, float(found.values[0])
    branches = Branches(problem.phi, problem.X, V)
    most = branches.tightened(goal, seconds)
    return ascended(problem.phi, problem.X, V, branches.best[0]), most


def searched(
    problem: OneLayer, units: Units, V: Tensor, generator: torch.Generator
) -> tuple[Answers, float | None]:
    """Return units that answer most, and where that is proven by how much."""
    samples, inputs = problem.X.shape
    if inputs == 1 or (inputs == 2 and samples <= _SWEPT):
        found = exact(problem.phi, problem.X, V)
        return found, float(found.values[0])
    if inputs == 2:
        some = torch.randperm(samples, generator=generator)[:_SWEPT].to(V.device)
        return exact(problem.phi, problem.X, V, some), None
    drawn = torch.randn(_STARTS, inputs, generator=generator, dtype=V.dtype).to(V)
    starts = torch.cat([normalize(drawn, dim=1), units.w, -units.w])
    return ascended(problem.phi, problem.X, V, starts), None


def _goal(problem: OneLayer, V: Tensor, objective: float, gap: float) -> float | None:
    """Return what units may answer at most for the gap to be proven; None where none may."""
    low, high = 2 * problem.rho, 2e6 * problem.rho
    if objective - problem.bound(V, low) > gap * objective:
        return None
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        enough = objective - problem.bound(V, middle) <= gap * objective
        low, high = (middle, high) if enough else (low, middle)
    return low


def _slid(problem: OneLayer, units: Units) -> Units:
    """Return what L-BFGS makes of all weights of the network, |w|^2 + |a|^2 in place of 2 t."""
    X, phi, rho, linear = problem.X, problem.phi, problem.rho, problem.linear or 0.0
    root = units.t.sqrt()
    first = [units.w * root[:, None], units.b * root, units.z * root[:, None], units.c]
    if units.Q is not None:
        first.append(units.Q)
    sizes = [part.numel() for part in first]

    def split(point: np.ndarray[Any, Any]) -> list[Tensor]:
        parts = torch.from_numpy(point).to(X).split(sizes)
        return [part.view(like.shape) for part, like in zip(parts, first, strict=True)]

    def flat(parts: list[Tensor]) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = torch.cat([x.flatten() for x in parts]).cpu().numpy()
        return found

    def objective(point: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
        w, b, a, c, *Q = split(point)
        u = X @ w.T + b
        h = phi.of(u)
        f = h @ a + c + sum(X @ x for x in Q)
        V = problem.scores.residuals(f)
        back = -(V @ a.T) * phi.slope(u)
        slopes = [back.T @ X + 2 * rho * w, back.sum(0), 2 * rho * a - h.T @ V, -V.sum(0)]
        slopes += [2 * linear * x - X.T @ V for x in Q]
        paid = rho * (w.square().sum() + a.square().sum())
        paid = paid + sum(linear * x.square().sum() for x in Q)
        return float(problem.scores.value(f) + paid), flat(slopes)

    found, _ = lbfgs(objective, flat(first), _STEPS, 30, 1e-13, 1e-9)
    w, b, a, c, *Q = split(found)
    length, height = w.norm(dim=1), a.norm(dim=1)
    kept = length * height > 0
    w, b, a, length, height = (part[kept] for part in (w, b, a, length, height))
    z, t = a / height[:, None], length * height
    return Units(w / length[:, None], b / length, z, t, c, Q[0] if Q else None)
