"""States of a recurrent layer by Newton steps that are exact over time."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from liftednet.problems.states_over_time import Linearized, StatesOverTime, best_start

from .base import Solver

_CHUNK_BYTES = 2**28  # of factors at a time
_CHUNK_BYTES_ON_GPU = 2**32
_HALVINGS = 20


@dataclass(frozen=True)
class NewtonOverTime(Solver[StatesOverTime, Tensor, None]):
    """Solves all steps at once by semismooth Newton steps, each exact over time.

    Z = prox_{lam Phi / s}(Z - g / s) is linearized. Where the prox is flat (a state at its bound)
    the state is held, elsewhere lam / phi' is its curvature: an active-set method for the ReLU
    and clipped, Newton's for smooth activations. The linear system is block-tridiagonal for each
    sample; eliminated from the last step to the first, every pivot is at least lam / L, however
    much W expands. A sample whose objective would rise takes a shorter step, at last a proximal
    gradient step, which lowers it.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-8 in float64, 1e-5 in float32.
        max_iterations: Newton steps.

    Example:
        >>> import torch
        >>> from liftednet.problems import StatesOverTime
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> from liftednet.solvers import NewtonOverTime, solve
        >>> drive, recurrent = torch.ones(2, 1, 1), torch.full((1, 1), 0.5)
        >>> fit = StatesOverTime(joint(ReLU()), drive, recurrent, (), torch.tensor([2]))
        >>> solution = solve(fit, NewtonOverTime())
        >>> solution.value.flatten(), solution.iterations
        (tensor([1.0000, 1.5000]), 0)
    """

    tolerance: float | None = None
    max_iterations: int = 100
    kind = StatesOverTime
    name: str = field(default="newton-over-time", init=False)

    def refusal(self, problem: StatesOverTime) -> str | None:
        """Ask for units that act by themselves, and Lipschitz constants."""
        if not problem.divergence.activation.per_unit:
            return f"it needs an activation unit by unit, not {problem.divergence.activation!r}"
        if problem.smoothness is None:
            return f"it needs a Lipschitz constant of {problem.divergence.activation!r}"
        return None

    def minimize(
        self, problem: StatesOverTime, start: Tensor | None, cache: None, tolerance: float
    ) -> tuple[Tensor, int]:
        """Return the states to the tolerance, a stationary point where D is tight."""
        states = best_start(problem) if start is None else start.clone()
        exact, steps = problem.double(), 0
        units = problem.drive.shape[2]
        room = _CHUNK_BYTES_ON_GPU if states.is_cuda else _CHUNK_BYTES
        size = max(1, room // (16 * units * (units + 1) * problem.steps))
        for part in torch.arange(states.shape[1], device=states.device).split(size):
            value, taken = self._newton(exact.take(part), states[:, part].double(), tolerance)
            states[:, part] = value.to(states)
            steps = max(steps, taken)
        return states, steps

    def _newton(
        self, problem: StatesOverTime, states: Tensor, tolerance: float
    ) -> tuple[Tensor, int]:
        """Return the states of some samples, dropping each sample when it is done."""
        left = torch.arange(states.shape[1], device=states.device)
        open_problem, steps = problem, 0
        for steps in range(self.max_iterations + 1):
            point = Linearized(open_problem, states[:, left])
            going = point.relative > 0.5 * tolerance
            if not bool(going.any()) or steps == self.max_iterations:
                break
            if not bool(going.all()):
                left = left[going]
                open_problem = problem.take(left)
                point = Linearized(open_problem, states[:, left])
            states[:, left] = _improved(point)
        return states, steps


def _improved(at: Linearized) -> Tensor:
    """Return states whose objective is lower, as far as rounding allows."""
    step, best, before = at.step(), at.proximal.clone(), at.objectives
    slack = 1e-13 * (1 + before.abs())
    todo = torch.ones_like(before, dtype=torch.bool)
    for _ in range(_HALVINGS):
        trial = at.problem.divergence.activation.project(at.states + step)
        trial = torch.where(at.valid, trial, 0.0)
        better = todo & (at.problem.values(trial) <= before + slack)
        best = torch.where(better[:, None], trial, best)
        todo = todo & ~better
        if not bool(todo.any()):
            break
        step = step / 2
    return best
