"""Rows set aside: what constraints on rates are worth on new ones, and the rho that suits them.

After Thomas et al., Preventing undesirable behavior of intelligent machines, Science 366 (2019):
training meets the constraints with a margin, and rows that it has not seen say whether they hold.
A constraint is broken if one of its comparisons is, so that each of these is tested at the level
of the constraint (an intersection-union test); constraints share one minus the confidence.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from liftednet import processes
from liftednet.confidence import difference_bound, mean_bound, share_bound
from liftednet.errors import DataError, FitWarning, SolverError
from liftednet.lazy import special
from liftednet.sets.constraint import Constraint
from liftednet.sets.polyhedron import Array
from liftednet.sets.rates import Comparison, RateConstraint, kinds_of, rate_limits
from liftednet.validation import require_share

from .constraint_report import HeldOut, Verdict, apart_of
from .constraints import ScoredRows, hold, losses_of, mean_loss, numbers, parted, refuse_unmet
from .diagnosis import are_copies
from .methods.gauss_newton import GaussNewton, pulled, rhos_of
from .methods.global_optimum import Global
from .rates import chances, decided

if TYPE_CHECKING:
    from .choice import Choice
    from .data import Data
    from .lifted import Given, Lifted
    from .prediction import Fitted

_MANY = 10_000_000  # rows beyond which no number would do
_MORE = 1.1  # times as many rows, by which those that would do are found
_COUNTED = 20_000  # rows up to which a bound on a difference takes about a second
# 27 times would be chosen in one of 16 fits of eight tasks, where no weights meet the limits.
_FACTOR, _POWERS = 3.0, 3  # 1, 3 and 9 times the rho of the free fit are tried
_HELD = 4  # one of so many rows is set aside
_FEWEST, _MOST = 200, 2_000  # rows: fewer tell nothing; 15 fits of 2,500 to 5,000 gain nothing


def set_aside(
    constraints: Sequence[RateConstraint],
    labels: Array,
    classes: int,
    share: float,
    generator: torch.Generator,
) -> tuple[Array, Array]:
    """Return the numbers of rows to train on, and of those set aside: as many of every kind.

    Rows are of one kind where all constraints count them alike.

    Raises:
        DataError: the share is none, or a rate would be of no row on one of the sides.
    """
    require_share("held_out", share)
    found = [x for one in constraints for x in one.comparisons(labels, classes)]
    _, kinds = kinds_of(rate_limits(found, len(labels), classes), classes)
    order = torch.randperm(len(labels), generator=generator).numpy()
    aside = []
    for kind in range(int(kinds.max()) + 1):
        rows = order[kinds[order] == kind]
        aside.append(rows[: round(share * len(rows))])
    held = np.sort(np.concatenate(aside))
    rows = np.setdiff1d(np.arange(len(labels)), held)
    for side, name in ((rows, "trained on"), (held, "set aside")):
        try:
            for one in constraints:
                list(one.taken(side).comparisons(labels[side], classes))
        except DataError as error:
            raise DataError(
                f"of the {len(side):,} rows {name} {error} Give more rows of that kind, another "
                f"held_out than {share:g}, or no confidence."
            ) from error
    return rows, held


def taken(given: Any, rows: Array) -> Any:
    """Return some rows of arrays as they were given, or of several of them."""
    if isinstance(given, tuple):
        return tuple(taken(one, rows) for one in given)
    if isinstance(given, Tensor):
        return given[torch.from_numpy(rows).to(given.device)]
    return given.iloc[rows] if hasattr(given, "iloc") else np.asarray(given)[rows]


def errors_aside(confidence: float, constraints: int, share: float) -> float:
    """Return by how many standard errors of the training rows the aim is tighter than the limits.

    That by which training rows differ from all, and the distance of the bound to come.
    """
    z = float(-special.ndtri((1 - confidence) / constraints))
    return 1.0 + z * math.sqrt((1 - share) / share)


def refuse_too_few(
    constraints: Sequence[RateConstraint], labels: Array, classes: int, confidence: float
) -> None:
    """Raise `DataError` where so few rows show nothing, however good the network is.

    Args:
        constraints: on the rows that are set aside.
        labels: their numbers.
        classes: two or more.
        confidence: for all constraints together.
    """
    delta = (1 - confidence) / len(constraints)
    for one in constraints:
        for x in one.comparisons(labels, classes):
            for _, rows, limit, _ in _sides(x, [0.0] * len(x.parts)):
                level = delta / len(rows) if one.soft else delta
                least = max(_bound([0.0], [n], level, one.soft) for n in rows)
                if least > limit:
                    counts = " and ".join(f"{n:,}" for n in rows)
                    raise DataError(
                        f"{one!r} cannot be shown with confidence {confidence:g} on {counts} rows "
                        f"set aside: the best that they could show is {least:.3f}. Give more rows, "
                        "a larger held_out, or a looser limit."
                    )


def verdicts(
    constraints: Sequence[RateConstraint], labels: Array, scores: Tensor, confidence: float
) -> tuple[Verdict, ...]:
    """Return what rows that no training has seen show of each constraint.

    Args:
        constraints: on these rows.
        labels: (rows,) numbers.
        scores: (rows, outputs).
        confidence: for all constraints together.
    """
    delta, found = (1 - confidence) / len(constraints), []
    for one in constraints:
        values = chances(scores).cpu().numpy() if one.soft else decided(scores)
        each = [
            (*side, _bound(*side[:2], delta, one.soft))
            for x in one.comparisons(labels, values.shape[1])
            for side in _sides(x, [share.of(values) for _, share in x.parts])
        ]
        means, rows, limit, below, bound = max(each, key=lambda side: side[4] - side[2])
        holds, seen = bound <= limit, means[0] - sum(means[1:])
        needed = None if holds else _needed(means, rows, delta, limit, one.soft)
        told = abs(seen) if len(rows) == 2 else seen, bound, limit
        at, end, asked = (1 - x for x in told) if below else told
        found.append(Verdict(at, end, asked, holds, confidence, needed))
    return tuple(found)


def _sides(
    one: Comparison, means: list[float]
) -> Iterator[tuple[list[float], list[int], float, bool]]:
    """Yield p or p and q, their rows, the upper limit on p or p - q, and whether p is 1 - a share.

    A lower limit on a share is an upper one on the rest; ends that say nothing are left out.
    """
    rows = [len(share.rows) for _, share in one.parts]
    if one.second is not None:
        yield means, rows, one.upper, False
        yield means[::-1], rows[::-1], -one.lower, False
    elif one.upper < 1:
        yield means, rows, one.upper, False
    if one.second is None and one.lower > 0:
        yield [1 - means[0]], rows, 1 - one.lower, True


def _bound(means: list[float], rows: list[int], delta: float, soft: bool) -> float:
    """Return the upper bound on a mean, or on a difference of two; shares unless it is soft."""
    if soft and len(rows) == 2:
        up = mean_bound(means[0], rows[0], delta / 2)
        return up - 1 + mean_bound(1 - means[1], rows[1], delta / 2)
    if soft:
        return mean_bound(means[0], rows[0], delta)
    first, *second = [(round(mean * n), n) for mean, n in zip(means, rows, strict=True)]
    return difference_bound(first, second[0], delta) if second else share_bound(*first, delta)


def _needed(
    means: list[float], rows: list[int], delta: float, limit: float, soft: bool
) -> int | None:
    """Return how many rows like these would show it; None for none.

    By the normal law, and more until the bound itself says so, unless counts take it too long.
    """
    room = limit - means[0] + sum(means[1:])
    if room <= 0:
        return None
    pairs = zip(means, rows, strict=True)
    variance = sum(max(mean * (1 - mean), 1e-3) / n for mean, n in pairs)
    factor = _MORE * max(variance * (float(special.ndtri(delta)) / room) ** 2, 1.0)
    while (found := math.ceil(factor * sum(rows))) < _MANY:
        more = [math.ceil(factor * n) for n in rows]
        slow = found > _COUNTED and len(rows) > 1 and not soft
        if slow or _bound(means, more, delta, soft) <= limit:
            return found
        factor *= _MORE if soft or len(rows) == 1 else 2.0  # for a bound on a difference takes long
    return None


def fit_with_warranty(
    model: Lifted, given: tuple[Any, Any, Any, Any], constraints: Sequence[Any],
    confidence: float, held_out: float, strict: bool,
    other: Callable[[tuple[Any, Any, Any], Sequence[Any], float], Lifted | None] | None = None,
    **others: Any,
) -> Lifted:  # fmt: skip
    """Fit on some of the rows, and let the others say whether constraints on rates hold.

    Args:
        model: which is fitted.
        given: X, y, lengths and weights.
        constraints: on rates.
        confidence: of all of them together.
        held_out: the share of the rows that is set aside.
        strict: whether there is no model where one is not shown to hold.
        other: takes X, y and weights of the rows that train, constraints on them and standard
            errors of the margin, and returns another model in place of this, or None for this.
        **others: of `fit`.
    """
    require_share("confidence", confidence)
    _judge_start(model)
    X, y, lengths, sample_weight = given
    if isinstance(X, DataLoader):
        raise DataError("confidence sets rows aside: give X and y as arrays, one row a sample.")
    raw = model._data(X, y, lengths)
    scored, rates = parted(constraints)
    if scored:
        raise DataError(
            "confidence speaks of rates, which lie between 0 and 1: scores have no ends, and "
            f"no rows show where their mean lies. Got {list(constraints)}."
        )
    if not rates:
        raise DataError(
            "confidence says whether rates of a classifier's decisions hold on new rows, and none "
            "are given: give constraints=[GroupRates(groups, within=0.1)], or leave it out."
        )
    refuse_unmet(model.structure, rates, raw)
    labels, classes = numbers(model.network, raw)
    if len(labels) != len(y):
        raise DataError(
            f"confidence is of rows drawn independently, and steps of a sequence are not: {len(y)} "
            f"sequences have {len(labels)} labels. Give one for each sequence, or no confidence."
        )
    labels = ScoredRows(model.network, raw).of_samples(labels)
    rows, aside = set_aside(rates, labels, classes, held_out, model._generator())
    _judge_copies(raw, aside)
    new = [one.taken(aside) for one in rates]
    if strict:
        refuse_too_few(new, labels[aside], classes, confidence)
    parts = sample_weight, lengths
    weights, steps = (None if part is None else taken(part, rows) for part in parts)
    some, held = (taken(X, rows), taken(y, rows), weights), [one.taken(rows) for one in rates]
    errors = errors_aside(confidence, len(rates), held_out)
    if other is not None and (found_model := other(some, held, errors)) is not None:
        model, raw = found_model, found_model._data(X, y)
    else:
        model.errors_aside = errors
        try:
            model.fit(*some[:2], lengths=steps, sample_weight=weights, constraints=held, **others)
        finally:
            model.errors_aside = 1.0
    scores = model.scores(
        taken(X, aside), lengths=None if lengths is None else taken(lengths, aside)
    )
    found = verdicts(new, labels[aside], scores, confidence)
    known = model._known
    assert known.report is not None  # of the constraints just held
    loss = mean_loss(model, scores, known.standardization.of(raw.take(torch.from_numpy(aside))))
    apart = tuple(apart_of(one, labels[aside], scores) for one in new)
    report = replace(
        known.report, constraints=tuple(rates), held_out=HeldOut(aside, loss, found, apart)
    )
    model._fit = replace(known, report=report)
    if strict and not all(one.holds for one in found):
        model._fit = None
        raise SolverError(f"no model is handed out:\n{report}")
    return model


def _judge_start(model: Lifted) -> None:
    """Refuse to go on from weights of this model, which may have seen rows that are set aside."""
    if model.warm_start and model.is_fitted:
        raise DataError(
            "confidence speaks of rows that no training has seen, and warm_start=True goes on from "
            "weights that may have seen them: set warm_start=False."
        )
    if not isinstance(model.start, str):
        processes.warn(
            "training begins at weights that were given, and rows are set aside only now: what is "
            "said of new rows with this confidence is true if these weights were not trained on "
            "the rows given here."
        )


def _judge_copies(raw: Data, aside: Array) -> None:
    """Warn where rows that are set aside are copies of others, with their labels and lengths.

    Copies of a row are no draws of their own: training has seen some, and k of them show no more
    than one. But rows that were drawn independently are equal, too, where columns have few values,
    and each of them counts: to take every distinct row once would give frequent ones the share of
    rare ones, and to keep equal rows on one side would judge only by rows that training has not
    met, which new rows may well be. So nothing is left out, and `are_copies` says when to warn.
    """
    rows = raw.table().cpu()
    different, place, times = rows.unique(dim=0, return_inverse=True, return_counts=True)
    alike = int((times[place[aside]] > 1).sum())
    if alike and are_copies(different):
        processes.warn(
            f"{alike:,} of the {len(aside):,} rows set aside are equal to other rows: what is said "
            "of new rows with this confidence is true if all were drawn independently, and not if "
            "some are copies, as of rows that are to count more: give each row once."
        )


# Rho under constraints on scores: as large as rows that are set aside allow.


@dataclass(frozen=True, eq=False)
class HeldOutRho:
    """The choice of rho for a fit under constraints.

    A rho that suits a free fit, as by the evidence, is small for one under constraints: weights
    that meet limits on the training rows exactly learn these rows by heart, and on new ones both
    loss and excess grow. So a quarter of the rows is set aside, the network is trained free on the
    others, and then under the constraints there, with a rho that is tripled as long as the loss of
    the rows set aside stays within a standard error of the least one, the rule of Breiman et al.,
    Classification and Regression Trees, 1984, section 3.4.3: what it costs is within chance, and
    scores of smaller weights keep limits on new rows more nearly. All rows go on from the weights
    that are there. The last layer is not fitted exactly there: a few rounds meet limits so roughly
    that what meets them is a constant.

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
                with warnings.catch_warnings(action="ignore", category=FitWarning):
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
