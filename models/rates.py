"""Constraints on rates in training: a surrogate that narrows, and then the last layer by counts.

Decisions jump, so that no set of weights with given rates is convex. Two steps hold them:

1. where the last layer alone does not do, all weights move under limits on softmax(U / T), whose
   width T narrows, by the multipliers of `AugmentedLagrangian`;
2. rounds fit the last layer by one convex problem each: rates stand as they are counted at the
   scores that are there, rows far from the threshold keep their decisions, and those near it move
   the rates as the slope of softmax(U / T) has it. A step is taken as far as the count falls, and
   once the count is within its limits, as far as the objective does.

Both aim at limits that are a margin tighter, the standard error of the rates, so that other rows
are as likely within the limits; what is judged is the count, on the limits that were asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from liftednet.errors import DataError, SolverError
from liftednet.lazy import optimize, sparse
from liftednet.losses import BinaryCrossEntropy, CrossEntropy
from liftednet.network import Network
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import ConstrainedFit, WeightFit
from liftednet.samples import Weights
from liftednet.sets.constraint import Constraint
from liftednet.sets.polyhedron import Array, Limits
from liftednet.sets.rates import Comparison, RateConstraint, kinds_of, rate_limits, refuse_rates
from liftednet.solvers import solve

from .output import pulled

_ROUNDS, _FAILURES = 16, 6  # of the last layer, and in a row that bring nothing
_WITHIN, _GAIN = 2, 1e-3  # failures within the limits, and of a guess's loss what is worth a round
# Toward the weights of before, as a share of a feature's sum of squares: of all directions, of few.
_PULL, _LITTLE = 1.0, 1e-3
_RIDGE = 1e-6  # of a feature's sum of squares, where rows are told apart
_ALLOWED = 3.0  # deviations of a score by each of few directions, of their prior
_LOST = 0.1  # of what likely decisions tell beyond a constant: other ways follow
_FARTHER = 3.0  # times as strong a pull after a failure
_NEAR, _NEARER = 0.2, 0.8  # width of the surrogate over the spread of scores, less after a failure
_FAR = 3.0  # times the loss of a guess
_EXACT = 2.0  # times the prices, at which what rates miss is weighed against the objective
_LENGTHS = (1.0, 0.5, 0.25, 0.1)  # of a step, tried in turn
_LEFT = 0.1  # of the ends' distance is left by the margin
_WIDE, _NARROW = 1.0, 0.2  # T of the first round of all weights, and of the last
_STEEP = 4.0  # over the slope of a probability in its score, at most


def refuse_unmet_rates(network: Network, rates: Sequence[RateConstraint], y: Tensor) -> None:
    """Refuse constraints on rates that nothing can meet, or that the network has no decisions for.

    Raises:
        DataError: it is no classifier, a rate is of no row, or they contradict each other.
    """
    if not rates:
        return
    term = network.terms[0]
    units = term.argument.units
    if not decides(network):
        raise DataError(
            f"{rates[0]!r} speaks of decisions, one label a row, and {term.loss.name} on {units} "
            "outputs decides none: take CrossEntropy or BinaryCrossEntropy on one output, or for "
            "the mean output of a regression GroupMeans."
        )
    refuse_rates(rates, numbers_of(y), max(2, units))


def decides(network: Network) -> bool:
    """Return whether a network decides for one label a row."""
    (term, *more), units = network.terms, network.terms[0].argument.units
    one = isinstance(term.loss, BinaryCrossEntropy) and units == 1
    known = isinstance(term.loss, CrossEntropy) or one
    return known and not more


def numbers_of(y: Tensor) -> Array:
    """Return the number of every label, (samples,), of targets (samples, outputs)."""
    found = (y[:, 0] > 0.5).long() if y.shape[1] == 1 else y.argmax(1)
    return found.cpu().numpy()


def decided(u: Tensor) -> Array:
    """Return decisions (samples, classes), one-hot, of scores (samples, outputs)."""
    at = (u[:, 0] > 0).long() if u.shape[1] == 1 else u.argmax(1)
    return np.eye(max(2, u.shape[1]))[at.cpu().numpy()]


def chances(u: Tensor, temperature: float = 1.0) -> Tensor:
    """Return softmax(u / T), (samples, classes)."""
    u = torch.cat([torch.zeros_like(u), u], 1) if u.shape[1] == 1 else u
    return torch.softmax(u.double() / temperature, 1)


class Rank(NamedTuple):
    """What is less where decisions are better.

    Attributes:
        missed: by how much they miss what was asked.
        cost: the share that is not the label, and by how much they miss the aim, point for point:
            whoever is nearer to it by a hair may be wrong far more often.
        objective: of the fit.
    """

    missed: float = 0.0
    cost: float = 0.0
    objective: float = 0.0


_UNRANKED = Rank()


@dataclass(eq=False)
class HeldRates:
    """Constraints on rates, on the rows of a fit.

    Attributes:
        constraints: as they were given, with numbers of labels.
        labels: (samples,) numbers.
        classes: two or more.
        temperature: of the surrogate of decisions; of probabilities it is 1.
        errors: by how many standard errors the aim is tighter than what is asked.
        enough: how many decisions may be wrong where nothing better is sought; None as long as
            there is no fit.
    """

    constraints: tuple[RateConstraint, ...]
    labels: Array
    classes: int
    temperature: float = _WIDE
    errors: float = 1.0
    enough: float | None = None

    def __post_init__(self) -> None:
        """Keep the limits."""
        each = [(one, one.comparisons(self.labels, self.classes)) for one in self.constraints]
        self.comparisons = [x for _, some in each for x in some]
        self.counts = [len(some) for _, some in each]
        self._soft = np.repeat([one.soft for one, _ in each], self.counts)
        self.limits = rate_limits(self.comparisons, len(self.labels), self.classes)
        lower, upper = self.limits.lower, self.limits.upper
        margin = self.errors * np.array([spread_of(one) for one in self.comparisons])
        margin = np.minimum(margin, (1 - _LEFT) * (upper - lower) / 2)
        single = np.array([one.second is None for one in self.comparisons], dtype=bool)
        none = single & (lower <= 0), single & (upper >= 1)  # shares lie from 0 to 1
        self.lower, self.upper = (
            np.where(no, end, end + sign * margin)
            for no, end, sign in zip(none, (lower, upper), (1, -1), strict=True)
        )
        self._scale = _STEEP / self.limits.norms

    def _kinds(self, temperature: float) -> list[tuple[Array, float]]:
        """Return which limits are on probabilities, T 1, and which on decisions, T as given."""
        kinds = (self._soft, 1.0), (~self._soft, temperature)
        return [(mask, t) for mask, t in kinds if mask.any()]

    def counted(self, u: Tensor) -> Array:
        """Return the rates of decisions, and mean probabilities, (limits,)."""
        found: Array = self.limits.matrix @ decided(u).reshape(-1)
        if self._soft.any():
            found = np.where(self._soft, self.limits.matrix @ _flat(chances(u)), found)
        return found

    def begin(self, u: Tensor, weights: Tensor | None) -> None:
        """Take the scores of a free fit, if there was none before."""
        if self.enough is not None:
            return
        counts = np.bincount(self.labels, _array(weights), self.classes)
        constant = 1 - counts.max() / counts.sum()
        found = likeliest(self, u, weights)[np.arange(len(self.labels)), self.labels]
        likely = 1 - np.average(found, weights=_array(weights))
        self.enough = float(likely + _LOST * max(constant - likely, 0.0))

    def wrong(self, u: Tensor, weights: Tensor | None) -> float:
        """Return the share of decisions that are not the label, by weights of rows if any."""
        return float(np.average(decided(u).argmax(1) != self.labels, weights=_array(weights)))

    def rank(self, u: Tensor, weights: Tensor | None, objective: float) -> Rank:
        """Return the rank of scores by which an objective is reached."""
        rates, wrong = self.counted(u), self.wrong(u, weights)
        lower, upper = self.limits.lower, self.limits.upper
        missed = float(np.maximum(lower - rates, rates - upper).max(initial=0.0))
        return Rank(missed, wrong + self.excess(rates), objective)

    def split(self, prices: Tensor) -> tuple[Tensor, ...]:
        """Return prices (limits,) for each constraint."""
        return tuple(prices.split(self.counts))

    def excess(self, rates: Array) -> float:
        """Return by how much rates miss the aim at most."""
        return float(np.maximum(self.lower - rates, rates - self.upper).max(initial=0.0))

    # What `AugmentedLagrangian` asks: rows of A are scaled alike.

    @property
    def ends(self) -> tuple[Array, Array]:
        """The ends of the aim."""
        return self._scale * self.lower, self._scale * self.upper

    def at(self, u: Tensor) -> Array:
        """Return A softmax(u / T)."""
        found = np.zeros(len(self.comparisons))
        for mask, t in self._kinds(self.temperature):
            found += mask * (self.limits.matrix @ _flat(chances(u, t)))
        return self._scale * found

    def pulled(self, u: Tensor, prices: Array) -> Tensor:
        """Return the gradient of y' A softmax(u / T), like u."""
        total = torch.zeros_like(u)
        for mask, t in self._kinds(self.temperature):
            q = chances(u, t)
            push = self.limits.matrix.T @ (mask * self._scale * prices)
            pushed = torch.from_numpy(push).to(q).view_as(q)
            down = q * (pushed - (q * pushed).sum(1, keepdim=True)) / t
            total += down[:, -u.shape[1] :].to(u)
        return total

    def narrow(self, share: float) -> None:
        """Narrow the surrogate, at a share of all rounds."""
        self.temperature = _WIDE * (_NARROW / _WIDE) ** share

    def linear(self, u: Tensor, near: float) -> Limits:
        """Return limits on scores U: the counts at u, and the slopes of the surrogate from there.

        Args:
            u: scores.
            near: T over the spread of scores between two classes.
        """
        outputs, rates, spread = u.shape[1], self.counted(u), near * _spread(u)
        spreader = sparse.kron(sparse.identity(len(u)), np.ones((self.classes, 1)), "csr")
        found = sparse.csr_matrix(self.limits.matrix.shape)
        for mask, t in self._kinds(spread):
            q = chances(u, t).cpu().numpy()
            own = sparse.diags(mask / t) @ self.limits.matrix @ sparse.diags(q.reshape(-1))
            ends = np.arange(q.size), np.arange(0, q.size + 1, self.classes)
            found += own - own @ spreader @ sparse.csr_matrix((q.reshape(-1), *ends))
        found = found.tocsr()
        if outputs == 1:
            found = found[:, 1::2]
        level = found @ u.double().cpu().numpy().reshape(-1) - rates
        return Limits(found, self.lower + level, self.upper + level, rates.shape)


def likeliest(held: HeldRates, u: Tensor, weights: Tensor | None) -> Array:
    """Return the likeliest decisions within the aim, (samples, classes), which may split rows.

    They are a linear program, sum w_i softmax(u_i)' d_i at its most, in decisions and in what each
    kind of row has of them in all, which is what limits count. Where it has no solution they are
    softmax(U).

    Args:
        held: rates.
        u: scores, (samples, outputs).
        weights: w, (samples,), of rows if any.
    """
    q = chances(u).cpu().numpy()
    samples, classes = q.shape
    first, kinds = kinds_of(held.limits, classes)
    some, entries = len(first) * classes, np.arange(q.size)
    rows, labels = np.divmod(entries, classes)
    totals = sparse.csr_matrix((np.ones(q.size), (kinds[rows] * classes + labels, entries)))
    whole = sparse.csr_matrix((np.ones(q.size), (rows, entries)))
    asked = held.limits.matrix[:, (first[:, None] * classes + np.arange(classes)).ravel()]
    none = sparse.csr_matrix((2 * len(held.lower), q.size))
    w = 1.0 if weights is None else weights.double().cpu().numpy()[:, None]
    found = optimize.linprog(
        np.concatenate([(-w * q).reshape(-1), np.zeros(some)]),
        A_ub=sparse.hstack([none, sparse.vstack([asked, -asked])]),
        b_ub=np.concatenate([held.upper, -held.lower]),
        A_eq=sparse.bmat([[totals, -sparse.identity(some)], [whole, None]]),
        b_eq=np.repeat([0.0, 1.0], [some, samples]),
    )
    return q if found.x is None else found.x[: q.size].reshape(q.shape)


def _spread(u: Tensor) -> float:
    """Return the deviation of scores between two classes."""
    between = u if u.shape[1] == 1 else u - u.mean(1, keepdim=True)
    return float(between.std().clamp(min=torch.finfo(u.dtype).tiny))


def _array(weights: Tensor | None) -> Array | None:
    return None if weights is None else weights.double().cpu().numpy()


def _flat(p: Tensor) -> Array:
    return p.cpu().numpy().reshape(-1)


class _Linear(Constraint):
    """Limits that are known."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def limits(self, samples: int, outputs: int) -> Limits:
        """Return them."""
        return self._limits


def spread_of(one: Comparison) -> float:
    """Return the standard error of a difference of shares at their largest, by their rows."""
    ends = [one.upper, one.lower] if one.second is None else [0.5]
    share = min(ends, key=lambda x: abs(x - 0.5))
    variance = max(share * (1 - share), 1 / min(len(x.rows) for _, x in one.parts))
    return math.sqrt(variance * sum(1 / len(share.rows) for _, share in one.parts))


@dataclass(frozen=True)
class CountedFit:
    """The last layer whose counts are best.

    Attributes:
        excess: by how much they miss the aim at most.
        value: weights.
        prices: of the constraints on scores, and (limits,) of those on rates.
        objective: of the fit, without its pull.
        residual: of the convex problem that the weights lead to; 0 where none was needed, NaN where
            decisions have led to them.
        solver: of it.
        rank: of these weights.
        few_wrong: whether no more decisions are wrong than are enough.
    """

    excess: float
    value: Weights
    prices: tuple[Tensor, ...]
    objective: float
    residual: float
    solver: str
    rank: Rank = _UNRANKED
    few_wrong: bool = False

    @property
    def is_done(self) -> bool:
        """Whether nothing better is sought: the aim is met, with few wrong decisions."""
        return self.excess <= 0 and self.few_wrong


def counted_fit(
    fit: WeightFit, held: HeldRates, others: Sequence[Constraint], start: Weights
) -> CountedFit:
    """Return the last layer whose counts are best: by few directions, or where these fail by all.

    Args:
        fit: of the last layer, to the features that are there.
        held: rates.
        others: constraints on its scores, which the start need not meet, and what is found does.
        start: weights.

    Raises:
        SolverError: no weights of this layer meet the others.
    """
    if others:
        meets = solve(ConstrainedFit(fit, tuple(others)), start=start).require_solved()
        start, prices = meets.value, (*meets.duals, torch.zeros(len(held.lower)))
    else:
        prices = (torch.zeros(len(held.lower)),)
    u = ConstrainedFit(fit, ()).scores(start)
    held.begin(u, fit.design.weights)
    free = CountedFit(held.excess(held.counted(u)), start, prices, 0.0, 0.0, "no fit")
    ways = _Ways(fit, held, others, free)
    best = ways.judged(free)
    if best.excess <= 0:
        return best
    for number, found in enumerate(ways.tried()):
        best = min(best, found, key=lambda one: one.rank) if number else found
        if best.rank.missed <= 0 and best.few_wrong:
            break
    return best


@dataclass(frozen=True)
class _Ways:
    """Ways to a last layer under rates; attributes as of `counted_fit`, and the free fit."""

    fit: WeightFit
    held: HeldRates
    others: Sequence[Constraint]
    free: CountedFit

    def tried(self) -> Iterator[CountedFit]:
        """Yield what each way finds."""
        if isinstance(self.fit.penalty, SquaredFrobenius):
            few = _FewDirections(self.fit, self.held, self.free.value)
            yield self.by_few(few, replace(self.free, value=few.start))
            yield self.by_few(few, few.likely(self.held, self.free))
        yield self.by_all(self.fit, self.free)

    def by_few(self, few: _FewDirections, begun: CountedFit) -> CountedFit:
        """Return what rounds find from a beginning, of few directions and where needed of all."""
        found = few.nearer(self.held, self.others, begun)
        found = self.judged(replace(found, value=few.whole(found.value)))
        if found.excess <= 0:
            return found
        center = replace(few.penalty, center=found.value.matrix)
        return self.by_all(replace(self.fit, penalty=center), found)

    def by_all(self, fit: WeightFit, begun: CountedFit) -> CountedFit:
        """Return what rounds of all weights find, by a fit of these with its own penalty."""
        begun = replace(begun, objective=float(fit.measure(begun.value).objective))
        return self.judged(_nearer(fit, self.held, self.others, begun, _PULL))

    def judged(self, one: CountedFit) -> CountedFit:
        """Return a fit with the objective of the fit that is meant, and its rank."""
        objective = float(self.fit.measure(one.value).objective)
        u = ConstrainedFit(self.fit, ()).scores(one.value)
        weights = self.fit.design.weights
        rank = self.held.rank(u, weights, objective)
        assert self.held.enough is not None  # by `begin`
        few = self.held.wrong(u, weights) <= self.held.enough
        return replace(one, objective=objective, rank=rank, few_wrong=few)


class _FewDirections:
    """W = W_0 + B C, with the few directions B in which rows differ that rates count apart.

    Which kind a row is of is regressed on the features: of two groups the direction is what tells
    one from the other, and C moves their thresholds. Few numbers are on new rows what they are in
    training, where all weights learn by heart who stands near a threshold. So their prior is wide:
    that of W, which is for what the labels ask, would keep C from features that tell groups.
    """

    def __init__(self, fit: WeightFit, held: HeldRates, start: Weights) -> None:
        assert isinstance(fit.penalty, SquaredFrobenius)  # asked for by `_Ways`
        self.penalty = fit.penalty
        inputs, before = fit.design.inputs.double(), start.matrix.double()
        kinds = torch.from_numpy(kinds_of(held.limits, held.classes)[1]).to(inputs.device)
        told = torch.nn.functional.one_hot(kinds).to(inputs)
        around = inputs - inputs.mean(0)
        units = around.square().mean(0).sqrt()  # those of the columns are of the fit's pull
        units = units.where(units > 0, 1.0)
        around = around / units
        gram = around.T @ around
        gram.diagonal().add_(_RIDGE * len(around))
        found = torch.linalg.solve(gram, around.T @ (told - told.mean(0))) / units[:, None]
        basis, sizes, _ = torch.linalg.svd(found, full_matrices=False)
        basis = basis[:, sizes > _RIDGE * sizes[0]]
        moved = inputs @ basis
        basis = basis / (moved - moved.mean(0)).square().mean(0).sqrt()
        self._before = start
        self._basis = basis if basis.shape[1] else basis.new_zeros(len(before), 1)  # b alone
        offset = inputs @ before + (0.0 if fit.offset is None else fit.offset)
        few = replace(fit.design, inputs=(inputs @ self._basis).to(start.matrix))
        prior = SquaredFrobenius(fit.lam / (2 * _ALLOWED**2))
        self.fit = replace(fit, design=few, offset=offset.to(start.matrix), penalty=prior)
        self.start = Weights(
            start.matrix.new_zeros(self._basis.shape[1], before.shape[1]), start.bias
        )

    def nearer(
        self, held: HeldRates, others: Sequence[Constraint], begun: CountedFit
    ) -> CountedFit:
        """Return C and b after rounds that begin at those that are given."""
        u = ConstrainedFit(self.fit, ()).scores(begun.value)
        objective = float(self.fit.measure(begun.value).objective)
        begun = replace(begun, objective=objective, excess=held.excess(held.counted(u)))
        return _nearer(self.fit, held, others, begun, _LITTLE)

    def likely(self, held: HeldRates, free: CountedFit) -> CountedFit:
        """Return C and b fitted to the likeliest decisions within the aim, where rounds begin, too.

        From far away few rows tell rounds the slope of a rate, and they may end where nearly all
        decisions are the same, which at times is what is right most often.
        """
        fit, u = self.fit, ConstrainedFit(self.fit, ()).scores(self.start)
        found = likeliest(held, u, fit.design.weights)[:, -u.shape[1] :]
        fit = replace(fit, targets=torch.from_numpy(found).to(fit.targets))
        unknown = tuple(torch.full_like(price, math.nan) for price in free.prices)
        value = solve(fit, start=self.start).value
        return replace(free, value=value, prices=unknown, residual=math.nan, solver="decisions")

    def whole(self, found: Weights) -> Weights:
        """Return C as weights of the whole fit."""
        moved = self._basis @ found.matrix.double()
        return Weights(self._before.matrix + moved.to(self._before.matrix), found.bias)


def _nearer(
    fit: WeightFit, held: HeldRates, others: Sequence[Constraint], best: CountedFit, least: float
) -> CountedFit:
    """Return what rounds of convex fits bring, with a pull of so much at least.

    The first that is within the limits is often far within, and fits badly: the rounds go on. No
    step goes where the loss is far above that of a guess: there the surrogate is flat.
    """
    plain, size = ConstrainedFit(fit, ()), _size(fit)
    guess = fit.lam * len(held.labels) * math.log(held.classes)
    most = best.objective + _FAR * guess
    u, near, pull, failures = plain.scores(best.value), _NEAR, least, 0
    for _ in range(_ROUNDS):
        if failures >= (_WITHIN if best.excess <= 0 else _FAILURES):
            break
        failures += 1
        held_fit = replace(fit, penalty=pulled(fit.penalty, pull * size, best.value.matrix))
        known = _Linear(held.linear(u, near))
        near, pull = near * _NEARER, pull * _FARTHER  # where this one does not help
        try:
            problem = ConstrainedFit(held_fit, (*others, known))
            solution = solve(problem, start=best.value).require_solved()
        except (DataError, SolverError):  # no scores, or no weights, meet what is linearized
            continue
        if math.isnan(best.residual):  # of likely decisions: prices there, whatever follows
            best = replace(best, prices=solution.duals)
        worth = _EXACT * float(solution.duals[-1].abs().sum())
        for length in _LENGTHS:
            ends = best.value.stacked(), solution.value.stacked()
            value = best.value.like(torch.lerp(*ends, length))
            u_ahead = plain.scores(value)
            excess = held.excess(held.counted(u_ahead))
            objective = float(fit.measure(value).objective)
            fall = best.objective - objective + worth * (best.excess - excess)
            nearer = excess <= 0 or excess < best.excess
            if fall > _GAIN * guess * (best.excess <= 0) and nearer and objective < most:
                best = CountedFit(
                    excess, value, solution.duals, objective, solution.residual, solution.solver
                )
                u, near, pull = u_ahead, _NEAR, max(least, pull / _FARTHER**2)
                failures = 0
                break
    return best


def _size(fit: WeightFit) -> float:
    """Return the sum of squares of a feature, in the mean of the features."""
    return max(float(fit.design.inputs.double().square().mean(1).sum()), 1.0)
