"""State fits with quadratic links by conjugate gradients on the dual."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from liftednet.divergences import Raw
from liftednet.problems import Fit, StateFit
from liftednet.problems.state_fit import reach
from liftednet.solution import Solution

from . import deferred
from .base import Solver, default_tolerance, device_chunks, judged
from .conjugate import Point, advance, moved, starting_point
from .dual_rows import DualRows, SharedMap, dual_rows, shared_map
from .unfinished import Unfinished, unfinished

_PATIENCE = {torch.float32: 16, torch.float64: 64}  # steps in which a violation must fall
_NEWTON_STEPS = 150
_RESISTANCE = 30  # Newton steps in which the largest violation must fall
_COARSE = 7e-6  # relative violation that float32 reaches without trouble


@dataclass
class _Place:
    """Where conjugate gradients stand, and the violation by which they are patient."""

    point: Point
    earlier: Tensor

    def rows(self, keep: Tensor) -> _Place:
        return _Place(self.point.rows(keep), self.earlier[keep])


_Batch = Unfinished[DualRows, _Place]


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

    Example:
        >>> import torch
        >>> from liftednet import Link, StateFit
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> from liftednet.solvers import Dual, solve
        >>> link = Link(joint(ReLU()), torch.eye(2), torch.zeros(2), torch.ones(1, 2))
        >>> solve(StateFit(joint(ReLU()), torch.tensor([[2.0, -2.0]]), (link,)), Dual()).value
        tensor([[1.5000, 0.0000]])
    """

    tolerance: float | None = None
    max_iterations: int = 1_000
    name: str = field(default="dual", init=False)

    def obstacle(self, problem: Fit[Any]) -> str | None:
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
        if not problem.matrices:
            return "it needs links through a matrix that all samples share"
        if not all(link.divergence.quadratic for link in problem.links):
            return 'it needs links with a quadratic divergence (divergence="joint")'
        return None

    def suits(self, problem: StateFit) -> bool:
        """Say whether the links have few units, or the activation no prox in closed form."""
        columns = sum(link.weight.shape[1] for link in problem.links)
        return 3 * columns <= 2 * problem.units or not problem.divergence.activation.closed_prox

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
        for part in device_chunks(problem.samples, problem.units, value.device):
            rows, scale = dual_rows(problem, shared, part), largest_term(problem, part)
            begin = None if start is None else start[part]
            rough = max(tolerance, _COARSE) * scale
            value[part], used = self._states(rows, begin, tolerance * scale, rough)
            steps = max(steps, used)
        return judged(problem, value, steps, started, tolerance, self.name)

    def _states(
        self, rows: DualRows, start: Tensor | None, goal: float, rough: float
    ) -> tuple[Tensor, int]:
        """Return the states of these samples, and the steps taken."""
        exact, quick = rows.to(torch.float64), rows.to(torch.float32)
        if start is None:
            y, steps = self._led(quick, quick.multipliers(None), rough)
        else:
            y = exact.multipliers(start)
            u = exact.pre_activation(y)
            late = exact.violation(exact.gradient(y, u)) > goal
            if not deferred.stays_on_device(late) and not bool(late.any()):
                return exact.forward(u).to(rows.u), 0
            near, steps = self._led(quick, y.float(), rough)
            y = torch.where(late.unsqueeze(1), near.double(), y)
        batch, more = self._descend(exact, y.double(), goal)
        y, u = batch.results()
        if exact.activation.per_unit and not batch.all_solved:
            u, last = _finished(exact, y, u, goal)
            more += last
        return exact.forward(u).to(rows.u), steps + more

    def _led(self, rows: DualRows, y: Tensor, goal: float) -> tuple[Tensor, int]:
        batch, steps = self._descend(rows, y, goal)
        return batch.results()[0], steps

    def _descend(self, rows: DualRows, y: Tensor, goal: float) -> tuple[_Batch, int]:
        """Return the batch where violations are within the goal, or no longer fall."""
        begin = starting_point(rows, y)
        place = _Place(begin, torch.full_like(begin.decrease[:, 0], torch.inf))
        batch, steps = unfinished(rows, place, lambda place: (place.point.y, place.point.u)), 0
        while True:
            place = batch.at
            violation = batch.problem.violation(place.point.gradient)
            going = late = violation > goal
            if steps % _PATIENCE[y.dtype] == 0:
                going = late & (violation < 0.7 * place.earlier)
                place.earlier = violation
            if not batch.release(going, late) or steps == self.max_iterations:
                return batch, steps
            steps += 1
            place = batch.at
            place.point = advance(batch.problem, place.point, steps)
            place.point.direction = batch.resting(place.point.direction)


def _finished(rows: DualRows, y: Tensor, u: Tensor, goal: float) -> tuple[Tensor, int]:
    """Return u - y A' with the samples that conjugate gradients left over solved by Newton."""
    late = rows.violation(rows.gradient(y, u)) > goal
    if not deferred.stays_on_device(late):
        return _resisting(rows, y, u, goal, late.nonzero()[:, 0])
    found, steps = _resisting(rows, y, u.clone(), goal, torch.arange(len(u), device=u.device))
    return torch.where(late.unsqueeze(1), found, u), steps


def _resisting(
    rows: DualRows, y: Tensor, u: Tensor, goal: float, late: Tensor
) -> tuple[Tensor, int]:
    """Solve some samples by Newton's method, in u, and return it with the most steps taken."""
    most = 0
    for part in device_chunks(len(late), y.shape[1] * max(y.shape[1], u.shape[1]), u.device):
        some = late[part]
        u[some], steps = _newton(rows.rows(some), y[some], goal)
        most = max(most, steps)
    return u, most


def _newton(rows: DualRows, y: Tensor, goal: float) -> tuple[Tensor, int]:
    """Return u - y A' after semismooth Newton steps with an exact line search."""
    at, best, steps, looks = starting_point(rows, y), torch.inf, 0, deferred.Late[Point]()
    while steps < _NEWTON_STEPS:
        worst, then = looks.seen(rows.violation(at.gradient).max() / goal, at)
        if then is not None and worst <= 1:
            return then.u, steps
        if steps % _RESISTANCE == 0 and worst > 0.9 * best:
            break
        best = worst if steps % _RESISTANCE == 0 else best
        steps += 1
        direction = rows.newton_direction(at.u, at.gradient)
        at = moved(rows, replace(at, direction=direction, step=torch.ones_like(at.step)))
    return at.u, steps


def largest_term(problem: StateFit, part: slice) -> float:
    """Return the largest entry of the `terms` for these samples, and 1."""
    return deferred.largest(terms(problem, part), 1.0)


def terms(problem: StateFit, part: slice) -> Iterator[Tensor]:
    """Yield the reach of U and the links' V W' lam_k / lam for these samples, like Z each."""
    yield reach(problem.divergence.activation, problem.pre_activation[part])
    for link in problem.links:
        yield link.lam / problem.lam * (link.target[part].float() @ link.weight.float().T)
