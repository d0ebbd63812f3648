"""Units one by one to the global optimum: what is missing most is added, until nothing is."""

from __future__ import annotations

import math
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
from .oracle import Answers, Found, Kind, ascended, exact
from .problem import OneLayer, Units

_ADDED = 30  # units of a round at most
_DRAWN = 100  # units that more than two inputs begin with
_CELLS, _CELLS_A_SECOND = 30, 1e8  # an input that a proof takes, and as many times rows
_STARTS = 200  # random directions of a local search
_SWEPT_A_SECOND = 1e6  # cubes of rows in space
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
        passed: by how much limits are passed.
    """

    units: Units
    objective: float
    bound: float
    missing: Answers
    passed: float

    @property
    def gap(self) -> float:
        """(objective - bound) / objective, 1 where limits are passed."""
        if self.passed > 0:
            return 1.0
        return 0.0 if self.objective <= 0 else 1.0 - self.bound / self.objective


def rounds(
    problem: OneLayer,
    units: Units,
    most_units: int,
    gap: float,
    seconds: float,
    number: int = 0,
    bound: float = 0.0,
) -> Generator[Round, None, str]:
    """Yield one round after another, of lower and lower objectives.

    Each adds the units that answer residuals most and fits all amplitudes; beyond two inputs all
    units slide together, too (Denoyelle, Duval, Peyre and Soubies, The Sliding Frank-Wolfe
    Algorithm, 2019). Where no unit is found that would lower the objective by more than the gap,
    that there is none is proven: exactly in one and two inputs, by branch and bound beyond, of
    which three inputs and one output are swept exactly where that takes no longer.

    Args:
        problem: the network and its data.
        units: to begin with, of amplitudes that are `fitted`.
        most_units: that there may be.
        gap: the relative one that is asked for.
        seconds: until when a new round or a proof goes on; half of it is left for a proof.
        number: of the first round, which random directions are drawn by.
        bound: that is known.

    Returns:
        Why the gap is not proven, in words; "" where it is.
    """
    ends = time.perf_counter() + seconds
    inputs = max(len(kind.seen) for kind in problem.kinds)
    cells = _CELLS**inputs * len(problem.kinds) * len(problem.X)
    reserve = seconds / 2 if cells < _CELLS_A_SECOND * seconds else 0.0
    if inputs > 2 and not len(units):
        units = _begun(problem, units, most_units)
    while True:
        generator = torch.Generator().manual_seed(number)
        V, objective = problem.residuals(problem.f(units), units.prices), problem.objective(units)
        found, most = searched(problem, units, V, generator)
        goal = None if most is not None else _goal(problem, V, units.prices, objective, gap)
        reached, left = float(found.values[0]), ends - time.perf_counter()
        late = left < reserve  # which is left for a proof of what there is
        if most is None and (late or (goal is not None and reached <= goal)):
            others, most = _proven(problem, V, max(goal or 0.0, reached), left)
            found = others if others.values[0] > found.values[0] else found
        if most is not None:
            bound = max(bound, problem.bound(V, units.prices, most))
        now, number = Round(units, objective, bound, found, problem.passed(units)), number + 1
        yield now
        if now.gap <= gap:
            return ""
        least, room = (1 + _VIOLATED) * 2 * problem.rho, min(_ADDED, most_units - len(units))
        if time.perf_counter() > ends:
            return f"its {seconds:g} s are over"
        if float(found.values[0]) <= least:
            return "no unit is found that would lower the objective, nor proven that there is none"
        if room < 1:
            return f"more units than the {most_units} that there may be would lower the objective"
        each = [x.units - int((units.kind == n).sum()) for n, x in enumerate(problem.kinds)]
        new = found.distinct(problem.phi, problem.X, least, room, each)
        z = problem.outputs(new.w, new.b, new.kind, V)
        units = fitted(problem, units.joined(new.w, new.b, z, new.kind))
        if inputs > 2:
            slid = fitted(problem, _slid(problem, units))
            units = min(units, slid, key=lambda x: (problem.passed(x), problem.objective(x)))


def _begun(problem: OneLayer, units: Units, most: int) -> Units:
    """Return drawn units through drawn rows, fitted and slid: where many slide, few are missing."""
    X, targets = problem.X, problem.scores.targets
    generator = torch.Generator().manual_seed(0)
    share = min(most, _DRAWN) // len(problem.kinds)
    for number, kind in enumerate(problem.kinds):
        count = min(kind.units, share) if len(kind.seen) else 0
        w = torch.randn(count, len(kind.seen), generator=generator, dtype=X.dtype).to(X)
        w = kind.whole(kind.turned(w), X.shape[1])
        z = torch.randn(count, targets.shape[1], generator=generator, dtype=X.dtype).to(X)
        z = normalize(z, dim=1) if kind.z is None else kind.z.expand_as(z)
        b = -(w * X[torch.randint(len(X), (count,), generator=generator)]).sum(1)
        units = units.joined(w, b, z, torch.full((count,), number, device=X.device))
    drawn = fitted(problem, units)
    return fitted(problem, _slid(problem, drawn)) if len(drawn) else drawn


def _proven(problem: OneLayer, V: Tensor, goal: float, seconds: float) -> tuple[Answers, float]:
    """Return units that answer much, and what no unit answers more than, `goal` where it can be."""
    ends, parts, least = time.perf_counter() + seconds, list[tuple[Kind, Found]](), 0.0
    for number, kind in enumerate(problem.kinds):
        X, R = kind.inputs(problem.X), kind.residuals(V)
        if len(kind.seen) > 2:
            branches = Branches(problem.phi, X, R, kind)
            left = (ends - time.perf_counter()) / (len(problem.kinds) - number)
            sweep = len(X) ** 3 / _SWEPT_A_SECOND  # in three inputs, for one output
            sweeps = len(kind.seen) == 3 and R.shape[1] == 1 and sweep < left / 2
            most = branches.tightened(goal, sweep if sweeps else left)
            if sweeps and branches.most <= goal < most:
                found = exact(problem.phi, X, R, kind)
                most = float(found[2].max())
            else:
                found = ascended(problem.phi, X, R, branches.best[0], kind)
        else:
            found = exact(problem.phi, X, R, kind)
            most = float(found[2].max())
        least, parts = max(least, most), [*parts, (kind, found)]
    return Answers.ordered(parts, problem.X.shape[1]), least


def searched(
    problem: OneLayer, units: Units, V: Tensor, generator: torch.Generator
) -> tuple[Answers, float | None]:
    """Return units that answer most, and where that is proven by how much."""
    parts, proven = list[tuple[Kind, Found]](), True
    for number, kind in enumerate(problem.kinds):
        X, R, inputs = kind.inputs(problem.X), kind.residuals(V), len(kind.seen)
        if inputs > 2:
            drawn = torch.randn(_STARTS, inputs, generator=generator, dtype=V.dtype).to(V)
            w = kind.inputs(units.w[units.kind == number])
            w = kind.turned(torch.cat([drawn, w, -w]))
            parts.append((kind, ascended(problem.phi, X, R, w, kind)))
        else:
            some = inputs == 2 and len(X) > _SWEPT
            rows = torch.randperm(len(X), generator=generator)[:_SWEPT] if some else None
            parts.append((kind, exact(problem.phi, X, R, kind, rows)))
        proven = proven and (inputs <= 1 or (inputs == 2 and len(V) <= _SWEPT))
    answers = Answers.ordered(parts, problem.X.shape[1])
    return answers, float(answers.values[0]) if proven else None


def _goal(
    problem: OneLayer, V: Tensor, prices: Tensor, objective: float, gap: float
) -> float | None:
    """Return what units may answer at most for the gap to be proven; None where none may."""
    low, high = 2 * problem.rho, 2e6 * problem.rho
    if objective - problem.bound(V, prices, low) > gap * objective:
        return None
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        enough = objective - problem.bound(V, prices, middle) <= gap * objective
        low, high = (middle, high) if enough else (low, middle)
    return low


def _slid(problem: OneLayer, units: Units) -> Units:
    """Return what L-BFGS makes of all weights of the network, |w|^2 + |a|^2 in place of 2 t.

    Weights keep their signs, and limits are held by squares with the prices that there are.
    """
    X, phi, rho, linear = problem.X, problem.phi, problem.rho, problem.linear or 0.0
    root, limits = units.t.sqrt(), problem.limits
    first = [units.w * root[:, None], units.b * root, units.z * root[:, None], units.c]
    if units.Q is not None:
        first.append(units.Q)
    sizes = [part.numel() for part in first]
    ends, along = _ends(problem, units)

    def split(point: np.ndarray[Any, Any]) -> list[Tensor]:
        parts = torch.from_numpy(point).to(X).split(sizes)
        return [part.view(like.shape) for part, like in zip(parts, first, strict=True)]

    def flat(parts: list[Tensor]) -> np.ndarray[Any, Any]:
        return torch.cat([x.flatten() for x in parts]).cpu().numpy()

    def objective(point: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
        w, b, a, c, *Q = split(point)
        u = X @ w.T + b
        h = phi.of(u)
        f = h @ a + c + sum(X @ x for x in Q)
        V, paid = problem.scores.residuals(f), rho * (w.square().sum() + a.square().sum())
        if limits is not None:
            excess = limits.excess(f, units.prices, limits.mu)
            V = V - limits.mu * limits.pulled(V, excess.cpu().numpy())
            paid = paid + limits.mu / 2 * excess.square().sum()
        back = -(V @ a.T) * phi.slope(u)
        up = 2 * rho * a - h.T @ V
        up = torch.where(along.any(1, keepdim=True), (up * along).sum(1, keepdim=True) * along, up)
        slopes = [back.T @ X + 2 * rho * w, back.sum(0), up, -V.sum(0)]
        slopes += [2 * linear * x - X.T @ V for x in Q]
        paid = paid + sum(linear * x.square().sum() for x in Q)
        return float(problem.scores.value(f) + paid), flat(slopes)

    held = [torch.full_like(x, math.inf) for x in first]
    sides = [flat([*side, *held[len(side) :]]) for side in ends]
    free = bool(np.isinf(sides).all())
    limited = None if free else (-sides[0], sides[1])
    found, _ = lbfgs(objective, flat(first), _STEPS, 30, 1e-13, 1e-9, limited)
    w, b, a, c, *Q = split(found)
    length, height = w.norm(dim=1), a.norm(dim=1)
    kept = length * height > 0
    w, b, a, length, height = (part[kept] for part in (w, b, a, length, height))
    z, t = a / height[:, None], length * height
    return Units(
        w / length[:, None], b / length, z, t, units.kind[kept], c, units.prices,
        Q[0] if Q else None,
    )  # fmt: skip


def _ends(problem: OneLayer, units: Units) -> tuple[list[list[Tensor]], Tensor]:
    """Return how far w, b and a may fall below 0 and rise above it; and z where given, else 0."""
    below, above = torch.zeros_like(units.w), torch.zeros_like(units.w)
    free, along = torch.full_like(units.b, math.inf), torch.zeros_like(units.z)
    for number, kind in enumerate(problem.kinds):
        own = units.kind == number
        for sides, sign in ((below, 1.0), (above, -1.0)):
            side = torch.zeros_like(problem.X[0])
            side[kind.seen] = torch.where(kind.signs == sign, 0.0, math.inf).to(side)
            sides[own] = side
        if kind.z is not None:
            along[own] = kind.z
    down, up = (torch.where(s * along > 0, 0.0, math.inf).to(along) for s in (1.0, -1.0))
    return [[below, free, down], [above, free, up]], along
