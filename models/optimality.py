"""How far a network with one hidden layer is from the best there is, and the best at many rho."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from liftednet import errors
from liftednet.errors import DataError, DeclarationError, SolverError
from liftednet.lazy import optimize
from liftednet.losses import Loss
from liftednet.samples import Weights
from liftednet.validation import model_of, require_count

from .builders import LiftedMLP, feedforward
from .data import ArrayLike
from .error_bars import posterior
from .lifted import Lifted
from .methods.gauss_newton import squared
from .methods.global_optimum import Global, HiddenLayer
from .standardization import Standardization, unpacked_standardization

if TYPE_CHECKING:
    from liftednet.sets.polyhedron import Limits
    from liftednet.solvers.one_layer.problem import OneLayer, Units

    from .data import Data

__all__ = ["GlobalGap", "MissingUnit", "PathStep", "add_unit", "global_gap", "global_path"]

_TIGHT = 1e-4  # of the objective, from which a bound is not made tighter


@dataclass(frozen=True, eq=False)
class MissingUnit:
    """The unit that lowers an objective most as it comes in, on the scale of training.

    Attributes:
        w: its weights, (inputs,).
        b: its bias, a scalar.
        a: what outputs are of it, (outputs,); as much of it as lowers the objective most.
        c: what the bias of outputs changes by with it, (outputs,), which nothing holds: residuals
            that ask for the unit have no mean.
        answers: |sum_i V_i phi(x_i w + b)| over 2 rho with |w| = 1: above 1 where it lowers it.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from liftednet.losses import SquaredError
        >>> from liftednet import global_gap
        >>> X = torch.linspace(-1, 1, 30, dtype=torch.float64)[:, None]
        >>> network = nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 1)).double()
        >>> unit = global_gap(network, X, X.abs(), loss=SquaredError(), rho=0.1).unit
        >>> unit.w.shape, unit.answers > 1
        (torch.Size([1]), True)
    """

    w: Tensor
    b: Tensor
    a: Tensor
    c: Tensor
    answers: float


@dataclass(frozen=True, eq=False)
class GlobalGap:
    """How far a training is from the global optimum, by networks of any width.

    Attributes:
        objective: loss and penalties of the network, on the scale of training.
        bound: what no network of its kind has an objective below, proven.
        best: the least objective that was found on the way, by a wider network perhaps.
        width: units of the network that are not zero.
        unit: that would lower the objective; None where none was found.
        weights: of the network, on the scale of training.
        standardization: between raw data and that scale.

    Example:
        >>> import torch
        >>> from liftednet.activations import ReLU
        >>> from liftednet.losses import SquaredError
        >>> from liftednet import global_gap
        >>> from liftednet.models import LiftedMLP
        >>> X = torch.linspace(-1, 1, 30, dtype=torch.float64)[:, None]
        >>> model = LiftedMLP((1, 20, 1), ReLU(), SquaredError(), rho=0.1, method="global")
        >>> global_gap(model.fit(X, X.abs()), X, X.abs()).relative < 1e-3
        True
    """

    objective: float
    bound: float
    best: float
    width: int
    unit: MissingUnit | None
    weights: tuple[Weights, ...]
    standardization: Standardization

    @property
    def relative(self) -> float:
        """(objective - bound) / objective, 0 of an optimum: at most by so much it can fall."""
        return 0.0 if self.objective <= 0 else 1.0 - self.bound / self.objective

    def __repr__(self) -> str:
        """Name the numbers; weights have too many."""
        unit = "none found" if self.unit is None else f"answers {self.unit.answers:.3g} times 2 rho"
        return (
            f"GlobalGap(relative={self.relative:.2g}, objective={self.objective:.6g}, "
            f"bound={self.bound:.6g}, best={self.best:.6g}, width={self.width}, unit {unit})"
        )


def global_gap(
    model: Any,
    X: ArrayLike,
    y: ArrayLike,
    *,
    loss: Loss | None = None,
    rho: float | None = None,
    sample_weight: ArrayLike | None = None,
    seconds: float = 10.0,
) -> GlobalGap:
    """Return a proven bound on how much better any network with one hidden layer can be.

    min over units of the loss + rho_1 |W|^2 + rho_2 |A|^2 is convex over measures of units,
    whatever their number; residuals that no unit answers by more than 2 sqrt(rho_1 rho_2) bound it
    from below (`OneLayer`). Units are added to the network's until such residuals are found, or in
    time.

    Args:
        model: fitted, of one hidden layer with ReLU or leaky ReLU; an estimator of
            such a model; or a torch network of Linear, ReLU and Linear.
        X: (samples, inputs), raw.
        y: as the loss takes it.
        loss: of a torch network alone.
        rho: of a torch network alone, rho |W|^2 of both matrices: half its weight decay where the
            loss is a sum over samples, as that of liftednet is.
        sample_weight: as `fit` takes it.
        seconds: that the proof may take. The bound is what is proven until then, 0 at least.

    Raises:
        DataError: X or y do not fit.
        DeclarationError: the network is another, or what it is held to is not convex.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from liftednet.losses import SquaredError
        >>> from liftednet import global_gap
        >>> X = torch.linspace(-1, 1, 30, dtype=torch.float64)[:, None]
        >>> network = nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 1)).double()
        >>> found = global_gap(network, X, X.abs(), loss=SquaredError(), rho=0.1)
        >>> 0 < found.bound <= found.best <= found.objective, found.unit.answers > 1
        (True, True)
    """
    from liftednet.solvers.one_layer.amplitudes import fitted
    from liftednet.solvers.one_layer.rounds import rounds

    lifted = _lifted(model, X, loss, rho)
    with torch.inference_mode(False), torch.no_grad():
        structure, standardization = lifted.structure, lifted._known.standardization
        layer = HiddenLayer.of(structure)
        data = standardization.of(lifted._data(X, y, None, sample_weight))
        weights = list(lifted._known.weights)
        values = {**data.values, **dict(zip(structure.parameters, weights, strict=True))}
        limits, f = _limits(lifted, data), layer.scores(values)
        most = f.numel() + layer.state.units + 1  # as many as an optimum needs
        problem = layer.problem(values, limits, most)
        units = layer.units(values, problem.none().prices)
        objective = float(problem.scores.value(f)) + structure.penalty(values)
        bound, best = 0.0, objective
        for now in rounds(problem, fitted(problem, units), most, _TIGHT, seconds):
            bound = now.bound
            best = best if now.passed > 0 else min(best, now.objective)
            if best - bound <= _TIGHT * objective:
                break
        unit = None if limits is not None else _missing(layer, problem, units, f)
    bound = min(bound, objective)
    return GlobalGap(objective, bound, best, len(units), unit, tuple(weights), standardization)


def _limits(lifted: Lifted, data: Data) -> Limits | None:
    """Return what the last fit of a model held its scores by."""
    from .constraints import limits_in_training

    known = lifted._known
    given = () if known.report is None else known.report.constraints
    return limits_in_training(lifted.network, given, data, known.standardization) if given else None


def _missing(layer: HiddenLayer, problem: OneLayer, units: Units, f: Tensor) -> MissingUnit | None:
    """Return the unit that residuals of scores ask for most, None where they ask for none."""
    from liftednet.solvers.one_layer.rounds import searched

    V = problem.residuals(f, units.prices)
    found, _ = searched(problem, units, V, torch.Generator().manual_seed(0))
    answers = float(found.values[0]) / (2 * problem.rho)
    if answers <= 1:
        return None
    h = problem.phi.of(problem.X @ found.w[0] + found.b[0])[:, None]
    z = problem.outputs(found.w[:1], found.b[:1], found.kind[:1], V)[0]

    def objective(t: float) -> float:
        return float(problem.scores.value(f + t * (h - h.mean()) * z)) + 2 * problem.rho * t

    most = optimize.minimize_scalar(objective).x
    if not most > 0 or objective(most) >= objective(0.0):
        return None
    root = most**0.5
    return MissingUnit(
        found.w[0] * root * layer.ratio, found.b[0] * root * layer.ratio, z * root / layer.ratio,
        -most * h.mean() * z, answers,
    )  # fmt: skip


def add_unit(model: Any, gap: GlobalGap) -> Any:
    """Return a network with the unit that a gap has found, as much of it as lowers the objective.

    Args:
        model: the `LiftedMLP` or torch.nn.Sequential that the gap is of.
        gap: as `global_gap` returns it.

    Returns:
        A new one, one unit wider, with weights; fit it with warm_start=True to go on from there.

    Raises:
        DataError: there is no such unit, or the model is another.

    Example:
        >>> import torch
        >>> from liftednet.activations import ReLU
        >>> from liftednet.losses import SquaredError
        >>> from liftednet import global_gap
        >>> from liftednet.models import LiftedMLP, add_unit
        >>> X = torch.linspace(-1, 1, 30, dtype=torch.float64)[:, None]
        >>> model = LiftedMLP((1, 1, 1), ReLU(), SquaredError(), rho=0.1, method="gauss-newton")
        >>> found = global_gap(model.fit(X, X.abs()), X, X.abs())
        >>> wider = add_unit(model, found)
        >>> wider.sizes, global_gap(wider, X, X.abs()).objective < found.objective
        ((1, 2, 1), True)
    """
    unit = gap.unit
    if unit is None:
        raise DataError("no unit lowers the objective: there is none to add.")
    below, above = (x.stacked().double() for x in gap.weights[:2])
    w = torch.cat([unit.w, unit.b[None]])[:, None]
    wider = [torch.cat([below, w], 1), torch.cat([above[:-1], unit.a[None], above[-1:] + unit.c])]
    layers = [x.like(v.to(x.matrix)) for x, v in zip(gap.weights, wider, strict=False)]
    layers += gap.weights[2:]
    if isinstance(model, nn.Sequential):
        return _torch_network(model, layers)
    if not isinstance(model, LiftedMLP):
        raise DataError(
            "a unit is added to a LiftedMLP or a torch.nn.Sequential of Linear, activation and "
            f"Linear; got {type(model).__name__}."
        )
    found = copy(model)
    found._fit = None
    inputs, units, outputs = model.sizes
    found.sizes = inputs, units + 1, outputs
    state = model.network.states[0]
    found.network = feedforward(
        found.sizes, [state.activation], model.loss, skip=model.skip, missing=model.missing,
        within=model.within,
    )  # fmt: skip
    packed = gap.standardization.packed(model.network)
    scales = unpacked_standardization(packed, found.network)
    penalties = dict(zip(found.network.parameters, model.structure.penalties.values(), strict=True))
    raw = scales.folded(found.network, layers, penalties)
    found.with_weights(layers)
    found.start = model.start if raw is None else raw  # of a fit that is no warm one
    found._fit = replace(found._known, standardization=scales)
    return found


def _torch_network(network: nn.Sequential, layers: list[Weights]) -> nn.Sequential:
    _, activation, _ = network
    made = [nn.Linear(*x.matrix.shape).to(x.matrix) for x in layers]
    for module, layer in zip(made, layers, strict=True):
        assert layer.bias is not None  # `HiddenLayer` has seen to it
        module.weight.data, module.bias.data = layer.matrix.T.contiguous(), layer.bias
    return nn.Sequential(made[0], activation, made[1])


def _lifted(model: Any, X: Any, loss: Loss | None, rho: float | None) -> Lifted:
    """Return a model with weights.

    Raises:
        DataError: loss and rho are missing, or given beside a model that has its own.
        DeclarationError: it is no network.
    """
    own = model_of(model)
    if isinstance(own, Lifted):
        if loss is not None or rho is not None:
            raise DataError("loss and rho are those of the model; pass them with torch networks.")
        return own
    if not isinstance(own, nn.Module):
        raise DeclarationError(
            "the gap is of a fitted model of liftednet.models or a torch network, got "
            f"{type(model).__name__}."
        )
    if loss is None or rho is None:
        raise DataError(
            "a torch network does not say what it was held to: pass loss, such as "
            "liftednet.losses.SquaredError(), and rho, the weight of its squared matrices."
        )
    from .from_torch.model import lift

    lifted = lift(own, X[:2], loss=loss, rho=rho, standardize=False, show=False)
    return lifted.with_weights([*lifted._first_weights()])


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
        raise errors.NotFittedError(
            "a path goes over the data of a fit: call fit(X, y) on arrays before."
        )
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
