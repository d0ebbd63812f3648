"""The proximal map of a penalty in any dense metric, by another way than the library's: a judge."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from liftednet.errors import SolverError
from liftednet.penalties import Penalty, SquaredFrobenius
from liftednet.solvers.metric_prox import _solved

_BURST = 50  # accelerated steps before Newton's, twice as many every time
_BURSTS = 11
_SYSTEM_ENTRIES = 1 << 24  # of Newton's systems at a time: 128 MB
_HALVINGS = 20  # of a Newton step


def dense_prox(
    penalty: Penalty,
    weight: Tensor,
    gram: Tensor,
    start: Tensor | None = None,
    tolerance: float = 1e-8,
) -> Tensor:
    """Return argmin over P of pi(P) + <P - W, G (P - W)> / 2, (inputs, units), by float64.

    Bursts of accelerated proximal gradient (Beck and Teboulle, 2009; restarted as O'Donoghue and
    Candes, 2015) find which entries are 0; where pi is a sum over entries, Newton's steps on the
    others follow. For rho |P - C|_F^2 it is one system.

    Args:
        penalty: pi.
        weight: W, where the step ends without pi, (inputs, units).
        gram: G, positive definite, (inputs, inputs).
        start: P to begin with, or None.
        tolerance: KKT residual to reach, relative to the gradient G (P - W).

    Raises:
        SolverError: the tolerance is not reached; it carries the last P.
    """
    problem = _Dense(penalty, weight.double(), gram.double())
    if isinstance(penalty, SquaredFrobenius):
        return problem.ridge(penalty).to(weight)
    found, residual = problem.target if start is None else start.double(), torch.inf
    for number in range(_BURSTS):
        if start is None or number > 0:  # a start may know which entries are 0
            found = problem.accelerated(found, _BURST << number)
        found, residual = problem.polished(found, tolerance)
        if residual <= tolerance:
            return found.to(weight)
    raise SolverError(
        f"the proximal step stopped at a residual of {residual:.1e}, not {tolerance:.1e}.",
        found.to(weight),
    )


@dataclass(frozen=True)
class _Dense:
    """min over P of pi(P) + <P - W, G (P - W)> / 2.

    Attributes:
        penalty: pi.
        target: W in float64, (inputs, units).
        gram: G in float64, (inputs, inputs).
    """

    penalty: Penalty
    target: Tensor
    gram: Tensor

    @cached_property
    def smoothness(self) -> float:
        """The largest eigenvalue of G."""
        return float(torch.linalg.eigvalsh(self.gram)[-1])

    @cached_property
    def rounding(self) -> float:
        """What rounding of P makes of the gradient."""
        return torch.finfo(torch.float64).eps * self.smoothness * float(self.target.norm())

    def ridge(self, penalty: SquaredFrobenius) -> Tensor:
        """Return the solution for rho |P - C|_F^2."""
        pull = penalty.stationarity(self.target, self.target.new_zeros(()), 1.0)  # 2 rho (W - C)
        system = self.gram + penalty.curvature * torch.eye(len(self.gram)).to(self.gram)
        moved: Tensor = torch.linalg.solve(system, pull)
        return self.target - moved

    def gradient(self, weight: Tensor) -> Tensor:
        """Return G (P - W)."""
        return self.gram @ (weight - self.target)

    def proximal(self, weight: Tensor, gradient: Tensor) -> Tensor:
        """Return the proximal gradient step from P."""
        return self.penalty.prox(weight - gradient / self.smoothness, 1 / self.smoothness)

    def accelerated(self, value: Tensor, steps: int) -> Tensor:
        """Return P after accelerated steps."""
        ahead, momentum = value, 1.0
        for _ in range(steps):
            following = self.proximal(ahead, self.gradient(ahead))
            change = following - value
            if float(((ahead - following) * change).sum()) > 0:
                momentum = 1.0
            larger = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
            ahead = following + (momentum - 1) / larger * change
            value, momentum = following, larger
        return value

    def polished(self, value: Tensor, tolerance: float) -> tuple[Tensor, float]:
        """Return P after Newton's steps as long as they halve the residual, and the residual."""
        last = torch.inf
        while True:
            gradient = self.gradient(value)
            value, before = self.proximal(value, gradient), value
            slope = self.gradient(value)
            violation = slope - gradient + self.smoothness * (before - value)
            gap = max(float(violation.norm()) - self.rounding, 0.0)
            residual = gap / max(float(slope.norm()), torch.finfo(torch.float64).tiny)
            if residual <= tolerance or residual > last / 2 or not self.penalty.entrywise:
                return value, residual
            value, last = self.newton(value, violation), residual

    def newton(self, value: Tensor, violation: Tensor) -> Tensor:
        """Return the step to the minimum over the entries that are not 0, as far as it descends.

        On the orthant of P the objective is quadratic, with this violation for its gradient. What
        leaves the orthant is 0, and units where that does not descend step half as far.
        """
        direction = self._direction(value != 0, violation)
        length = torch.ones_like(violation[0])
        for _ in range(_HALVINGS):
            ahead = value - length * direction
            moved = torch.where(ahead * value > 0, ahead, 0.0) - value
            curved = self.gram @ moved + self.penalty.curvature * moved
            rising = ((violation + curved / 2) * moved).sum(0) > 0
            if not bool(rising.any()):
                return value + moved
            length = torch.where(rising, length / 2, length)
        return torch.where(rising, value, value + moved)

    def _direction(self, active: Tensor, violation: Tensor) -> Tensor:
        """Return G_AA^{-1} violation_A for every unit with its active entries A, and 0 else."""
        units = max(1, _SYSTEM_ENTRIES // self.gram.numel())
        parts = zip(active.split(units, 1), violation.split(units, 1), strict=True)
        return torch.cat([self._part(one, right) for one, right in parts], 1)

    def _part(self, active: Tensor, violation: Tensor) -> Tensor:
        share = active.T.double()
        systems = share.unsqueeze(2) * self.gram * share.unsqueeze(1)
        systems.diagonal(dim1=1, dim2=2).add_(1 + (self.penalty.curvature - 1) * share)
        return _solved(systems, active * violation)
