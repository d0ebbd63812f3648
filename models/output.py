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
from liftednet.layers.expression import Applied, arguments_of
from liftednet.network import Label, Network, Term
from liftednet.penalties import Penalty
from liftednet.problems import WeightFit
from liftednet.samples import Design, Weights
from liftednet.solvers import GeneralizedLinear, solve

from .block import Structure, counted, pulled, row_weights
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
        layer = term.argument
        if not isinstance(layer, Applied) or not layer.layer.plain or layer.weights is None:
            return f"a dense layer right below the loss; there is {layer} here"
        others = [x for x in network.arguments if x is not layer] + list(layer.arguments)
        if any(layer.weights in x.variables for x in others):
            return f"a last layer whose weights no other has; those of {layer} have another use"
    return None


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
        layer = fit.term.argument.weights
        assert layer is not None  # there is no obstacle
        values[layer] = fit.chosen(structure.penalties[layer], values[layer], solver)
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
    assert isinstance(term.argument, Applied)  # there is no obstacle
    (x,), y = arguments_of(term.argument, values), values[term.label]
    weights, mask = row_weights(values, y), counted(values, last_only, term.label, term.argument)
    if mask is not None:
        x, y, weights = x[mask], y[mask], None if weights is None else weights[mask]
    return _Rows(x.flatten(0, -2), y.flatten(0, -2), None if weights is None else weights.flatten())


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


def _solved(fit: WeightFit, solver: AnySolver, start: Weights) -> Weights:
    quick = solver == "auto" and _QUICK.obstacle(fit) is None and not fit.quadratic
    return solve(fit, _QUICK if quick else solver, start).value  # type: ignore[no-any-return]
