"""Rho under constraints on scores: as large as rows that are set aside allow.

A rho that suits a free fit, as by the evidence, is small for one under constraints: weights that
meet limits on the training rows exactly learn these rows by heart, and on new ones both loss and
excess grow. So a quarter of the rows is set aside, the network is trained free on the others, and
then under the constraints there, with a rho that is tripled as long as the loss of the rows set
aside stays within a standard error of the least one, the rule of Breiman et al., Classification and
Regression Trees, 1984, section 3.4.3: what it costs is within chance, and scores of smaller weights
keep limits on new rows more nearly. All rows go on from the weights that are there. The last layer
is not fitted exactly there: a few rounds meet limits so roughly that what meets them is a constant.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from liftednet.errors import DataError, FitWarning, SolverError
from liftednet.sets.constraint import Constraint

from .constraints import hold, losses_of, parted
from .methods.gauss_newton import GaussNewton, pulled, rhos_of
from .methods.global_optimum import Global
from .warranty import taken

if TYPE_CHECKING:
    from .choice import Choice
    from .lifted import Given, Lifted
    from .prediction import Fitted

# 27 times would be chosen in one of 16 fits of eight tasks, where no weights meet the limits.
_FACTOR, _POWERS = 3.0, 3  # 1, 3 and 9 times the rho of the free fit are tried
_HELD = 4  # one of so many rows is set aside
_FEWEST, _MOST = 200, 2_000  # rows: fewer tell nothing; 15 fits of 2,500 to 5,000 gain nothing


@dataclass(frozen=True, eq=False)
class HeldOutRho:
    """The choice of rho for a fit under constraints.

    Attributes:
        given: X, y, lengths and weights of all rows.
        constraints: on the rows that train.
        rows: the numbers of those that train, and of those set aside.
    """

    given: Given
    constraints: list[Constraint]
    rows: tuple[NDArray[Any], NDArray[Any]]

    @classmethod
    def of(cls, model: Lifted, constraints: Sequence[Any], given: Given) -> HeldOutRho | None:
        """Return the choice for a model before its fit; None where there is none.

        That is for sequences, few rows or many, and constraints on rates, which have a margin of
        their own, or that CVXPY alone knows.
        """
        y, (scored, rates) = given[1], parted(constraints)
        argument = model.network.terms[0].argument
        if rates or not scored or argument.sequence or not _FEWEST <= len(y) <= _MOST:
            return None
        order = torch.randperm(len(y), generator=model._generator()).numpy()
        aside, rows = np.sort(order[: len(y) // _HELD]), np.sort(order[len(y) // _HELD :])
        try:
            some = [one.taken(rows, len(y)) for one in scored]
            linear = all(one.limits(len(rows), argument.units) is not None for one in some)
        except DataError:  # a single group is left
            return None
        return cls(given, some, (rows, aside)) if linear else None

    def part(self, number: int = 0) -> Given:
        """Return what is given of the rows that train, or (1) of those set aside."""
        X, y, _, weights = self.given
        rows = self.rows[number]
        weights = None if weights is None else taken(weights, rows)
        return taken(X, rows), taken(y, rows), None, weights

    def choose(self, model: Lifted, finish: Callable[[], None]) -> None:
        """Take the rho of a model that is trained free on its part, and finish with all rows.

        Where weights pulled so much cannot meet what all rows ask for, a smaller rho is taken.
        """
        known, other = model._known, copy(model)
        trace = known.trace
        assert trace is not None  # of the free fit
        reached: list[Fitted] = []
        limit = math.inf
        for times in range(0 if model.interrupted else _POWERS):
            rhos = [_FACTOR**times * rho for rho in rhos_of(known.structure)]
            structure = pulled(known.structure, rhos)
            steps = replace(trace, steps=list(trace.steps))
            other._fit = replace(other._known, structure=structure, trace=steps)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", FitWarning)
                    hold(other, self.constraints, self.part()[0], False, None, brief=True)
            except (DataError, SolverError):  # a layer that is pulled so much meets them no more
                break
            loss, error = self._judged(other)
            if loss > limit:
                break
            reached.append(replace(known, structure=structure, weights=other._known.weights))
            limit = min(limit, loss + error)
        raw = model._data(*self.given)
        data = known.standardization.of(known.completion.of(raw)).aligned()
        reason, reached = trace.reason, reached or [known]
        while reached:
            times, one = len(reached) - 1, reached.pop()
            model._fit, trace.reason = replace(one, data=data, blocks=None), reason
            if times:
                model.tell_reason(f"{reason}; under constraints {_FACTOR**times:g} times its rho")
            try:
                return finish()
            except SolverError:
                if not reached:
                    raise

    def _judged(self, model: Lifted) -> tuple[float, float]:
        """Return the mean loss of the rows set aside, and its standard error."""
        given, known = self.part(1), model._known
        data = known.standardization.of(known.completion.of(model._data(*given)))
        losses, counts = losses_of(model, model.scores(given[0]), data)
        counts = counts / counts.sum()
        mean = losses @ counts
        return float(mean), float(((losses - mean).square() @ counts / len(losses)).sqrt())


def searched(
    model: Lifted, choice: Choice, constraints: Sequence[Any], given: Given
) -> HeldOutRho | None:
    """Return the choice of rho where it was left to the fit, and all weights have one."""
    method, penalties = choice.method, choice.structure.penalties
    left = isinstance(method, GaussNewton) and method.evidence
    if not left and model.rho is None and model.penalty is None:
        left = all(x.penalty is None and penalties[x].curvature for x in penalties)
    if not left or isinstance(method, Global) or choice.lipschitz is not None:
        return None
    return HeldOutRho.of(model, constraints, given)
