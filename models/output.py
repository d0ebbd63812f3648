"""The last layers of a trained network, fitted once more to all samples at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from liftednet import processes
from liftednet.divergences import Divergence
from liftednet.errors import SolverError
from liftednet.layers.dense import DenseAtPositions
from liftednet.layers.expression import Applied, arguments_of
from liftednet.layers.time import Steps
from liftednet.network import Label, Network, Term
from liftednet.penalties import Penalty, SquaredFrobenius
from liftednet.problems import WeightFit
from liftednet.samples import Design, Weights
from liftednet.solvers import solve
from liftednet.solvers.generalized_linear import GeneralizedLinear

from .block import Structure, counted, row_weights
from .data import Data
from .forward_pass import Values
from .methods.descent import AnySolver

_PULLS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)  # shares of a feature's sum of squares
_HELD = 5  # one of so many samples is held out to choose the pull
_LEAST = 2 * _HELD  # samples, fewer of which choose nothing
_QUICK = GeneralizedLinear(tolerance=1e-3, max_iterations=200)  # later digits predict no better


def output_obstacle(network: Network) -> str | None:
    """Say what is needed to fit the last layers by themselves, None where it is there."""
    for term in network.terms:
        if term.state is not None:
            return (
                "a loss on the last pre-activation, such as CrossEntropy; "
                f"{type(term.loss).__name__} has output states here"
            )
        layer = _dense(term)
        if layer is None or layer.weights is None:
            return f"a dense layer right below the loss; there is {term.argument} here"
        others = [x for x in network.arguments if x is not term.argument] + list(layer.arguments)
        if any(layer.weights in x.variables for x in others):
            return f"a last layer whose weights no other has; those of {layer} have another use"
    return None


def _dense(term: Term) -> Applied | None:
    """Return the dense layer below a loss, in one piece or at positions; None where none is.

    Each position is then a row of the fit, which a loss over several of them together forbids.
    """
    found = term.argument
    if isinstance(found, Applied) and isinstance(found.layer, Steps):
        (found,) = found.arguments
    if not isinstance(found, Applied):
        return None
    if isinstance(found.layer, DenseAtPositions):
        apart = term.argument.units == found.layer.units
        return found if apart or term.pinned.divergence.activation.per_unit else None
    return found if found.layer.plain and found is term.argument else None


@torch.no_grad()
def refitted(
    structure: Structure,
    weights: Sequence[Weights],
    data: Data,
    generator: torch.Generator,
    solver: AnySolver = "auto",
) -> list[Weights]:
    """Return weights whose last layers fit all samples, the features below as a forward pass.

    For each loss min over W, b of the loss + the penalty + pull |W - W_0|_F^2, one convex problem,
    W_0 from training; the pull is lowered as long as the loss of a fifth of the samples falls,
    which is held out from the fits that choose it. Where it does not, as after many passes, which
    have seen that fifth, and of fewer than ten samples, the weights stay.

    Args:
        structure: of the network, which has no `output_obstacle`.
        weights: after training.
        data: with labels.
        generator: of the held out samples.
        solver: of the fits.

    Raises:
        SolverError: the last fit failed.
    """
    share = processes.share_of(len(data))
    if share.samples < _LEAST:
        return list(weights)
    order = torch.randperm(share.samples, generator=generator)
    parts = order.tensor_split([share.samples // _HELD])
    values = dict(zip(structure.parameters, weights, strict=True))
    with processes.agreed():
        held, rest = (_rows(structure, values, data, share.own(part)) for part in parts)
    for fit in map(_OutputFit, structure.network.terms, held, rest):
        layer = _dense(fit.term)
        assert layer is not None and layer.weights is not None  # there is no obstacle
        penalty, given = structure.penalties[layer.weights], values[layer.weights]
        values[layer.weights] = fit.chosen(penalty, given, solver)
    return [values[parameter] for parameter in structure.parameters]


@dataclass(frozen=True)
class _Rows:
    """Features, targets, and how much each row counts, None for 1."""

    features: Tensor
    targets: Tensor
    weights: Tensor | None

    @property
    def size(self) -> float:
        """The sum of squares of a feature, in the mean of the features."""
        squares = self.features.square().mean(1)
        total = squares.sum() if self.weights is None else squares @ self.weights
        return processes.total_of(float(total))

    def taken(self, mask: Tensor) -> _Rows:
        """Return those of a mask."""
        weights = None if self.weights is None else self.weights[mask]
        return _Rows(self.features[mask], self.targets[mask], weights)

    def beside(self, other: _Rows) -> _Rows:
        """Return both."""
        weights = None
        if self.weights is not None and other.weights is not None:
            weights = torch.cat([self.weights, other.weights])
        features = torch.cat([self.features, other.features])
        return _Rows(features, torch.cat([self.targets, other.targets]), weights)


def _rows(structure: Structure, values: Values, data: Data, numbers: Tensor) -> list[_Rows]:
    """Return the rows of every loss, of samples of some numbers."""
    terms = structure.network.terms
    found: list[list[_Rows]] = [[] for _ in terms]
    for part in data.parts(numbers, structure.states) if len(numbers) else [data.take(numbers)]:
        passed = structure.passed({**part.values, **values})
        for term, rows in zip(terms, found, strict=True):
            rows.append(_counted(term, passed, data.last_only))
    return [reduce(_Rows.beside, rows) for rows in found]


def _counted(term: Term, values: Values, last_only: frozenset[Label]) -> _Rows:
    layer = _dense(term)
    assert layer is not None  # there is no obstacle
    x = layer.layer.inputs(arguments_of(layer, values))
    assert x is not None  # it is dense
    y, weights, mask = _asked(term, layer, values, last_only)
    rows = _Rows(x, y, weights)
    return rows if mask is None else rows.taken(mask)


def _asked(
    term: Term, layer: Applied, values: Values, last_only: frozenset[Label]
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return targets in the rows of a layer, what these weigh, and which count; None for all."""
    y = values[term.label]
    weights, mask = row_weights(values, y), counted(values, last_only, term.label, term.argument)
    if layer is not term.argument:  # whose rows stand sample by sample, and those of y in steps
        y, weights, mask = (
            None if part is None else part.transpose(0, 1) for part in (y, weights, mask)
        )
    assert layer.weights is not None  # it is dense
    y = y.reshape(-1, layer.weights.shape[1])
    if weights is not None:  # a sample has a row for each of its positions
        weights = weights.flatten().repeat_interleave(len(y) // max(1, weights.numel()))
    return y, weights, None if mask is None else mask.flatten()


@torch.no_grad()
def with_constants(
    structure: Structure, weights: Sequence[Weights], data: Data, centered: bool
) -> list[Weights]:
    """Return weights whose last layers have the bias of the best constant prediction.

    It is grad Phi of the mean target, among which phi(0) is counted once, so that none is at the
    end of its range; added to the bias that is there where this centers the outputs. Layers without
    a bias, and those that are not dense, stay as they are.
    """
    found = dict(zip(structure.parameters, weights, strict=True))
    for term in structure.network.terms:
        layer = _dense(term)
        if term.state is None and layer is not None and layer.weights is not None:
            given = found[layer.weights]
            if given.bias is not None:
                bias = _best_constant(term.pinned.divergence, *_mean(term, layer, data))
                if bool(bias.isfinite().all()):
                    constant = bias[0].to(given.bias)
                    around = given.bias + constant if centered else constant
                    found[layer.weights] = Weights(given.matrix, around)
    return [found[parameter] for parameter in structure.parameters]


def _mean(term: Term, layer: Applied, data: Data) -> tuple[Tensor, float]:
    """Return the mean target, (1, units), in float64, and of how many rows it is."""
    y, weights, mask = _asked(term, layer, data.values, data.last_only)
    if mask is not None:
        y, weights = y[mask], None if weights is None else weights[mask]
    counts = y.new_ones(len(y)) if weights is None else weights
    total, mass = processes.total(counts.double() @ y.double(), counts.double().sum())
    return (total / mass.clamp(min=1.0)).unsqueeze(0), float(mass)


def _best_constant(divergence: Divergence, mean: Tensor, count: float) -> Tensor:
    """Return u with grad R(u) = the mean, where R is quadratic or the conjugate of Phi."""
    zero = torch.zeros_like(mean)
    if divergence.quadratic:
        assert divergence.smoothness is not None  # it is quadratic
        return (mean - divergence.link_gradient(zero)) / divergence.smoothness
    activation = divergence.activation
    inside = (count * mean + activation.forward(zero)) / (count + 1)
    with torch.enable_grad():
        inside.requires_grad_()
        return torch.autograd.grad(activation.potential_value(inside), inside)[0]


@dataclass(frozen=True)
class _OutputFit:
    """The fits of one last layer: by a part of the rows, and by all of them."""

    term: Term
    held: _Rows
    rest: _Rows

    def chosen(self, penalty: Penalty, given: Weights, solver: AnySolver) -> Weights:
        """Return the layer at the pull that is best on the rows held out."""
        if not self.rest.size > 0:  # features that are dead, which a fit warns of
            return given
        best, least, chosen = given, self._loss(given), None
        for share in _PULLS:
            fit = self._problem(self.rest, share, penalty, given)
            try:
                now = _solved(fit, solver, best)
            except SolverError:  # of features of any size: a pull that is not taken
                break
            loss = self._loss(now)
            if not loss < least:
                break
            best, least, chosen = now, loss, share
        if chosen is None:
            return given
        fit = self._problem(self.rest.beside(self.held), chosen, penalty, given)
        return _solved(fit, solver, best)

    def _problem(self, rows: _Rows, share: float, penalty: Penalty, given: Weights) -> WeightFit:
        design = Design(rows.features, given.bias is not None, rows.weights)
        pull = pulled(penalty, share * rows.size, given.matrix)
        return WeightFit(self._divergence, design, rows.targets, pull, self.term.weight)

    def _loss(self, weights: Weights) -> float:
        rows = self.held
        losses = self._divergence.values(rows.targets, weights.apply(rows.features))
        total = losses.sum() if rows.weights is None else losses @ rows.weights
        return processes.total_of(float(total))

    @property
    def _divergence(self) -> Divergence:
        return self.term.pinned.divergence


def pulled(penalty: Penalty, pull: float, before: Tensor) -> Penalty:
    """Return a penalty + pull |W - before|_F^2, up to a constant."""
    if not isinstance(penalty, SquaredFrobenius) or penalty.center is not None:
        return penalty + SquaredFrobenius(pull, before)
    total = penalty.rho + pull  # one square
    return SquaredFrobenius(total, before * (pull / total))


def _solved(fit: WeightFit, solver: AnySolver, start: Weights) -> Weights:
    quick = solver == "auto" and _QUICK.obstacle(fit) is None and not fit.quadratic
    return solve(fit, _QUICK if quick else solver, start).value  # type: ignore[no-any-return]
