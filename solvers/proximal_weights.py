"""Weight fits with a penalty or constraint on W that has a prox."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from liftednet.divergences import Joint
from liftednet.problems import Fit, WeightFit, Weights
from liftednet.samples import largest_eigenvalue
from liftednet.solution import Solution, Status

from .base import Solver, default_tolerance, judged
from .dense_newton import is_small
from .proximal_newton import proximal, proximal_newton

_PATIENCE = 500  # steps in which the movement must fall
_MARGIN = 0.01  # of the tolerance: where curvature is small, its edge may still be far off


@dataclass(frozen=True)
class ProximalWeights(Solver[WeightFit, Weights, None]):
    """Solves a weight fit with any proximable penalty by accelerated proximal gradient.

    W <- prox_{pi / s}(W - gradient / s), s = lam L |[X, 1]|_2^2; Beck and Teboulle (2009),
    restarted as O'Donoghue and Candes (2015). A quadratic divergence needs the Gram matrix alone,
    and b, which has no penalty, is then at its minimum for every W: steps see the Gram matrix about
    the mean of X. Small fits that resist are finished by Newton steps.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-8 in float64, 1e-5 in float32.
        max_iterations: steps.

    Example:
        >>> import torch
        >>> from liftednet import Design, WeightFit
        >>> from liftednet.activations import Identity
        >>> from liftednet.divergences import joint
        >>> from liftednet.penalties import L1
        >>> from liftednet.solvers import ProximalWeights, solve
        >>> x, y = torch.eye(2), torch.tensor([[3.0], [0.5]])
        >>> fit = WeightFit(joint(Identity()), Design(x, bias=False), y, L1(1.0))
        >>> solve(fit, ProximalWeights()).value.matrix.flatten()
        tensor([2., 0.])
    """

    tolerance: float | None = None
    max_iterations: int = 50_000
    name: str = field(default="proximal-weights", init=False)

    def obstacle(self, problem: Fit[Any]) -> str | None:
        """Ask for a weight fit, a Lipschitz constant and a penalty with a prox."""
        if not isinstance(problem, WeightFit):
            return "it solves weight fits alone"
        if problem.divergence.smoothness is None:
            return f"it needs a Lipschitz constant of {problem.divergence.activation!r}"
        if not problem.penalty.proximable:
            return f"it needs `prox` of {type(problem.penalty).__name__}"
        if not problem.penalty.closed_form:  # thousands of steps, and one of CVXPY's solves in each
            return f"it needs `prox` of {type(problem.penalty).__name__} in closed form"
        return None

    def solve(
        self, problem: WeightFit, start: Weights | None = None, cache: None = None
    ) -> Solution[Weights]:
        """Return the minimizer to the tolerance."""
        started = time.perf_counter()
        tolerance = self.tolerance or default_tolerance(problem.targets.dtype)
        design = problem.design.centered
        begin = design.joined(problem.zeros() if start is None else start)
        goal = _MARGIN * tolerance
        value, steps, reached = self._descend(problem, begin, goal)
        if not reached and is_small(problem):
            value, more = proximal_newton(problem, value, goal)
            steps += more
        unfinished = Status.ITERATION_LIMIT if steps == self.max_iterations else Status.STALLED
        weights = design.split(value)
        return judged(problem, weights, steps, started, tolerance, self.name, unfinished)

    def _descend(self, problem: WeightFit, start: Tensor, goal: float) -> tuple[Tensor, int, bool]:
        mean, steep, smoothness = _about_the_mean(problem)
        if mean is not None:
            start = start.clone()
            start[-1] -= problem.gradient(start)[0][-1] / steep
        value, ahead, momentum = start, start, 1.0
        steps, best, since = 0, torch.inf, 0
        while steps < self.max_iterations and steps - since <= _PATIENCE:
            steps += 1
            gradient, scale = problem.gradient(ahead)
            following = proximal(problem, ahead - gradient / smoothness, 1 / smoothness)
            moved, change = ahead - following, following - value
            if mean is not None:
                following[-1] = ahead[-1] - gradient[-1] / steep + mean @ moved[:-1]
                change, moved[-1] = following - value, 0.0
            back = not problem.penalty.convex or bool((moved * change).sum() > 0)
            momentum = 1.0 if back else momentum
            larger = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
            ahead = following + (momentum - 1) / larger * change
            value, momentum = following, larger
            share = smoothness * float((moved / scale).abs().max())
            if share <= goal:
                return following, steps, True
            if share < 0.9 * best:
                best, since = share, steps
        return value, steps, False


def _about_the_mean(problem: WeightFit) -> tuple[Tensor | None, float, float]:
    """Return the mean of X where b follows W in closed form, and the smoothness in b and in W."""
    whole, design = problem.smoothness or 1.0, problem.design.centered
    if not design.bias or design.wide or not isinstance(problem.divergence, Joint):
        return None, whole, whole
    total, mass = design.gram[-1, :-1], design.gram[-1, -1]
    about = largest_eigenvalue(design.gram[:-1, :-1] - total.outer(total / mass))
    lam = problem.lam * problem.divergence.smoothness
    least = torch.finfo(torch.float64).eps * whole
    return total / mass, lam * float(mass), max(lam * about, least)
