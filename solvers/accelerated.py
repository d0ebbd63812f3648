"""Any block of a network by accelerated proximal gradient steps on all of it at once."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from liftednet.problems import BlockFit, Fit
from liftednet.solution import Solution, Status

from .base import Solver, default_tolerance, judged

_EASED, _RAISED = 0.9, 2.0  # of s after a step that the bound allows, and one that it does not
_ROUNDING = 1e-12
_STRICTER = 0.3  # where the violation is small, and may cost more


@dataclass
class _Walk:
    """Where the steps are: v, the point ahead of it, momentum, and the local smoothness s.

    Where the problem is not convex, the objective at v, too.
    """

    v: Tensor
    ahead: Tensor
    momentum: float
    s: float
    total: float = math.inf


@dataclass(frozen=True)
class Accelerated(Solver[BlockFit, Any, None]):
    """Solves a block fit of any maps, by products with them and their adjoints alone.

    v <- prox_{g / s}(y - gradient / s), s found by backtracking (Beck and Teboulle, 2009), with
    restarts (O'Donoghue and Candes, 2015). Where the problem is not convex, a step that would go
    uphill is taken again without momentum: it goes downhill to a stationary point.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-8 in float64, 1e-5 in float32.
        max_iterations: steps.

    Example:
        >>> from liftednet import Network, data
        >>> from liftednet.layers import convolution
        >>> from liftednet.losses import CrossEntropy
        >>> from liftednet.models import FullBatch, Lifted
        >>> from liftednet.solvers import Accelerated, solve
        >>> network, digits = Network(), data.digits()
        >>> outputs = network.loss(CrossEntropy(), convolution(network.input(1, 8, 8), 10, 8))
        >>> model = Lifted(network, method=FullBatch(sweeps=1))
        >>> fit = model.fit(digits.x_test.view(-1, 1, 8, 8), digits.y_test).subproblem("weights 1")
        >>> solve(fit, Accelerated(tolerance=1e-3)).status.name
        'SOLVED'
    """

    tolerance: float | None = None
    max_iterations: int = 5_000
    name: str = field(default="accelerated", init=False)

    def obstacle(self, problem: Fit[Any]) -> str | None:
        """Ask for a block fit, a prox, and Lipschitz constants."""
        if not isinstance(problem, BlockFit):
            return "it solves block fits alone"
        if problem.smoothness is None:
            return "it needs a Lipschitz constant of every activation above"
        return problem.block.obstacle()

    def solve(self, problem: BlockFit, start: Any = None, cache: None = None) -> Solution[Any]:
        """Return the minimizer to the tolerance, from a start or from zero made feasible."""
        started, exact = time.perf_counter(), problem.double()
        like = problem.like()
        tolerance = self.tolerance or default_tolerance(like.dtype)
        v = torch.zeros_like(like) if start is None else problem.block.packed(start)
        v = problem.block.prox(v.double(), 1e-12)
        largest = problem.smoothness or 1.0
        at, steps, goal = _Walk(v, v, 1.0, largest), 0, 0.5 * tolerance
        while steps < self.max_iterations:
            steps += 1
            at, off = _advance(exact, at, largest)
            if off <= goal:
                residual = exact.measure(problem.block.unpacked(at.v)).residual
                if not residual > tolerance or goal < _ROUNDING:
                    break
                goal *= _STRICTER  # what it costs falls with the square
        unfinished = Status.ITERATION_LIMIT if steps == self.max_iterations else Status.STALLED
        value = problem.block.unpacked(at.v)
        return judged(problem, value, steps, started, tolerance, self.name, unfinished)


def _advance(problem: BlockFit, at: _Walk, largest: float) -> tuple[_Walk, float]:
    """Return the walk after one step, and the violation at the point ahead, relatively."""
    terms = problem.terms(at.ahead)
    gradient, value = sum(terms[1:], terms[0]), problem.smooth_value(at.ahead)
    scale = float(torch.stack([term.abs().max() for term in terms]).max())
    s = at.s
    while True:
        following = problem.block.prox(at.ahead - gradient / s, 1 / s)
        moved, reached = following - at.ahead, problem.smooth_value(following)
        bound = value + (gradient * moved).sum() + s / 2 * moved.square().sum()
        slack = _ROUNDING * (1 + abs(float(value)))
        if s >= largest or bool(reached <= bound + slack):
            break
        s = min(_RAISED * s, largest)
    off = s * float(moved.abs().max()) / (scale or 1.0)
    total = at.total if problem.convex else float(reached + problem.block.value(following))
    if total > at.total + _ROUNDING * (1 + abs(at.total)):  # a step from v itself goes downhill
        return replace(at, ahead=at.v, momentum=1.0, s=s), math.inf
    change = following - at.v
    momentum = 1.0 if bool((moved * change).sum() < 0) else at.momentum
    larger = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
    ahead = following + (momentum - 1) / larger * change
    return _Walk(following, ahead, larger, _EASED * s, total), off
