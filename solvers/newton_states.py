"""State fits with tight or cross-entropy links by Newton steps on what the links see."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from liftednet.activations import Softmax
from liftednet.divergences import Raw
from liftednet.problems import StateFit, Subproblem
from liftednet.problems.chunks import row_chunks
from liftednet.solution import Solution

from .base import Solver, default_tolerance, judged
from .dual import largest_term
from .link_rows import LinkRows, LinkState, link_rows
from .proximal import Proximal

_FEW = 32  # columns above up to which the steps pay for any activation
_FORCING = 0.02  # relative residual of the linear system of a step
_INNER = 50  # conjugate gradient steps for one step
_HALVINGS = 10


@dataclass(frozen=True)
class NewtonStates(Solver[StateFit, Tensor, None]):
    """Solves a state fit by Newton's method in the pre-activations above.

    With a the pre-activations Z W + C that the links see, stationarity gives Z(a) = phi(U - (grad
    R(a) - V) W' lam_k / lam), and what remains is F(a) = Z(a) W + C - a = 0, with as many unknowns
    as units above. Its Jacobian is -(I + B J), B = W' phi' W and J the curvature of the links:
    conjugate gradients on I + J^(1/2) B J^(1/2), two products with W each. No prox is asked for.
    Samples that are done leave the batch; those whose steps no longer lower |F|, at kinks, are
    left to proximal gradient steps.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-8 in float64, 1e-5 in float32.
        max_iterations: Newton steps.
    """

    tolerance: float | None = None
    max_iterations: int = 30
    name: str = field(default="newton", init=False)

    def obstacle(self, problem: Subproblem[Any]) -> str | None:
        """Ask for a state fit, units mapped each by itself, and curvatures of the links."""
        if not isinstance(problem, StateFit):
            return "it solves state fits alone"
        activation = problem.divergence.activation
        if isinstance(problem.divergence, Raw) or not activation.per_unit:
            return f"{activation!r} does not map each unit by itself"
        if activation.lipschitz is None:
            return f"it needs a Lipschitz constant of {activation!r}"
        if not problem.links:
            return "it needs a link"
        for above in (link.divergence for link in problem.links):
            if above.smoothness is None:
                return f"it needs a Lipschitz constant of {above.activation!r}"
            if not (above.quadratic or above.activation.per_unit or _is_softmax(above.activation)):
                return f"it needs the curvature of {above.activation!r}"
        return None

    def suits(self, problem: StateFit) -> bool:
        """Say whether few units see the states, or the activation has no prox in closed form."""
        if all(link.divergence.quadratic for link in problem.links):
            return False
        columns = sum(link.weight.shape[1] for link in problem.links)
        return columns <= _FEW or not problem.divergence.activation.declares("prox")

    def solve(
        self, problem: StateFit, start: Tensor | None = None, cache: None = None
    ) -> Solution[Tensor]:
        """Return the minimizer to the tolerance."""
        started = time.perf_counter()
        tolerance = self.tolerance or default_tolerance(problem.pre_activation.dtype)
        value = problem.divergence.activation.forward(problem.pre_activation).clone()
        value = value if start is None else start.clone()
        steps = 0
        for part in row_chunks(problem.samples, problem.units):
            goal = 0.5 * tolerance * largest_term(problem, part)
            rows = link_rows(problem, part)
            left, used = self._descend(rows, value[part], goal)
            late = torch.arange(problem.samples, device=left.device)[part][left]
            if len(late):
                value[late], more = self._finish(problem, late, value[late], tolerance)
                used += more
            steps = max(steps, used)
        return judged(problem, value, steps, started, tolerance, self.name)

    def _finish(
        self, problem: StateFit, late: Tensor, states: Tensor, tolerance: float
    ) -> tuple[Tensor, int]:
        """Return the states of samples that Newton's steps left over, by proximal steps."""
        few = replace(
            problem,
            pre_activation=problem.pre_activation[late],
            links=tuple(link.rows(late) for link in problem.links),
        )
        solution = Proximal(tolerance).solve(few, states)
        return solution.value, solution.iterations

    def _descend(self, rows: LinkRows, states: Tensor, goal: float) -> tuple[Tensor, int]:
        """Write states that are done in place; return which are left over, and the steps."""
        at, left, steps = rows.state(rows.seen(states)), torch.arange(len(states)), 0
        left = left.to(states.device)
        stuck = left[:0]
        while True:
            unfinished = rows.violation(at) > goal
            states[left[~unfinished]] = at.states[~unfinished]
            if not bool(unfinished.any()) or steps == self.max_iterations:
                return torch.cat([stuck, left[unfinished]]), steps
            rows, at, left = rows.rows(unfinished), at.rows(unfinished), left[unfinished]
            steps += 1
            at, lower = _advance(rows, at)
            stuck = torch.cat([stuck, left[~lower]])
            rows, at, left = rows.rows(lower), at.rows(lower), left[lower]


def _advance(rows: LinkRows, at: LinkState) -> tuple[LinkState, Tensor]:
    """Return the samples after a step along which F falls, and which of them found one."""
    direction = _direction(rows, at)
    length = torch.ones_like(at.gap[:, :1])
    before = at.gap.norm(dim=1, keepdim=True)
    for _ in range(_HALVINGS):
        to = rows.state(at.seen + length * direction)
        falls = to.gap.norm(dim=1, keepdim=True) <= (1 - 1e-4 * length) * before
        if bool(falls.all()):
            break
        length = torch.where(falls, length, length / 2)
    return to, falls[:, 0]


def _direction(rows: LinkRows, at: LinkState) -> Tensor:
    """Return (I + B J)^-1 F: x from (I + M'B M) x = M'F with J = M M', then F - B M x."""
    curved = rows.curvature(at)
    residual = curved.transposed(at.gap)
    x, towards = torch.zeros_like(residual), residual
    size = residual.square().sum(1, keepdim=True)
    goal, tiny = _FORCING**2 * size, torch.finfo(size.dtype).tiny
    for _ in range(_INNER):
        image = towards + curved.transposed(rows.through(at, curved.root(towards)))
        length = size / (towards * image).sum(1, keepdim=True).clamp(min=tiny)
        x, residual = x + length * towards, residual - length * image
        following = residual.square().sum(1, keepdim=True)
        if bool((following <= goal).all()):
            break
        towards, size = residual + following / size.clamp(min=tiny) * towards, following
    return at.gap - rows.through(at, curved.root(x))


def _is_softmax(activation: Any) -> bool:
    return isinstance(activation, Softmax)
