"""What is told of constraints after a fit: on the training rows, and on rows set aside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from liftednet.sets.constraint import Constraint
from liftednet.sets.polyhedron import Array
from liftednet.sets.rates import Comparison, GroupRates, RateConstraint
from liftednet.sets.scores import GroupMeans

from .rates import chances, decided

_SURE = 1e-12  # of a probability, whose log-odds are cut there


@dataclass(frozen=True)
class Apart:
    """How far the rates of a constraint lie apart at most, or a rate, in three currencies.

    Attributes:
        decisions: of decisions.
        probabilities: of mean probabilities.
        scores: of mean log-odds.
    """

    decisions: float
    probabilities: float
    scores: float

    def __str__(self) -> str:
        """Name the three."""
        return (
            f"decisions {self.decisions:.3f}, probabilities {self.probabilities:.3f}, "
            f"log-odds {self.scores:.3f}"
        )


@dataclass(frozen=True)
class Verdict:
    """What rows that were set aside show of a constraint.

    Attributes:
        seen: the rate, or the largest difference, on these rows.
        bound: where it lies at most (at least, for a lower end) with the confidence.
        limit: what was asked for.
        holds: whether the bound is within the limit.
        confidence: for all constraints of the fit together.
        needed: rows set aside that would do, if what was seen is so; None where none would.
    """

    seen: float
    bound: float
    limit: float
    holds: bool
    confidence: float
    needed: int | None

    def __str__(self) -> str:
        """Say whether it holds, and what would do."""
        sure = f"{self.confidence:.4g}"
        side = "at most" if self.bound >= self.seen else "at least"
        if self.holds:
            return f"holds with confidence {sure}: {side} {self.bound:.3f} (seen {self.seen:.3f})"
        why = "no number of rows would do"
        if self.needed is not None:
            why = f"n is too small; {self.needed:,} rows set aside would do"
        return (
            f"not shown with confidence {sure}: {side} {self.bound:.3f}, asked {self.limit:g} "
            f"(seen {self.seen:.3f}): {why}"
        )


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The rows that were set aside for a warranty.

    Attributes:
        rows: (some,) their numbers.
        loss: mean over them; that of the training rows stands in the report.
        verdicts: of each constraint.
        apart: of each constraint, or None.
    """

    rows: Array
    loss: float
    verdicts: tuple[Verdict, ...]
    apart: tuple[Apart | None, ...]


@dataclass(frozen=True, eq=False)
class ConstraintReport:
    """How a fitted network meets its constraints.

    Attributes:
        constraints: as they were given.
        violations: by how much the forward pass breaks each at most on the training samples: in
            units of the scores, or for rates in shares of exact counts.
        prices: of each constraint in its shape: the rate at which the training objective (in units
            of the targets, summed over samples) falls where a limit is moved by one unit of the
            scores; positive where scores rest on an upper end, negative on a lower. Of rates, by
            one unit of the rate near where the last layer was fitted last; zeros where no fit was
            needed. Residuals of several targets are over their deviations, times the root mean
            square one.
        objective: of the fit of the last layer, features given, less what no weight changes; in
            units of the targets.
        gap: by which it may lie above the least one; NaN under rates, where none is known.
        residual: relative KKT residual of that fit.
        solver: of that fit.
        loss: mean over the training samples.
        apart: of each constraint that speaks of groups or rates of a classifier, what it is in
            decisions, probabilities and scores on the training samples; else None.
        held_out: what rows that were set aside show, where a confidence was asked for.
        steps: whether rows are steps of sequences, which no confidence speaks of.

    Example:
        >>> import torch
        >>> from liftednet.constraints import Budget
        >>> from liftednet.losses import SquaredError
        >>> from liftednet.models import LiftedMLP, Minibatch
        >>> X = torch.linspace(-1, 1, 20, dtype=torch.float64).unsqueeze(1)
        >>> model = LiftedMLP((1, 8, 1), loss=SquaredError(), method=Minibatch(5))
        >>> report = model.fit(X, X.square(), constraints=[Budget(0.25)]).constraint_report()
        >>> max(report.violations) < 1e-9, float(report.prices[0]) > 0
        (True, True)
    """

    constraints: tuple[Constraint | RateConstraint, ...]
    violations: tuple[float, ...]
    prices: tuple[Tensor, ...]
    objective: float
    gap: float
    residual: float
    solver: str
    loss: float
    apart: tuple[Apart | None, ...]
    held_out: HeldOut | None = None
    steps: bool = False

    def __str__(self) -> str:
        """Return some lines for each constraint, and what all of it does not say."""
        lines = []
        for number, one in enumerate(self.constraints):
            price = float(self.prices[number].abs().max()) if self.prices[number].numel() else 0.0
            lines.append(
                f"{one!r}: violation {self.violations[number]:.1e}, largest price {price:.4g}"
            )
            if (here := self.apart[number]) is not None:
                lines.append(f"  training: {here}")
            if self.held_out is not None:
                lines.append(f"  held out: {self.held_out.apart[number]}")
                lines.append(f"  {self.held_out.verdicts[number]}")
        gap = "" if self.gap != self.gap else f", gap {self.gap:.1e}"
        lines.append(
            f"last layer by {self.solver}: objective {self.objective:.6g} less a constant{gap}, "
            f"residual {self.residual:.1e}"
        )
        known = f"mean loss: training {self.loss:.4g}"
        if self.held_out is None:
            rates = all(isinstance(one, RateConstraint) for one in self.constraints)
            shown = rates and not self.steps
            ask = ": ask for confidence=0.95" if shown else ""
            lines.append(f"{known}; of new rows this says nothing{ask}.")
        else:
            lines.append(
                f"{known}, held out {self.held_out.loss:.4g} ({len(self.held_out.rows):,} rows); "
                "of rows that come from elsewhere this says nothing."
            )
        return "\n".join(lines)

    __repr__ = __str__


def broken(one: Constraint | RateConstraint, labels: Array | None, scores: Tensor) -> float:
    """Return by how much a constraint is broken at most: rates as decisions are counted."""
    if not isinstance(one, RateConstraint):
        return one.violation(scores)
    return one.violation(chances(scores) if one.soft else decided(scores), labels)


def apart_of(one: Any, labels: Array | None, scores: Tensor) -> Apart | None:
    """Return what a constraint on groups or rates is in decisions, probabilities and scores.

    Args:
        one: a constraint.
        labels: (samples,) numbers of a classifier with one label a row; None for others.
        scores: (samples, outputs).
    """
    if labels is None:
        return None
    if isinstance(one, GroupMeans):
        if (one.groups < 0).any():
            return None
        one = GroupRates(one.groups, 1.0)
    if not isinstance(one, RateConstraint):
        return None
    p = chances(scores).cpu().numpy()
    odds = np.log(p.clip(_SURE)) - np.log((1 - p).clip(_SURE))
    found = one.comparisons(labels, p.shape[1])
    return Apart(*(_most(found, x) for x in (decided(scores), p, odds)))


def _most(found: Sequence[Comparison], values: Array) -> float:
    each = [one.of(values) for one in found]
    return each[0] if found[0].second is None else max(map(abs, each))
