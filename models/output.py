"""The last layers of a trained network, fitted once more to all samples at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from liftednet import processes
from liftednet.activations import Identity
from liftednet.divergences import Divergence
from liftednet.errors import SolverError
from liftednet.layers.dense import DenseAtPositions
from liftednet.layers.expression import Applied, Parameter
from liftednet.layers.time import Steps
from liftednet.losses import Quantile
from liftednet.network import Network, Term
from liftednet.penalties import Penalty, SquaredFrobenius
from liftednet.problems import WeightFit
from liftednet.samples import Design, Weights, quantile
from liftednet.solvers import solve
from liftednet.solvers.generalized_linear import GeneralizedLinear

from .block import Blocks, Structure, rows_that_count
from .data import Data
from .diagnosis import compared
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
        return found if apart or term.divergence.activation.per_unit else None
    return found if found.layer.plain and found is term.argument else None


def _last(term: Term) -> Parameter | None:
    """Return the weights of the dense layer below a loss, None where none is."""
    layer = _dense(term)
    return None if layer is None else layer.weights


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
    held, rest = (_fits(structure, values, data, share.own(part)) for part in parts)
    for parameter, fit in rest.items():
        values[parameter] = _chosen(fit, held[parameter], values[parameter], solver)
    return [values[parameter] for parameter in structure.parameters]


@torch.no_grad()
def levelled(structure: Structure, weights: Sequence[Weights], data: Data) -> list[Weights]:
    """Return weights whose last biases let quantiles have their share of the answers.

    Training sees the Moreau envelope of the pinball loss, whose kink is rounded over 1 / lam. In
    the bias the loss itself has its minimum where y - X W is cut by the quantile (Koenker and
    Bassett, 1978, section 2).
    """
    values = dict(zip(structure.parameters, weights, strict=True))
    for term in structure.network.terms:
        last = _last(term)
        if last is None or not isinstance(term.loss, Quantile) or term.state is None:
            continue
        own = values[last]
        if own.bias is None or type(term.state.activation) is not Identity:
            continue
        u, y, counts = compared(term, data, structure.passed({**data.values, **values}))
        shift = quantile(y - u, counts, term.loss.level)
        values[last] = replace(own, bias=own.bias + shift.to(own.bias))
    return [values[parameter] for parameter in structure.parameters]


def _fits(
    structure: Structure, values: Values, data: Data, numbers: Tensor
) -> dict[Parameter, WeightFit]:
    """Return the fits of all last layers to samples of some numbers, after a forward pass."""
    last = [x for term in structure.network.terms if (x := _last(term)) is not None]
    found: dict[Parameter, WeightFit] = {}
    for part in data.parts(numbers, structure.states) if len(numbers) else [data.take(numbers)]:
        blocks = Blocks(structure, {**part.values, **values}, data.last_only)
        for parameter in last:
            fit = blocks.weight_fit(parameter)
            assert isinstance(fit, WeightFit)  # there is no obstacle
            found[parameter] = _beside(found[parameter], fit) if parameter in found else fit
    return found


def _beside(first: WeightFit, second: WeightFit) -> WeightFit:
    """Return the fit to the rows of both."""
    pairs = [(x.design.weights, x.targets, x.design.inputs) for x in (first, second)]
    weights, targets, inputs = (
        None if one is None else torch.cat([one, other]) for one, other in zip(*pairs, strict=True)
    )
    assert inputs is not None and targets is not None
    design = Design(inputs, first.design.bias, weights)
    return replace(first, design=design, targets=targets)


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
        last = _last(term)
        if term.state is None and last is not None and (before := found[last].bias) is not None:
            bias = _best_constant(term.divergence, *_mean(term, last, data))
            if bool(bias.isfinite().all()):
                constant = bias[0].to(before)
                found[last] = replace(found[last], bias=constant + before * centered)
    return [found[parameter] for parameter in structure.parameters]


def _mean(term: Term, last: Parameter, data: Data) -> tuple[Tensor, float]:
    """Return the mean target, (1, units), in float64, and of how many rows it is."""
    label, given = term.label, data.values[term.label]
    y, weights = rows_that_count(data.values, data.last_only, label, term.argument, given)
    y = y.reshape(-1, last.shape[1])
    counts = y.new_ones(len(y))
    if weights is not None:  # a sample has a row for each of its positions
        counts = weights.repeat_interleave(len(y) // max(1, len(weights)))
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


def _chosen(rest: WeightFit, held: WeightFit, given: Weights, solver: AnySolver) -> Weights:
    """Return the layer at the pull that is best on the rows held out, fitted to all of them."""
    if not _size(rest) > 0:  # features that are dead, which a fit warns of
        return given
    best, least, chosen = given, _loss(held, given), None
    for share in _PULLS:
        try:
            now = _solved(rest, share, given, best, solver)
        except SolverError:  # of features of any size: a pull that is not taken
            break
        loss = _loss(held, now)
        if not loss < least:
            break
        best, least, chosen = now, loss, share
    return best if chosen is None else _solved(_beside(rest, held), chosen, given, best, solver)


def _solved(
    fit: WeightFit, share: float, given: Weights, start: Weights, solver: AnySolver
) -> Weights:
    fit = replace(fit, penalty=pulled(fit.penalty, share * _size(fit), given.matrix))
    quick = solver == "auto" and _QUICK.obstacle(fit) is None and not fit.quadratic
    return solve(fit, _QUICK if quick else solver, start).value


def _loss(held: WeightFit, weights: Weights) -> float:
    losses = held.divergence.values(held.targets, weights.apply(held.design.inputs))
    total = losses.sum() if held.design.weights is None else losses @ held.design.weights
    return processes.total_of(float(total))


def _size(fit: WeightFit) -> float:
    """Return the sum of squares of a feature, in the mean of the features."""
    squares, weights = fit.design.inputs.square().mean(1), fit.design.weights
    return processes.total_of(float(squares.sum() if weights is None else squares @ weights))


def pulled(penalty: Penalty, pull: float, before: Tensor) -> Penalty:
    """Return a penalty + pull |W - before|_F^2, up to a constant."""
    if not isinstance(penalty, SquaredFrobenius):
        return penalty + SquaredFrobenius(pull, before)
    total = penalty.rho + pull  # one square
    center = 0.0 if penalty.center is None else penalty.center * (penalty.rho / total)
    return SquaredFrobenius(total, before * (pull / total) + center)
