"""Constraints on the scores of a network: all weights under them, the last layer exactly, prices.

Scores are affine in the weights of the last layer, so that its fit is convex and exact; the
features that it sees are those of the forward pass, and so the network itself meets what it meets.
All weights are trained before by multipliers around quasi-Newton steps: a few, since more of them
fit the training rows alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from liftednet import processes
from liftednet.errors import DeclarationError, SolverError
from liftednet.layers.expression import TIME, Applied, Expression, Parameter, value_of
from liftednet.layers.join import Sum
from liftednet.layers.projection import Projection
from liftednet.network import Network, Term
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import ConstrainedFit, WeightFit
from liftednet.samples import Design, Weights
from liftednet.sets.constraint import (
    Constraint,
    Rescaled,
    refuse_contradictions,
    refuse_impossible,
    require_constraints,
)
from liftednet.sets.polyhedron import Array, Limits, stacked
from liftednet.sets.rates import RateConstraint
from liftednet.solution import Solution
from liftednet.solvers import solve
from liftednet.solvers.one_layer.problem import ScoreLimits
from liftednet.solvers.quasi_newton import lbfgs

from .block import Blocks, Structure, doubled, rows_that_count
from .checkpoint import Keeper
from .constraint_report import ConstraintReport, apart_of, broken
from .data import Data
from .forward_pass import Values
from .rates import CountedFit, HeldRates, counted_fit, decides, numbers_of, refuse_unmet_rates
from .standardization import Standardization
from .trace import Ending, Report, Step, Steps, run

if TYPE_CHECKING:
    from .lifted import Lifted

Stacked = dict[Parameter, Tensor]  # [W; b] of every layer

_ROUNDS, _FEWEST, _MOST = 7, 10, 60  # of the multipliers, and of L-BFGS in each: least and most
_BRIEF = 3, 5, 20  # rounds, and steps in each, while rho is chosen
_ROWS = 24_000  # that a round passes between these, so that many rows take few steps
_HISTORY = 10
_FALL, _RISE = 0.25, 4.0  # a round that brings less raises the weight of the squares by so much
_MET = 1e-5  # limits moved by less, over the norm of their rows, and the prices with them: the end
_WORSE = 1.1  # times the objective of the rounds, where features meet limits by a constant alone
_AGAIN = 3  # times that rounds go on to better features
_MISSED = 1e-9  # of a share of rows: rounding
_SETTLED = 1e-5  # relative change of the objective in a round
_EXACT = 1e-6  # residual of a last layer that counts as solved: features may hardly differ by row
_NEEDS = (
    "constraints on scores need one loss on the last pre-activation, SquaredError, CrossEntropy, "
    "BinaryCrossEntropy or Poisson, right on a dense layer"
)


class ScoredRows:
    """The rows of scores that count: of sequences their steps, one sequence after the other.

    Training has all first steps before all second ones.
    """

    def __init__(self, network: Network, data: Data) -> None:
        """Find the rows of the last pre-activations on some data."""
        self._term, self._data = network.terms[0], data
        self._order: Array | None = None
        self._lengths: Array | None = None
        self.picked = partial(
            rows_that_count, data.values, data.last_only, self._term.label, self._term.argument
        )
        if self._term.argument.sequence:
            timeline = data.values[TIME]
            last = self._term.label in data.last_only
            mask = timeline.last if last else timeline.valid
            numbers = mask.flatten().cumsum(0).view_as(mask) - 1
            self._order = numbers.T[mask.T].cpu().numpy()
            self._lengths = None if last else timeline.known.cpu().numpy()

    @property
    def targets(self) -> Tensor:
        """(rows, outputs) in the order of training."""
        return self.picked(self._data.values[self._term.label])[0]

    def of_samples(self, rows: Any) -> Any:
        """Return rows in the order of training as those of one sequence after the other."""
        return rows if self._order is None else rows[self._order]

    def scores(self, found: Tensor) -> Tensor:
        """Return (rows, outputs), those of one sequence after the other, of a model's scores."""
        if self._lengths is None:
            return found
        steps = torch.arange(found.shape[1]) < torch.from_numpy(self._lengths)[:, None]
        return found[steps.to(found.device)]

    def bound(self, constraints: Sequence[Constraint]) -> tuple[Constraint, ...]:
        """Return constraints that know the sequences."""
        if self._lengths is None:
            return tuple(constraints)
        return tuple(one.of_sequences(self._lengths) for one in constraints)

    def trained(self, constraints: Sequence[Any]) -> tuple[Any, ...]:
        """Return constraints on the rows in the order of training."""
        if self._order is None:
            return tuple(constraints)
        back = np.argsort(self._order)
        return tuple(
            one.taken(back) if isinstance(one, RateConstraint) else one.taken(back, len(back))
            for one in constraints
        )


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

    def problem(self, blocks: Blocks) -> ConstrainedFit:
        """Return the fit of the last layers to the features that are there.

        Layers that are added up, as in a connection past the units, are one [H, X] [V; Q]: where
        rho differ, columns are divided by sqrt(rho) and weights multiplied by it.
        """
        found = [blocks.weight_fit(parameter) for parameter in self._last]
        fits = [fit for fit in found if isinstance(fit, WeightFit)]
        if len(fits) < len(found):
            raise DeclarationError(f"{_NEEDS}.")
        first, sizes = fits[0], self._sizes(blocks)
        if len(fits) > 1:
            inputs = [fit.design.inputs / size for fit, size in zip(fits, sizes, strict=True)]
            bias = any(fit.design.bias for fit in fits)
            design = Design(torch.cat(inputs, 1), bias, first.design.weights)
            first = replace(first, design=design, penalty=SquaredFrobenius(1.0), offset=None)
        return ConstrainedFit(first, self.rescaled)

    def start(self, blocks: Blocks) -> Weights:
        """Return the last layers as weights of the problem."""
        layers: list[Weights] = [blocks.values[parameter] for parameter in self._last]
        if len(layers) == 1:
            return layers[0]
        pairs = zip(layers, self._sizes(blocks), strict=True)
        biases = [layer.bias for layer in layers if layer.bias is not None]
        bias = torch.stack(biases).sum(0) if biases else None
        return Weights(torch.cat([layer.matrix * size for layer, size in pairs]), bias)

    def place(self, blocks: Blocks, found: Weights) -> None:
        """Put weights of the problem into the last layers."""
        layers: list[Weights] = [blocks.values[parameter] for parameter in self._last]
        if len(layers) == 1:
            blocks.values[self._last[0]] = found
            return
        rest, parts = found.bias, found.matrix.split([len(x.matrix) for x in layers])
        for parameter, layer, part, size in zip(
            self._last, layers, parts, self._sizes(blocks), strict=True
        ):
            bias = None if layer.bias is None else rest
            blocks.values[parameter] = Weights(part / size, bias)
            rest = rest if bias is None else torch.zeros_like(bias)

    @property
    def _last(self) -> list[Parameter]:
        """The weights of the last layers."""
        return _last_weights(self.term)

    def _sizes(self, blocks: Blocks) -> list[float]:
        """Return sqrt(rho) of every last layer where there are several."""
        if len(self._last) == 1:
            return [1.0]
        return [math.sqrt(blocks.structure.penalties[x].curvature / 2) for x in self._last]

    @property
    def rescaled(self) -> tuple[Constraint, ...]:
        """The constraints on the scores in training."""
        held = self.constraints
        if (known := self.standardization.moments.get(self.term.label)) is not None:
            held = tuple(Rescaled(one, known.scale, known.center) for one in held)
        return held

    def fitted(self, blocks: Blocks) -> tuple[Solution[Weights], float]:
        """Return the fit of the last layer, and its duality gap."""
        problem = self.problem(blocks)
        solution = solve(problem, start=self.start(blocks))
        if not solution.residual <= _EXACT:
            solution.require_solved()
        return solution, problem.gap(solution.value, solution.duals)


def _last_weights(term: Term) -> list[Parameter]:
    return [layer.weights for layer in last_layers(term.argument) if layer.weights is not None]


def refuse_unmet(
    structure: Structure, constraints: Sequence[Constraint | RateConstraint], data: Data
) -> None:
    """Refuse constraints that no training of this network on these data can meet.

    Raises:
        DataError: one does not fit the scores, or they contradict each other.
        DeclarationError: the network has no scores that they could hold.
    """
    scored, rates = parted(constraints)
    if not constraints:
        return
    network = structure.network
    term, rows = network.terms[0], ScoredRows(network, data)
    if isinstance(term.argument, Applied) and isinstance(term.argument.layer, Projection):
        raise DeclarationError(
            "this network holds its scores by within= already, behind which no layer is fitted "
            "under constraints= exactly: declare all of them by one of the two."
        )
    elsewhere = len(network.terms) > 1 or term.state is not None
    if elsewhere or not last_layers(term.argument):
        raise DeclarationError(f"{_NEEDS}; the loss is {structure.loss(term)!r}.")
    added = {x: structure.penalties[x] for x in _last_weights(term)}
    for x, penalty in added.items() if len(added) > 1 else ():
        if not isinstance(penalty, SquaredFrobenius) or penalty.center is not None:
            raise DeclarationError(
                "constraints= need squares as the penalties of layers that add up to the scores; "
                f"here, as with convex=True, {x} has {penalty!r}."
            )
    y, scored = rows.of_samples(rows.targets), rows.bound(scored)
    refuse_unmet_rates(network, rates, y)
    refuse_contradictions(scored, len(y), term.argument.units)
    refuse_impossible(scored, len(y), term.argument.units)


def limits_in_training(
    network: Network,
    constraints: Sequence[Constraint | RateConstraint],
    data: Data,
    standardization: Standardization,
) -> Limits | None:
    """Return what holds scores where it is convex and linear, None for no constraints.

    Raises:
        DeclarationError: a constraint is on rates, or CVXPY alone knows it.
    """
    scored, rates = parted(constraints)
    rows, term = ScoredRows(network, data), network.terms[0]
    held = HeldScores(term, rows.trained(rows.bound(scored)), standardization).rescaled
    samples, outputs = len(rows.targets), term.argument.units
    found = [one.limits(samples, outputs) for one in held]
    known = [one for one in found if one is not None]
    if rates or len(known) < len(found):
        raise DeclarationError(
            "the global optimum is under linear constraints on scores, such as Bounds, Budget, "
            "Order and GroupMeans; rates of decisions are not convex, and a Declared one is known "
            'to CVXPY alone: method="gauss-newton" trains under these, without a bound on the '
            "optimum."
        )
    return stacked(known, samples * outputs) if known else None


def last_layers(argument: Expression) -> list[Applied]:
    """Return the layer with weights that gives scores, or those whose sum they are; else none."""
    if not isinstance(argument, Applied):
        return []
    parts = argument.arguments if isinstance(argument.layer, Sum) else (argument,)
    found = [x for x in parts if isinstance(x, Applied) and x.weights is not None]
    apart = len({x.weights for x in found}) == len(parts)
    return found if apart else []


def parted(
    constraints: Sequence[Constraint | RateConstraint],
) -> tuple[tuple[Constraint, ...], tuple[RateConstraint, ...]]:
    """Return those on scores, and those on rates.

    Raises:
        DeclarationError: they are no sequence of either.
    """
    listed = isinstance(constraints, Sequence)
    rates = [x for x in constraints if isinstance(x, RateConstraint)] if listed else []
    rest = [x for x in constraints if x not in rates] if listed else constraints
    return require_constraints(rest), tuple(rates)


class AugmentedLagrangian:
    """min over all weights of the network's objective f, subject to l <= A u <= h on its scores.

    A round minimizes f + mu |a - P(a)|^2 / 2 with a = A u + y / mu and P the projection on [l, h],
    by L-BFGS; then y is mu (a - P(a)) (Hestenes, 1969; Powell, 1969; Rockafellar, 1973, for
    inequalities). mu rises where a round has left too much. Rows of A have norm 1, so that one mu
    suits a mean of many scores and a difference of two. Inequalities are held with a little room,
    in which the exact fit of the last layer begins. Only weights with a smooth penalty move.
    """

    def __init__(
        self, blocks: Blocks, term: Term, limits: Limits | HeldRates, brief: bool = False
    ) -> None:
        """Begin at the weights of the blocks.

        Args:
            blocks: the network on its data.
            term: the loss on the scores.
            limits: on these scores, as training has them, or on rates.
            brief: whether few rounds and steps do, as where rho is chosen.
        """
        self._structure, self._term = blocks.structure, term
        parameters = self._structure.parameters
        self._values = {x: doubled(v) for x, v in blocks.values.items() if x not in parameters}
        self._likes = dict(zip(parameters, blocks.weights, strict=True))
        self._stacked = {x: like.stacked().double().clone() for x, like in self._likes.items()}
        self._moving = [x for x in parameters if self._structure.penalties[x].smooth]
        self._picked = partial(
            rows_that_count, self._values, blocks.last_only, term.label, term.argument
        )
        self._y, weights = self._picked(self._values[term.label])
        samples, y = len(self._y), self._y
        self.rounds, fewest, most = _BRIEF if brief else (_ROUNDS, _FEWEST, _MOST)
        self._steps = max(fewest, min(most, _ROWS // samples))
        self._held = ScoreLimits(limits) if isinstance(limits, Limits) else limits
        lower, upper = self._held.ends
        room = np.minimum(_MET, (upper - lower) / 4)
        self._ends = lower + room, upper - room
        self._prices = np.zeros(len(room))
        self._weighed = term.weight * (y.new_ones(len(y)) if weights is None else weights)
        potential = term.divergence.potential_value(y)
        self._constant = float((self._weighed * potential).sum())
        self._mu = term.weight * (term.divergence.smoothness or 1.0)

    @property
    def weights(self) -> tuple[Weights, ...]:
        """The weights that have been reached."""
        found = self._stacked
        return tuple(like.like(found[x].to(like.matrix)) for x, like in self._likes.items())

    def objective(self, weights: Sequence[Weights]) -> float:
        """Return the objective of weights, as that of a round."""
        stacked = (layer.stacked().double() for layer in weights)
        return self._evaluated(dict(zip(self._likes, stacked, strict=True)))[1]

    def take_steps(self, first: int) -> Steps:
        """Take the rounds, numbered from the first, and yield the objective after each.

        Raises:
            SolverError: the objective is not finite; the weights are the last good ones.
        """
        if not self._moving:
            return Ending.CONVERGED
        _, before = self._evaluated(self._stacked)
        last = math.inf
        for number in range(self.rounds):
            good = self._stacked
            self._held.narrow(number / self.rounds)
            taken = self._minimize()
            u, objective = self._evaluated(self._stacked)
            if not math.isfinite(objective):
                self._stacked = good
                raise SolverError(
                    "the objective under constraints is not finite: scale the inputs."
                )
            prices, change = self._mu * self._excess(u), before - objective
            off = float(np.abs(prices - self._prices).max(initial=0.0) / self._mu)
            self._prices = prices
            yield Step(
                first + number, "weights under constraints", objective, change, off, taken,
                "augmented-lagrangian",
            )  # fmt: skip
            before = objective
            if off <= _MET and abs(change) <= _SETTLED * (1 + abs(objective)):
                return Ending.CONVERGED
            self._mu *= _RISE if off > max(_FALL * last, _MET) else 1.0
            last = off
        return Ending.BUDGET

    def _passed(self, stacked: Mapping[Parameter, Tensor]) -> Values:
        """Return the values with the states of a forward pass."""
        layers = {x: self._likes[x].like(layer) for x, layer in stacked.items()}
        return self._structure.passed({**self._values, **layers})

    def _evaluated(self, stacked: Mapping[Parameter, Tensor]) -> tuple[Tensor, float]:
        """Return the scores, and the objective there."""
        passed = self._passed(stacked)
        u = self._picked(value_of(self._term.argument, passed))[0]
        return u, self._objective(u, passed)[0]

    def _objective(self, u: Tensor, passed: Values) -> tuple[float, Tensor]:
        """Return the loss with the penalties, and the gradient of the loss in the scores."""
        divergence, y = self._term.divergence, self._y
        loss = self._constant + float((self._weighed * divergence.link_values(u, y)).sum())
        slope = self._weighed.unsqueeze(-1) * (divergence.link_gradient(u) - y)
        return loss + self._structure.penalty(passed), slope

    def _minimize(self) -> int:
        """Take the steps of a round, and return how often the network was passed."""
        likes = [self._stacked[x] for x in self._moving]
        sizes = [x.numel() for x in likes]

        def split(point: Array) -> Stacked:
            parts = torch.from_numpy(point).to(likes[0]).split(sizes)
            shaped = (part.view_as(like) for part, like in zip(parts, likes, strict=True))
            return dict(zip(self._moving, shaped, strict=True))

        def evaluated(point: Array) -> tuple[float, Array]:
            leaves = split(point)
            with torch.enable_grad():
                moved = {x: part.requires_grad_() for x, part in leaves.items()}
                passed = self._passed({**self._stacked, **moved})
                u = self._picked(value_of(self._term.argument, passed))[0]
            excess, (objective, slope) = self._excess(u), self._objective(u, passed)
            total = objective + self._mu / 2 * float(excess @ excess)
            slope = slope + self._held.pulled(u.detach(), self._mu * excess)
            slopes = torch.autograd.grad(u, list(moved.values()), slope)
            for parameter, slope in zip(moved, slopes, strict=True):
                matrix, penalty = passed[parameter].matrix, self._structure.penalties[parameter]
                rows = slice(len(matrix))  # a bias has no penalty
                slope[rows] = penalty.stationarity(matrix, slope[rows], 1.0)
            return total, _flat(slopes)

        found, evaluations = lbfgs(evaluated, _flat(likes), self._steps, _HISTORY, 1e-12, 1e-7)
        self._stacked = {**self._stacked, **split(found)}
        return evaluations

    def _excess(self, u: Tensor) -> Array:
        """Return a - P(a)."""
        at = self._held.at(u.detach()) + self._prices / self._mu
        return at - np.clip(at, *self._ends)


def _flat(parts: Sequence[Tensor]) -> Array:
    return torch.cat([part.flatten() for part in parts]).cpu().numpy()


# What a fit does under constraints.


def hold(
    model: Lifted, constraints: Sequence[Constraint | RateConstraint], X: Any, progress: bool,
    on_step: Report | None, lengths: Any = None, trained: bool = False, brief: bool = False,
) -> None:  # fmt: skip
    """Train all layers under constraints on the scores unless they are, and the last exactly."""
    fitted, data = model._known, model._on_data()
    term, (scored, rates) = model.network.terms[0], parted(constraints)
    rows = ScoredRows(model.network, data)
    held = HeldScores(term, rows.trained(rows.bound(scored)), fitted.standardization)
    blocks, moves = model._blocks_at(fitted.structure, data, fitted.weights), None
    if scored and not trained and len((limits := held.problem(blocks).limits).lower):
        moves = AugmentedLagrangian(blocks, term, limits, brief)
        if not model.interrupted:
            _go_on(model, moves, progress, on_step)
        if brief:
            return
        blocks = model._blocks_at(fitted.structure, data, model._known.weights)
    if rates:
        counts = numbers(model.network, data)
        asked = HeldRates(rows.trained(rates), *counts, errors=model.errors_aside)
        found = _counted(held, asked, blocks)
        if not (found.is_done or model.interrupted):
            _go_on(model, AugmentedLagrangian(blocks, term, asked, brief), progress, on_step)
            ahead = model._blocks_at(fitted.structure, data, model._known.weights)
            wider = _counted(held, asked, ahead)
            if wider.rank < found.rank:
                found, blocks = wider, ahead
        *prices, last = found.prices
        each, more = iter(prices), iter(asked.split(last))
        duals = tuple(next(more if x in rates else each) for x in constraints)
        objective, gap, residual = found.objective, math.nan, found.residual
        value, solver = found.value, found.solver
    else:
        blocks, solution, gap = _fitted(model, held, blocks, moves, progress, on_step)
        objective, residual = solution.objective, solution.residual
        value, solver, duals = solution.value, solution.solver, solution.duals
    held.place(blocks, value)
    model._fit = replace(fitted, weights=tuple(blocks.weights), data=data, blocks=blocks)
    scores = rows.scores(model.scores(X, lengths=lengths))
    known = rows.of_samples(numbers(model.network, data)[0])
    labels = known if decides(model.network) else None
    bound = (x if isinstance(x, RateConstraint) else rows.bound([x])[0] for x in constraints)
    violations = tuple(broken(one, labels, scores) for one in bound)
    moments = fitted.standardization.moments.get(term.label)  # of squares, or none
    unit = 1.0 if moments is None else float(moments.scale.square().mean())
    report = ConstraintReport(
        tuple(constraints), violations, tuple(unit * dual for dual in duals), unit * objective,
        unit * gap, residual, solver, mean_loss(model, scores, data),
        tuple(apart_of(one, labels, scores) for one in constraints),
        steps=rows._lengths is not None,
    )  # fmt: skip
    model._fit = replace(model._fit, method=None, laplace=None, report=report)
    _warn_of_missed_rates(report)


def _warn_of_missed_rates(report: ConstraintReport) -> None:
    """Say which rates no step has brought within their limits on the training rows."""
    pairs = zip(report.constraints, report.violations, strict=True)
    missed = [
        f"{one!r} by {by:.2g}"
        for one, by in pairs
        if isinstance(one, RateConstraint) and by > _MISSED
    ]
    if missed:
        processes.warn(
            f"the training rows do not meet {' and '.join(missed)}: no step was found, of the last "
            "layer or of all, that would bring them there. Take a smaller network, such as "
            "LiftedClassifier((20,)), a wider limit, or more rows."
        )


def _fitted(
    model: Lifted, held: HeldScores, blocks: Blocks, moves: AugmentedLagrangian | None,
    progress: bool, on_step: Report | None,
) -> tuple[Blocks, Solution[Weights], float]:  # fmt: skip
    """Return the exact fit of the last layer, after more rounds where features make it costly."""
    told: SolverError | None = None
    for _ in range(_AGAIN):
        if moves is None or model.interrupted:
            break
        try:
            solution, gap = held.fitted(blocks)
        except SolverError as error:
            told = told or error
        else:
            held.place(blocks, solution.value)
            if moves.objective(blocks.weights) <= _WORSE * moves.objective(moves.weights):
                return blocks, solution, gap
        _go_on(model, moves, progress, on_step)
        blocks = model._blocks_at(blocks.structure, model._on_data(), model._known.weights)
    try:
        return blocks, *held.fitted(blocks)
    except SolverError as error:  # the first says what the network lacks
        raise told or error from None


def _counted(held: HeldScores, asked: HeldRates, blocks: Blocks) -> CountedFit:
    fit = held.problem(blocks).fit
    return counted_fit(fit, asked, held.rescaled, held.start(blocks))


def numbers(network: Network, data: Data) -> tuple[NDArray[Any], int]:
    """Return the number of every label, as training has the rows, and of classes."""
    return numbers_of(ScoredRows(network, data).targets), max(2, network.terms[0].argument.units)


def mean_loss(model: Lifted, scores: Tensor, data: Data) -> float:
    """Return the loss of scores, a weighed mean over rows of raw data."""
    losses, weights = losses_of(model, scores, data)
    return float(losses @ weights / weights.sum())


def losses_of(model: Lifted, scores: Tensor, data: Data) -> tuple[Tensor, Tensor]:
    """Return the loss of the scores of every row, and its weight."""
    term, rows = model.network.terms[0], ScoredRows(model.network, data)
    targets, weights = rows.picked(data.values[term.label])
    y = model._known.standardization.answer(term, rows.of_samples(targets)).double()
    losses = term.divergence.values(y, scores.to(y))
    weights = torch.ones_like(losses) if weights is None else rows.of_samples(weights).to(losses)
    return losses, weights


def _go_on(
    model: Lifted, moves: AugmentedLagrangian, progress: bool, on_step: Report | None
) -> None:
    """Train all layers on under limits."""
    fitted = model._known
    assert fitted.trace is not None  # of the method before

    def keep() -> None:
        model._fit = replace(fitted, weights=moves.weights, blocks=None)

    run(
        fitted.trace, moves.take_steps(fitted.trace.n_iter), {}, keep,
        keeper=Keeper(None, resume=False), max_iter=fitted.trace.n_iter + moves.rounds,
        progress=progress, on_step=on_step,
    )  # fmt: skip
