"""Constraints on the scores of a network: its last layer fitted under them, and their prices.

Scores are affine in the weights of the last layer, so that this fit is convex and exact; the
features that it sees are those of the forward pass, and so the network itself meets what it meets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from liftednet.errors import DeclarationError
from liftednet.layers.expression import Applied, Parameter
from liftednet.layers.projection import Projection
from liftednet.network import Network, Term
from liftednet.problems import ConstrainedFit, WeightFit
from liftednet.samples import Weights
from liftednet.sets.constraint import (
    Constraint,
    Rescaled,
    refuse_contradictions,
    refuse_impossible,
    require_constraints,
)
from liftednet.solution import Solution
from liftednet.solvers import solve

from .block import Blocks
from .data import Data
from .standardization import Standardization


@dataclass(frozen=True, eq=False)
class ConstraintReport:
    """How a fitted network meets its constraints.

    Attributes:
        constraints: as they were given.
        violations: by how much the forward pass breaks each at most on the training samples, in
            units of the scores.
        prices: of each constraint in its shape: the rate at which the training objective (on
            standardized data, summed over samples) falls where a limit is moved by one unit of the
            scores; positive where scores rest on an upper end, negative on a lower.
        objective: of the fit of the last layer, features given, less what no weight changes.
        gap: by which it may lie above the least one.
        residual: relative KKT residual of that fit.
        solver: of that fit.

    Example:
        >>> import torch
        >>> from liftednet.constraints import Budget
        >>> from liftednet.losses import SquaredError
        >>> from liftednet.models import LiftedMLP
        >>> X = torch.linspace(-1, 1, 20, dtype=torch.float64).unsqueeze(1)
        >>> model = LiftedMLP((1, 8, 1), loss=SquaredError())
        >>> report = model.fit(X, X.square(), constraints=[Budget(0.25)]).constraint_report()
        >>> max(report.violations) < 1e-9, float(report.prices[0]) > 0
        (True, True)
    """

    constraints: tuple[Constraint, ...]
    violations: tuple[float, ...]
    prices: tuple[Tensor, ...]
    objective: float
    gap: float
    residual: float
    solver: str

    def __str__(self) -> str:
        """Return a line for each constraint, and one for the fit."""
        lines = [
            f"{one!r}: violation {violation:.1e}, largest price {float(price.abs().max()):.4g}"
            for one, violation, price in zip(
                self.constraints, self.violations, self.prices, strict=True
            )
        ]
        fit = f"last layer by {self.solver}: objective {self.objective:.6g} less a constant, "
        return "\n".join([*lines, f"{fit}gap {self.gap:.1e}, residual {self.residual:.1e}"])

    __repr__ = __str__


@dataclass(frozen=True, eq=False)
class HeldScores:
    """Constraints on the scores of a network, on its data.

    Attributes:
        term: the loss, on the scores.
        constraints: on raw scores.
        standardization: what stands between those and the scores in training.
    """

    term: Term
    constraints: tuple[Constraint, ...]
    standardization: Standardization

    @property
    def last(self) -> Parameter:
        """The weights of the last layer."""
        assert self.term.argument.weights is not None  # `refuse_unmet` has asked for it
        return self.term.argument.weights

    def problem(self, blocks: Blocks) -> ConstrainedFit:
        """Return the fit of the last layer to the features that are there."""
        fit, moments = blocks.weight_fit(self.last), self.standardization.moments
        if not isinstance(fit, WeightFit):
            raise DeclarationError(_NEEDS)
        known = moments.get(self.term.label)
        if known is None:
            return ConstrainedFit(fit, self.constraints)
        rescaled = (Rescaled(one, known.scale, known.center) for one in self.constraints)
        return ConstrainedFit(fit, tuple(rescaled))

    def fitted(self, blocks: Blocks) -> tuple[Solution[Weights], float]:
        """Return the fit of the last layer, and its duality gap."""
        problem = self.problem(blocks)
        solution = solve(problem, start=blocks.values[self.last]).require_solved()
        return solution, problem.gap(solution.value, solution.duals)


def refuse_unmet(network: Network, constraints: Sequence[Constraint], data: Data) -> None:
    """Refuse constraints that no training of this network on these data can meet.

    Raises:
        DataError: one does not fit the scores, or they contradict each other.
        DeclarationError: the network has no scores that they could hold.
    """
    if not require_constraints(constraints):
        return
    term = network.terms[0]
    if isinstance(term.argument, Applied) and isinstance(term.argument.layer, Projection):
        raise DeclarationError(
            "this network holds its scores by within= already, behind which no layer is fitted "
            "under constraints= exactly: declare all of them by one of the two."
        )
    elsewhere = len(network.terms) > 1 or term.state is not None or term.argument.sequence
    if elsewhere or term.argument.weights is None:
        raise DeclarationError(_NEEDS)
    refuse_contradictions(constraints, len(data), term.argument.units)
    refuse_impossible(constraints, len(data), term.argument.units)


_NEEDS = (
    "constraints on scores need one loss on the last pre-activation, such as CrossEntropy or "
    "SquaredError, right on a dense layer, and no sequences."
)
