"""The last layer of a trained network, fitted once more to all samples at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from liftednet import processes
from liftednet.errors import SolverError
from liftednet.layers.expression import Applied, Parameter, arguments_of
from liftednet.losses import PinnedLoss
from liftednet.network import Term
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import WeightFit
from liftednet.samples import Design, Weights
from liftednet.solvers import GeneralizedLinear

from .block import Structure
from .data import Data

_SOLVER = GeneralizedLinear(tolerance=1e-3, max_iterations=200)  # of a start
_PULLS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)  # shares of a feature's mean sum of squares
_HELD = 5  # one of so many samples is held out to choose the pull
_PART = 250  # samples that are passed forward at once


@torch.no_grad()
def fitted_output(
    structure: Structure, weights: Sequence[Weights], data: Data, generator: torch.Generator
) -> list[Weights]:
    """Return weights whose last layer fits all samples, the features below it as they are.

    min over W, b of the loss + pull |W - W_0|_F^2, one convex problem, W_0 from training; the pull
    is lowered as long as the loss of a fifth of the samples falls, which is held out.

    Args:
        structure: of the network.
        weights: after training.
        data: with labels.
        generator: of the held out samples.

    Returns:
        New weights; the given ones where the last layer is not one dense layer by itself under a
        smooth loss and a squared norm, or samples are spread over processes.
    """
    place = _last(structure)
    if place is None or processes.size() > 1 or len(data) < _HELD * 2:
        return list(weights)
    term, layer, last = place
    values = dict(zip(structure.parameters, weights, strict=True))
    order = torch.randperm(len(data), generator=generator)
    inputs, targets = zip(*_features(structure, term, layer, values, data, order), strict=True)
    x, y = torch.cat(inputs), torch.cat(targets)
    cut = len(x) // _HELD
    best = given = values[last]
    least, unit = _loss(term, given, x[:cut], y[:cut]), float(x.square().sum() / x.shape[1])
    if not unit > 0:  # features that are dead, which a fit warns of
        return list(weights)
    pull, now = math.inf, given
    for share in _PULLS:
        now = _fitted(term, given, x[cut:], y[cut:], share * unit, now)
        loss = _loss(term, now, x[:cut], y[:cut])
        if not loss < least:
            break
        least, best, pull = loss, now, share * unit
    if math.isfinite(pull):
        best = _fitted(term, given, x, y, pull * len(x) / (len(x) - cut), best)
    values[last] = best
    return [values[parameter] for parameter in structure.parameters]


def _last(structure: Structure) -> tuple[Term, Applied, Parameter] | None:
    """Return the loss, and the layer right below it, where that can be fitted alone."""
    (term, *more), layer = structure.network.terms, structure.network.terms[0].argument
    if more or not isinstance(term.loss, PinnedLoss) or not isinstance(layer, Applied):
        return None
    if layer.weights is None or not layer.layer.plain or len(structure.layers[layer.weights]) > 1:
        return None
    if not isinstance(structure.penalties[layer.weights], SquaredFrobenius):
        return None
    return (term, layer, layer.weights) if term.pinned.divergence.smoothness else None


def _features(
    structure: Structure,
    term: Term,
    layer: Applied,
    values: Mapping[Parameter, Weights],
    data: Data,
    order: Tensor,
) -> Iterator[tuple[Tensor, Tensor]]:
    for rows in order.split(_PART):
        part = data.take(rows)
        (x,) = arguments_of(layer, structure.passed({**part.values, **values}))
        yield x.flatten(0, -2), part.values[term.label].flatten(0, -2)


def _fitted(
    term: Term, center: Weights, x: Tensor, y: Tensor, pull: float, now: Weights
) -> Weights:
    penalty = SquaredFrobenius(pull, center.matrix)
    fit = WeightFit(term.pinned.divergence, Design(x, now.bias is not None), y, penalty)
    try:
        return _SOLVER.solve(fit, now).value
    except SolverError:
        return now


def _loss(term: Term, weights: Weights, x: Tensor, y: Tensor) -> float:
    return float(term.pinned.divergence.values(y, weights.apply(x)).mean())
