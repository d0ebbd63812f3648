"""The box of a clipped activation as a variable of the training problem.

Lifted Neural Networks, section 9, names learned activations. The states that lie on the box move
with it, so that a layer can widen its box as well as tighten it.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from liftednet.activations import Clipped
from liftednet.divergences import Tight
from liftednet.errors import DataError, DeclarationError
from liftednet.problems import Formulation, Link, Measure, Subproblem
from liftednet.solution import Solution, Status
from liftednet.solvers import Solver

Limits = tuple[float, float]

_LEAST_WIDTH = 1e-3  # of a box, over its width before the fit
_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class LimitFit:
    """min over l <= h of lam D(V', U; l, h) + what the links ask of V', in l and in h alone.

    V' are the states with those on the old box moved to the new one; the others must stay inside.
    Where they all lie on the box it is convex in each number: D is then max(h - u, 0)^2 / 2.

    Attributes:
        states: V, (samples, units).
        pre_activation: U, (samples, units).
        links: what the layer above asks of the states.
        lam: the weight of the divergence, positive.
        box: [l, h] so far.
    """

    states: Tensor
    pre_activation: Tensor
    links: tuple[Link, ...]
    lam: float
    box: Limits

    @cached_property
    def reach(self) -> tuple[Limits, Limits]:
        """From where to where l may move, and h: not past states inside, nor far at once."""
        lower, upper = self.box
        width = upper - lower
        inside, middle = (self.states > lower) & (self.states < upper), (lower + upper) / 2
        low, high = torch.stack(
            [
                torch.where(inside, self.states, torch.inf).min(),
                torch.where(inside, self.states, -torch.inf).max(),
            ]
        ).tolist()  # without states inside, infinite
        gap = _LEAST_WIDTH * width / 2
        return (lower - width, min(low, middle) - gap), (max(high, middle) + gap, upper + width)

    def moved(self, value: Limits) -> Tensor:
        """Return V', (samples, units)."""
        lower, upper = self.box
        raised = torch.where(self.states >= upper, value[1], self.states)
        return torch.where(self.states <= lower, value[0], raised)

    def refuse_bad_values(self) -> None:
        """Raise `DataError` where a state or pre-activation is not finite."""
        if not bool((self.states.isfinite() & self.pre_activation.isfinite()).all()):
            raise DataError("states or pre-activations are NaN or infinite.")

    def refuse_bad_start(self, start: Limits) -> None:
        """Raise `DataError` where l and h are not within their reach."""
        for limit, (least, most) in zip(start, self.reach, strict=True):
            if not least <= limit <= most:
                raise DataError(f"a limit must be from {least:.4g} to {most:.4g}, got {limit}.")

    def formulate(self) -> Formulation:
        """Refuse: with states inside the box it is no convex problem."""
        raise DeclarationError(
            "the box of a clipped layer is fitted by a scalar search, not CVXPY."
        )

    def fill(self, formulation: Formulation) -> None:
        """Never reached: there is no formulation."""

    def read(self, formulation: Formulation) -> Limits:
        """Never reached: there is no formulation."""
        return self.box

    def signature(self) -> Hashable:
        """Return the shape and the kind of problem."""
        return LimitFit, tuple(self.states.shape)

    def value(self, limits: Limits) -> float:
        """Return the objective in float64."""
        states, u = self.moved(limits).double(), self.pre_activation.double()
        total = self.lam * Tight(Clipped(*limits)).value(states, u)
        for link in (link.double() for link in self.links):
            above = link.pre_activation(states)
            total += link.lam * link.divergence.link_value(above, link.target)
        return float(total)

    def measure(self, value: Limits) -> Measure:
        """Return the objective, and by what share of its scale a small move would lower it."""
        objective = self.value(value)
        falls = [objective - self.value(moved) for moved in self._nearby(value)]
        return Measure(objective, max(0.0, *falls) / (1 + abs(objective)))

    def _nearby(self, value: Limits) -> list[Limits]:
        (least_low, most_low), (least_high, most_high) = self.reach
        step = _LEAST_WIDTH * (value[1] - value[0])
        lows = (max(value[0] - step, least_low), min(value[0] + step, most_low))
        highs = (max(value[1] - step, least_high), min(value[1] + step, most_high))
        return [(low, value[1]) for low in lows] + [(value[0], high) for high in highs]


@dataclass(frozen=True)
class LimitSolver(Solver[LimitFit, Limits, None]):
    """Solves a limit fit by two bounded scalar searches (Brent, 1973), first h, then l."""

    name: str = field(default="limits", init=False)

    def obstacle(self, problem: Subproblem[object]) -> str | None:
        """Ask for a limit fit."""
        return None if isinstance(problem, LimitFit) else "it solves limit fits alone"

    def solve(
        self, problem: LimitFit, start: Limits | None = None, cache: None = None
    ) -> Solution[Limits]:
        """Return the best box that the searches find, or the old one where it is better."""
        from scipy.optimize import minimize_scalar

        started = time.perf_counter()
        (lower, upper), (lows, highs) = problem.box, problem.reach
        top = minimize_scalar(lambda h: problem.value((lower, h)), bounds=highs, method="bounded")
        upper = float(top.x) if top.fun < problem.value((lower, upper)) else upper
        end = minimize_scalar(lambda x: problem.value((x, upper)), bounds=lows, method="bounded")
        lower = float(end.x) if end.fun < problem.value((lower, upper)) else lower
        objective, residual = problem.measure((lower, upper))
        steps, seconds = int(top.nfev + end.nfev), time.perf_counter() - started
        return Solution(
            (lower, upper), objective, residual, steps, _TOLERANCE, Status.STALLED, seconds,
            self.name,
        )  # fmt: skip
