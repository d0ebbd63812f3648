"""One hidden layer at many rho, each to its global optimum."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from liftednet.errors import DataError, NotFittedError, SolverError
from liftednet.validation import model_of, require_count

from .error_bars import posterior
from .lifted import Lifted
from .methods.gauss_newton import squared
from .methods.global_optimum import Global, HiddenLayer

__all__ = ["PathStep", "global_path"]


@dataclass(frozen=True, eq=False)
class PathStep:
    """The optimum at one rho.

    Attributes:
        rho: sqrt(rho_1 rho_2) of the layers around the units.
        objective: loss and penalties, on the scale of training.
        gap: the proven one, relative to the objective.
        width: units that are not zero.
        evidence: log p(y), None where the loss is no likelihood or rounding hides it.
        error: mean square of what rows left out are missed by, in units of y; None as the evidence,
            and of classes.
        model: that predicts, and has error bars by `posterior`.

    Example:
        >>> import torch
        >>> from liftednet.activations import ReLU
        >>> from liftednet.losses import SquaredError
        >>> from liftednet.models import LiftedMLP, global_path
        >>> X = torch.linspace(-1, 1, 30, dtype=torch.float64)[:, None]
        >>> model = LiftedMLP((1, 30, 1), ReLU(), SquaredError(), rho=0.1, method="global")
        >>> path = global_path(model.fit(X, X.abs()), smallest=0.1, number=3)
        >>> [step.gap <= 1e-3 for step in path], path[-1].objective < path[0].objective
        ([True, True, True], True)
    """

    rho: float
    objective: float
    gap: float
    width: int
    evidence: float | None
    error: float | None
    model: Lifted


def global_path(
    model: Any, smallest: float, number: int = 20, gap: float = 1e-3, seconds: float = 10.0
) -> tuple[PathStep, ...]:
    """Return the optima at rho from the largest with a unit down to a given end.

    Without units the residuals V of the best constant, and of the linear layer where there is one,
    ask for a first one as soon as 2 rho < max |sum_i V_i phi(x_i w + b)| (`OneLayer`). From there
    rho falls by a factor, and each fit begins with the units of the one before. The rho of a
    linear layer stays.

    Args:
        model: fitted on arrays, of one hidden layer with ReLU or leaky ReLU, by
            any method; or an estimator of such a model.
        smallest: the last rho, sqrt(rho_1 rho_2) of both layers, whose ratio stays.
        number: of steps.
        gap: relative, that each ends at.
        seconds: after which each ends.

    Raises:
        DataError: no unit answers at the smallest rho, or a number is out of its range.
        DeclarationError: the network is another, or what it is held to is not convex.
        NotFittedError: the model has no data, as after loading.

    Example:
        >>> import torch
        >>> from liftednet.activations import ReLU
        >>> from liftednet.losses import SquaredError
        >>> from liftednet.models import LiftedMLP, global_path
        >>> X = torch.linspace(-1, 1, 30, dtype=torch.float64)[:, None]
        >>> y = X.abs() + 0.1 * (40 * X).cos()
        >>> model = LiftedMLP((1, 30, 1), ReLU(), SquaredError(), rho=0.1, method="global")
        >>> path = global_path(model.fit(X, y), smallest=0.1, number=5)
        >>> round(path[-1].rho, 6), path[0].objective > path[-1].objective
        (0.1, True)
    """
    from liftednet.solvers.one_layer.amplitudes import fitted
    from liftednet.solvers.one_layer.rounds import rounds, searched

    method = Global(gap, seconds)
    require_count("number", number, 1)
    lifted = model_of(model)
    if not isinstance(lifted, Lifted) or lifted._known.data is None:
        raise NotFittedError("a path goes over the data of a fit: call fit(X, y) on arrays before.")
    if lifted._known.report is not None:
        raise DataError("a path is of fits without constraints on scores: leave constraints= out.")
    known, data, found = lifted._known, lifted._known.data, list[PathStep]()
    assert data is not None  # seen to above
    with torch.inference_mode(False), torch.no_grad():
        layer = HiddenLayer.of(known.structure)
        parameters = known.structure.parameters
        values = {**data.values, **dict(zip(parameters, known.weights, strict=True))}
        problem = layer.problem(values)
        units = fitted(problem, problem.none())
        V = problem.residuals(problem.f(units), units.prices)
        first, _ = searched(problem, units, V, torch.Generator().manual_seed(0))
        largest = float(first.values[0]) / 2
        if not 0 < smallest < largest:
            raise DataError(
                f"at rho = {smallest:g} there is no unit, or rho is not positive: the path goes "
                f"from {largest:g} down to `smallest`, which is above 0 and below that."
            )
        for rho in np.geomspace(largest, smallest, number + 1)[1:].tolist():
            here = replace(problem, rho=rho)
            for now in rounds(here, fitted(here, units), layer.state.units, gap, seconds):
                units, reached = now.units, now
            values.update(layer.weights(units, values))
            pulls = {
                p: x if p is layer.linear else squared(x, layer.rho(p) * rho / problem.rho)
                for p, x in known.structure.penalties.items()
            }
            one = copy(lifted)
            one._fit = replace(
                known, structure=replace(known.structure, penalties=pulls), method=method,
                weights=tuple(values[x] for x in parameters), blocks=None, trace=None, laplace=None,
            )  # fmt: skip
            told = _by_data(one, layer)
            step = PathStep(rho, reached.objective, reached.gap, len(units), *told, one)
            found.append(step)
    return tuple(found)


def _by_data(model: Lifted, layer: HiddenLayer) -> tuple[float | None, float | None]:
    """Return the evidence and the mean square of errors of rows that are left out."""
    if layer.term.state is not None:
        return None, None
    try:
        bars = posterior(model)
        if layer.term.loss.probabilistic:
            return bars.log_evidence, None
        error = float(bars.leave_one_out().square().mean())
    except SolverError:
        return None, None
    return bars.log_evidence, error if math.isfinite(error) else None
