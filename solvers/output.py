"""Output fits: the prox in closed form, and the cross-entropy on the simplex by its dual."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from liftednet.divergences import Raw
from liftednet.losses import SimplexCrossEntropy, SquaredError, simplex_states
from liftednet.problems import OutputFit, Subproblem
from liftednet.solution import Solution, Status

from .base import Solver, default_tolerance, judged

_NEWTON_STEPS = 50  # ten suffice; the rest is for the last bits


@dataclass(frozen=True)
class ClosedForm(Solver[OutputFit, Tensor, None]):
    """Solves an output fit with the squared loss: Z = prox_{lam Phi}(Y + lam U).

    Lifted Neural Networks, section 6.2, for any activation with a prox.
    """

    name: str = field(default="closed-form", init=False)

    def obstacle(self, problem: Subproblem[Any]) -> str | None:
        """Ask for an output fit with the squared loss."""
        if not isinstance(problem, OutputFit):
            return "it solves output fits alone"
        if not isinstance(problem.loss, SquaredError):
            return f"it needs the loss SquaredError, not {type(problem.loss).__name__}"
        activation = problem.divergence.activation
        if isinstance(problem.divergence, Raw):
            return f"{activation!r} is a raw divergence"
        if not (activation.per_unit or activation.declares("prox")):
            return f"it needs `prox` of {activation!r}"
        return None

    def prepare(self, problem: OutputFit, previous: None = None) -> None:
        """Return nothing."""

    def solve(
        self, problem: OutputFit, start: Tensor | None = None, cache: None = None
    ) -> Solution[Tensor]:
        """Return the exact minimizer; a start is not used."""
        started = time.perf_counter()
        shifted = problem.target + problem.lam * problem.pre_activation
        value = problem.divergence.activation.prox(shifted, problem.lam)
        tolerance = default_tolerance(value.dtype)
        return judged(problem, value, 0, started, tolerance, self.name, Status.STALLED)


@dataclass(frozen=True)
class SimplexDual(Solver[OutputFit, Tensor, None]):
    """Solves the cross-entropy on the simplex, all samples at once, by its scalar dual.

    sum_i z_i(nu) = 1 with z_i(nu) of appendix A, increasing and convex in nu: Newton from the
    upper end of a bracket is monotone. The bracket is h_i = t_i - a_i / t_i - u_i with a = y /
    lam, min h <= nu <= max h for any t in the simplex (here y / sum y and the uniform point; 0/0
    = 0), cut with the printed upper bound; it contains no exponential.
    """

    name: str = field(default="simplex-dual", init=False)

    def obstacle(self, problem: Subproblem[Any]) -> str | None:
        """Ask for an output fit with the simplex cross-entropy."""
        if not isinstance(problem, OutputFit):
            return "it solves output fits alone"
        if not isinstance(problem.loss, SimplexCrossEntropy):
            return f"it needs the loss SimplexCrossEntropy, not {type(problem.loss).__name__}"
        return None

    def prepare(self, problem: OutputFit, previous: None = None) -> None:
        """Return nothing."""

    def solve(
        self, problem: OutputFit, start: Tensor | None = None, cache: None = None
    ) -> Solution[Tensor]:
        """Return the minimizer; a start is not used."""
        started = time.perf_counter()
        a, u = problem.target / problem.lam, problem.pre_activation
        lower, upper = _bracket(a, problem.target, u)
        nu, steps = _newton(a, u, lower, upper)
        value = simplex_states(a, u + nu)
        value = value / value.sum(-1, keepdim=True)
        tolerance = default_tolerance(value.dtype)
        return judged(problem, value, steps, started, tolerance, self.name, Status.STALLED)


def _bracket(a: Tensor, y: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    total = y.sum(-1, keepdim=True)
    label = torch.where(total > 0, y / total, 1 / y.shape[-1])
    ratio = torch.where(label > 0, a / label.clamp(min=torch.finfo(y.dtype).tiny), 0.0)
    at_label = label - ratio - u
    at_center = 1 / y.shape[-1] - a * y.shape[-1] - u
    upper = torch.minimum(at_label.amax(-1, keepdim=True), at_center.amax(-1, keepdim=True))
    lower = torch.maximum(at_label.amin(-1, keepdim=True), at_center.amin(-1, keepdim=True))
    printed = 1 - (u + a).amax(-1, keepdim=True)
    return lower, torch.minimum(upper, printed)


def _newton(a: Tensor, u: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, int]:
    nu, steps = upper, 0
    eps = torch.finfo(u.dtype).eps
    for steps in range(1, _NEWTON_STEPS + 1):
        s = u + nu
        z = simplex_states(a, s)
        slope = (z / (s.square() + 4 * a).sqrt().clamp(min=eps)).sum(-1, keepdim=True)
        change = (z.sum(-1, keepdim=True) - 1) / slope.clamp(min=eps)
        following = torch.minimum(torch.maximum(nu - change, lower), upper)
        done = (following - nu).abs() <= 2 * eps * following.abs().clamp(min=1)
        nu = following
        if bool(done.all()):
            break
    return nu, steps
