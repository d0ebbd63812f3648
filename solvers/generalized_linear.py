"""Weight fits with a tight divergence: generalized linear models by conjugate gradients."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch

from liftednet.penalties import SquaredFrobenius
from liftednet.problems import Fit, WeightFit, Weights
from liftednet.solution import Solution, Status

from . import deferred
from .base import Solver, default_tolerance, judged
from .conjugate import Point, advance
from .deferred import Late
from .dense_newton import dense_newton, is_small
from .weight_descent import WeightDescent, weight_descent

_EARLY = 5  # steps after which the curvature is measured anew: by then it is nearly the last one
_RENEWAL = 100  # and again; to restart the directions more often costs more than it brings
_PATIENCE = 100  # steps in which the violation must fall
_DRIFT = 1e-3  # fall of the violation at which the anchor follows
_HALT = 8  # steps without a fall after which it follows, too


@dataclass(frozen=True)
class GeneralizedLinear(Solver[WeightFit, Weights, None]):
    """Solves a weight fit with a smooth divergence by preconditioned conjugate gradients.

    The preconditioner is a ridge system with the samples weighted by their curvature, renewed a
    few times; the line search moves along the pre-activations, so that a step costs two products
    with X. Units that the activation does not couple are searched each by itself. Small fits that
    resist are finished by Newton steps.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-8 in float64, 1e-5 in float32.
        max_iterations: steps.

    Example:
        >>> import torch
        >>> from liftednet import Design, WeightFit
        >>> from liftednet.divergences import tight
        >>> from liftednet.activations import Sigmoid
        >>> from liftednet.penalties import SquaredFrobenius
        >>> from liftednet.solvers import GeneralizedLinear, solve
        >>> x, y = torch.tensor([[-1.0], [1.0]]), torch.tensor([[0.2], [0.8]])
        >>> fit = WeightFit(tight(Sigmoid()), Design(x), y, SquaredFrobenius(1e-9))
        >>> solve(fit, GeneralizedLinear()).value.matrix  # log(0.8 / 0.2)
        tensor([[1.3863]])
    """

    tolerance: float | None = None
    max_iterations: int = 2_000
    name: str = field(default="generalized-linear", init=False)

    def obstacle(self, problem: Fit[Any]) -> str | None:
        """Ask for a weight fit, a Lipschitz constant and a squared Frobenius penalty."""
        if not isinstance(problem, WeightFit):
            return "it solves weight fits alone"
        if problem.divergence.smoothness is None:
            return f"it needs a Lipschitz constant of {problem.divergence.activation!r}"
        if not isinstance(problem.penalty, SquaredFrobenius):
            return "it needs the penalty SquaredFrobenius"
        return None

    def solve(
        self, problem: WeightFit, start: Weights | None = None, cache: None = None
    ) -> Solution[Weights]:
        """Return the minimizer to the tolerance."""
        started = time.perf_counter()
        tolerance = self.tolerance or default_tolerance(problem.targets.dtype)
        descent = weight_descent(problem, start or problem.zeros())
        goal = tolerance * (float(problem.cross.abs().max()) or 1.0)
        stand, steps, reached = self._descend(descent, goal)
        unfinished = Status.ITERATION_LIMIT if steps == self.max_iterations else Status.STALLED
        at = stand.at
        if not reached and steps < self.max_iterations and is_small(problem):
            at, more = dense_newton(*stand.descent.anchored(at), goal)
            steps += more
        value = problem.design.centered.split(at.y)
        return judged(problem, value, steps, started, tolerance, self.name, unfinished)

    def _descend(self, descent: WeightDescent, goal: float) -> tuple[_Stand, int, bool]:
        """Return where the descent ends, its steps, and whether it is known to be at its goal."""
        stand, steps = _Stand(descent, descent.starting_point(), exact=True), 0
        looks, best, since, last = Late[_Stand](), torch.inf, 0, 0.0
        least, on_device = None, deferred.stays_on_device(stand.at.y)
        while steps < self.max_iterations:
            share, then = looks.seen(descent.violation(stand.at.gradient) / goal, stand)
            last = share if then is not None and then.exact else last
            halted = (steps - since) % _HALT == _HALT - 1
            if _is_newest(then, stand) and (halted or share <= max(1, _DRIFT * last)):
                stand = _Stand(*stand.descent.anchored(stand.at), exact=True)
                continue
            if then is not None and then.exact and share <= 1:
                return then, steps, True
            if share < 0.9 * best:
                best, since, least = share, steps, then if on_device else None
            if steps - since > _PATIENCE:
                return least or stand, steps, False
            del then  # whose memory the step can use
            steps += 1
            stand = stand.moved(steps)
        return stand, steps, False


@dataclass(frozen=True)
class _Stand:
    """Where the descent stands.

    Attributes:
        descent: with its last anchor and preconditioner.
        at: the point.
        exact: whether the anchor is there.
    """

    descent: WeightDescent
    at: Point
    exact: bool

    def moved(self, steps: int) -> _Stand:
        """Return where a step leads; now and then the curvature is measured anew there."""
        at = advance(self.descent, self.at, steps)
        if steps == _EARLY or steps % _RENEWAL == 0:
            return _Stand(*self.descent.renewed(at), exact=False)
        return _Stand(self.descent, at, exact=False)


def _is_newest(then: _Stand | None, stand: _Stand) -> bool:
    """Say whether what was seen is not exact, and of the anchor that is still the last."""
    return then is not None and not then.exact and then.descent.anchor is stand.descent.anchor
