"""State fits with quadratic links by conjugate gradients on the dual."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from liftednet.divergences import Raw
from liftednet.problems import StateFit, Subproblem
from liftednet.problems.chunks import row_chunks
from liftednet.solution import Solution

from .base import Solver, default_tolerance, judged
from .conjugate import advance, moved, starting_point
from .dual_rows import DualRows, SharedMap, dual_rows, shared_map

_PATIENCE = {torch.float32: 16, torch.float64: 64}  # steps in which a violation must fall
_NEWTON_STEPS = 150
_RESISTANCE = 30  # Newton steps in which the largest violation must fall
_COARSE = 7e-6  # relative violation that float32 reaches without trouble


@dataclass(frozen=True)
class Dual(Solver[StateFit, Tensor, SharedMap]):
    """Solves a state fit with quadratic links by conjugate gradients on its dual.

    With A = [sqrt(lam_k L_k / lam) W_k] the fit is min Phi(Z) - <Z, U> + |Z A - h|^2 / 2. Its dual
    min |y + h|^2 / 2 + Phi*(U - y A') is smooth for every activation, asks for the forward map
    alone, and has one preconditioner (I + A'A L / 2)^-1 for all samples, diagonal after a
    rotation of y. Samples that are done leave the batch; float32 leads, float64 finishes, and
    the few samples that resist, in very ill-conditioned fits, get Newton steps of their own.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-8 in float64, 1e-5 in float32.
        max_iterations: steps in each precision.
    """

    tolerance: float | None = None
    max_iterations: int = 1_000
    name: str = field(default="dual", init=False)

    def obstacle(self, problem: Subproblem[Any]) -> str | None:
        """Ask for a state fit with quadratic links and a Lipschitz constant."""
        if not isinstance(problem, StateFit):
            return "it solves state fits alone"
        activation = problem.divergence.activation
        if isinstance(problem.divergence, Raw):
            return f"{activation!r} is a raw divergence"
        if activation.lipschitz is None:
            return f"it needs a Lipschitz constant of {activation!r}"
        if not problem.links:
            return "it needs a link"
        if not all(link.divergence.quadratic for link in problem.links):
            return 'it needs links with a quadratic divergence (divergence="joint")'
        return None

    def suits(self, problem: StateFit) -> bool:
        """Say whether the links have few units, or the activation no prox in closed form."""
        columns = sum(link.weight.shape[1] for link in problem.links)
        return 3 * columns <= 2 * problem.units or not problem.divergence.activation.declares(
            "prox"
        )

    def prepare(self, problem: StateFit, previous: SharedMap | None = None) -> SharedMap:
        """Return the links' weights in rotated coordinates, the previous ones if they serve."""
        if previous is not None and previous.serves(problem):
            return previous
        return shared_map(problem)

    def solve(
        self, problem: StateFit, start: Tensor | None = None, cache: SharedMap | None = None
    ) -> Solution[Tensor]:
        """Return the minimizer to the tolerance."""
        started = time.perf_counter()
        shared = self.prepare(problem, cache)
        tolerance = self.tolerance or default_tolerance(problem.pre_activation.dtype)
        value = problem.pre_activation.new_empty(problem.samples, problem.units)
        steps = 0
        for part in row_chunks(problem.samples, problem.units, value.device):
            rows, scale = dual_rows(problem, shared, part), largest_term(problem, part)
            begin = None if start is None else start[part]
            value[part], used = self._states(rows, begin, tolerance * scale, _COARSE * scale)
            steps = max(steps, used)
        return judged(problem, value, steps, started, tolerance, self.name)

    def _states(
        self, rows: DualRows, start: Tensor | None, goal: float, coarse: float
    ) -> tuple[Tensor, int]:
        """Return the states of these samples, and the steps taken."""
        quick, exact, steps = rows.to(torch.float32), rows.to(torch.float64), 0
        y = (quick if start is None else exact).multipliers(start)
        if start is None or self._is_late(exact, y, goal):
            y, _, steps = self._descend(quick, y.float(), max(goal, coarse))
        y, u, more = self._descend(exact, y.double(), goal)
        if exact.activation.per_unit:
            u, last = self._finish(exact, y, u, goal)
            more += last
        return exact.forward(u).to(rows.u), steps + more

    def _finish(self, rows: DualRows, y: Tensor, u: Tensor, goal: float) -> tuple[Tensor, int]:
        """Return u - y A' with the samples that conjugate gradients left over solved by Newton."""
        violation, most = rows.violation(rows.gradient(y, u)), 0
        late = (violation > goal).nonzero()[:, 0]
        for part in row_chunks(len(late), y.shape[1] * max(y.shape[1], u.shape[1])):
            some = late[part]
            u[some], steps = _newton(rows.rows(some), y[some], goal)
            most = max(most, steps)
        return u, most

    def _is_late(self, rows: DualRows, y: Tensor, goal: float) -> bool:
        return bool((rows.violation(rows.gradient(y, rows.pre_activation(y))) > goal).any())

    def _descend(self, rows: DualRows, y: Tensor, goal: float) -> tuple[Tensor, Tensor, int]:
        """Return y and u - y A' where the violation is within the goal, or no longer falls."""
        at, left = starting_point(rows, y), torch.arange(len(y), device=y.device)
        earlier = torch.full_like(at.decrease[:, 0], torch.inf)
        y, u, steps = at.y.clone(), at.u.clone(), 0
        while True:
            violation = rows.violation(at.gradient)
            unfinished = violation > goal
            if steps % _PATIENCE[y.dtype] == 0:
                unfinished &= violation < 0.7 * earlier
                earlier = violation
            count = int(unfinished.sum())
            if count < 0.75 * len(left) or steps == self.max_iterations:
                y[left], u[left] = at.y, at.u
                rows, at, left = rows.rows(unfinished), at.rows(unfinished), left[unfinished]
                earlier = earlier[unfinished]
            if count == 0 or steps == self.max_iterations:
                return y, u, steps
            steps += 1
            at = advance(rows, at, steps)


def _newton(rows: DualRows, y: Tensor, goal: float) -> tuple[Tensor, int]:
    """Return u - y A' after semismooth Newton steps with an exact line search."""
    at, best, steps = starting_point(rows, y), torch.inf, 0
    while steps < _NEWTON_STEPS:
        worst = float(rows.violation(at.gradient).max())
        if worst <= goal or (steps % _RESISTANCE == 0 and worst > 0.9 * best):
            break
        best = worst if steps % _RESISTANCE == 0 else best
        steps += 1
        at.direction = rows.newton_direction(at.u, at.gradient)
        at.step = torch.ones_like(at.step)
        at = moved(rows, at)
    return at.u, steps


def largest_term(problem: StateFit, part: slice) -> float:
    """Return the largest entry of U and of the links' V W' / lam for these samples, and 1."""
    scale = max(1.0, float(problem.pre_activation[part].abs().max()))
    for link in problem.links:
        pull = link.lam / problem.lam * (link.target[part].float() @ link.weight.float().T)
        scale = max(scale, float(pull.abs().max()))
    return scale
