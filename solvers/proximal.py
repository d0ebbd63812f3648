"""State fits by accelerated proximal gradient steps, for any activation with a prox."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from torch import Tensor

from liftednet.divergences import Raw
from liftednet.problems import StateFit, Subproblem
from liftednet.solution import Solution
from .base import Solver, default_tolerance, judged


@dataclass(frozen=True)
class Proximal(Solver[StateFit, Tensor, None]):
    """Solves a state fit by accelerated proximal gradient with restarts.

    Z <- prox_{lam Phi / s}(Y - (gradient of the links at Y - lam U) / s) with s the smoothness of
    the links; Beck and Teboulle (2009), restarted as O'Donoghue and Candes (2015).

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-8 in float64, 1e-5 in float32.
        max_iterations: steps.
    """

    tolerance: float | None = None
    max_iterations: int = 20_000
    name: str = field(default="proximal", init=False)

    def obstacle(self, problem: Subproblem) -> str | None:
        """Ask for a state fit, a prox, and links with Lipschitz constants."""
        if not isinstance(problem, StateFit):
            return "it solves state fits alone"
        if isinstance(problem.divergence, Raw):
            return f"{problem.divergence.activation!r} is a raw divergence"
        activation = problem.divergence.activation
        if not (activation.per_unit or activation.declares("prox")):
            return f"it needs `prox` of {activation!r}"
        for link in problem.links:
            if link.divergence.smoothness is None:
                return f"it needs a Lipschitz constant of {link.divergence.activation!r}"
        return None

    def prepare(self, problem: StateFit, previous: None = None) -> None:
        """Return nothing: the steps need no factor."""

    def solve(
        self, problem: StateFit, start: Tensor | None = None, cache: None = None
    ) -> Solution[Tensor]:
        """Return the minimizer to the tolerance."""
        started = time.perf_counter()
        activation = problem.divergence.activation
        tolerance = self.tolerance or default_tolerance(problem.pre_activation.dtype)
        value = activation.forward(problem.pre_activation) if start is None else start
        step = problem.smoothness or 0.0
        if step == 0.0:
            value = activation.forward(problem.pre_activation)
            return judged(problem, value, 0, started, tolerance, self.name)
        ahead, momentum, steps = value, 1.0, 0
        for steps in range(1, self.max_iterations + 1):
            gradient, scale = _gradient(problem, ahead)
            following = activation.prox(ahead - gradient / step, problem.lam / step)
            moved = ahead - following
            if step * float(moved.abs().max()) <= 0.3 * tolerance * scale:
                value = following
                break
            if float((moved * (following - value)).sum()) > 0:
                momentum = 1.0
            larger = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
            ahead = following + (momentum - 1) / larger * (following - value)
            value, momentum = following, larger
        return judged(problem, value, steps, started, tolerance, self.name)


def _gradient(problem: StateFit, states: Tensor) -> tuple[Tensor, float]:
    """Return the gradient of all but Phi at Z, and the largest entry of its terms."""
    gradient = -problem.lam * problem.pre_activation
    scale = max(problem.lam, float(gradient.abs().max()))
    for link in problem.links:
        slope = link.divergence.link_gradient(link.pre_activation(states)) - link.target
        push = link.lam * slope @ link.weight.T
        scale = max(scale, float(push.abs().max()))
        gradient = gradient + push
    return gradient, scale

