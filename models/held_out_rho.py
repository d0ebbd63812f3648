"""Rho under constraints on scores: three times that of the free fit, where held-out rows allow it.

A rho that suits a free fit, as by the evidence, is small for one under constraints: weights that
meet limits on the training rows exactly learn these rows by heart, and on new ones both loss and
excess grow. So rho rises unless the loss of rows that are set aside rises by more than a standard
error, the rule of Breiman et al., Classification and Regression Trees, 1984, section 3.4.3: what
it costs is within chance, and scores of smaller weights keep limits on new rows more nearly.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from liftednet.errors import DataError, FitWarning, SolverError
from liftednet.sets.constraint import Constraint

from .constraints import hold, losses_of, parted
from .methods.gauss_newton import GaussNewton, scaled
from .warranty import taken

if TYPE_CHECKING:
    from .lifted import Lifted

_FACTOR = 3.0
_HELD = 4  # one of so many rows is set aside
_FEWEST, _MOST = 200, 5_000  # rows: fewer tell nothing, and of more the training rows tell enough


def raise_rho(model: Lifted, constraints: Sequence[Any], given: tuple[Any, Any, Any, Any]) -> None:
    """Raise the rho of a free fit to what suits one under constraints on scores.

    Nothing changes where a rho or a penalty was given, where constraints are on rates, which have a
    margin of their own, on sequences, or known to CVXPY alone.

    Args:
        model: after a fit without constraints.
        constraints: of all rows.
        given: X, y, lengths and weights.
    """
    X, y, lengths, weights = given
    scored, rates = parted(constraints)
    if rates or lengths is not None or not _FEWEST <= len(y) <= _MOST or not _is_open(model):
        return
    order = torch.randperm(len(y), generator=model._generator()).numpy()
    aside, rows = np.sort(order[: len(y) // _HELD]), np.sort(order[len(y) // _HELD :])

    def part(numbers: Any) -> list[Any]:
        return [None if x is None else taken(x, numbers) for x in (X, y, weights)]

    try:
        some = [one.taken(rows, len(y)) for one in scored]
        linear = all(
            x.limits(len(rows), model.network.terms[0].argument.units) is not None for x in some
        )
    except DataError:  # a single group is left
        return
    if linear and _gains(model, some, part(rows), part(aside)):
        model._fit = replace(model._known, structure=scaled(model._known.structure, _FACTOR))
        assert model.trace is not None  # of the free fit
        model.tell_reason(f"{model.trace.reason}; under constraints {_FACTOR:g} times its rho")


def _gains(
    model: Lifted, constraints: Sequence[Constraint], some: list[Any], aside: list[Any]
) -> bool:
    """Return whether a larger rho costs the rows set aside at most a standard error of loss."""
    other, most = copy(model), math.inf
    other._fit = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        other.fit(*some[:2], sample_weight=some[2])
        for factor in (1.0, _FACTOR):
            known = other._known
            other._fit = replace(known, structure=scaled(known.structure, factor))
            try:
                hold(other, constraints, some[0], False, None, brief=True)
            except (DataError, SolverError):  # a layer that is pulled so much meets them no more
                return False
            data = known.standardization.of(other._data(aside[0], aside[1], None, aside[2]))
            losses, counts = losses_of(other, other.scores(aside[0]), data)
            counts = counts / counts.sum()
            mean = losses @ counts
            error = ((losses - mean).square() @ counts / len(losses)).sqrt()
            gains, most = float(mean) <= most, float(mean + error)
    return gains


def _is_open(model: Lifted) -> bool:
    """Return whether rho was left to the fit, and all weights have one."""
    assert model.trace is not None  # of the free fit
    penalties, method = model._known.structure.penalties, model.trace.method
    left = isinstance(method, GaussNewton) and method.evidence
    if model.rho is None and model.penalty is None:
        left = left or all(x.penalty is None for x in penalties)
    return left and all(x.curvature for x in penalties.values())
