"""What is wrong with data, a start, or a fit that has ended without an error."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from liftednet import processes
from liftednet.errors import DataError
from liftednet.layers.expression import SAMPLE_WEIGHTS, TIME, Input, value_of
from liftednet.losses import CrossEntropy, Huber, OutputLoss
from liftednet.network import State, Term, ends_of
from liftednet.samples import spread
from liftednet.sets.penalty import Weighted

from .block import Structure, rows_that_count
from .data import Data
from .forward_pass import Values

_SAMPLES = 1_000  # that are looked at
_SEQUENCES = 250  # likewise, of many steps each
_ROWS = 250  # of states, to say which units do not move
_GAIN, _DOUBT = 0.01, 0.05  # shares of a constant's loss that a fit must gain, even on noise
_LEFT = 0.05  # of a constant's loss: where less is left, units that do not move are not missed
_STILL = 1e-3  # deviation of a unit's states, beside their range, that says nothing
_FAR = 1e3  # ratio of scales that descent on raw data does not take
_OUTLYING = 10.0  # times as far as all others of its feature, which look alike beside it
_FEW = 0.1  # of a feature's entries that are not its median: more are a group of their own
_LOOKED = 5_000  # rows in which entries far from all others are looked for
_KINDS = 20  # entries of a column that are many
_SEVERAL, _NONE = 10, 2.0  # samples, and as how many they count that teach nothing
_DELTAS = 100.0  # deltas of a Huber loss in a deviation of targets, that are too many
_COPIES = 1.2  # samples for each that is different, which coincidences hardly make
_CENTERED = 500  # of them, whose median is the center: it takes longer than all the rest


def warn_of(
    structure: Structure, values: Values, data: Data, *,
    pruned: bool = False, evidence: float | None = None, held: bool = False, again: bool = False,
) -> None:  # fmt: skip
    """Warn where a fit has come to nothing.

    Args:
        structure: of the network.
        values: the weights by their parameters.
        data: what the fit has seen, some of which is passed forward.
        pruned: whether units may well answer the same to every sample, as those do that the
            evidence has no use for.
        evidence: log p(y) of the network, where its rho follow it.
        held: whether it is held to constraints.
        again: whether the fit before these has been judged, so that they alone are to be.
    """
    share = processes.share_of(len(data))
    most = _SEQUENCES if any(state.sequence for state in structure.states) else _SAMPLES
    rows = torch.arange(0, share.samples, -(-share.samples // most))
    some = data.take(share.own(rows))
    with torch.no_grad():
        passed = structure.passed({**some.values, **values})
    losses = [*_losses(structure, some, passed)]
    count = processes.total_of(data.mass) / processes.total_of(len(some))  # for each looked at
    nothing_left = losses and all(one.mean <= _LEFT * one.constant for one in losses)
    chosen = evidence is not None
    texts = found = [*_useless(structure, some, losses, held=held, chosen=chosen)]
    if not again:
        texts = [
            *_outlying(structure, data.raw),  # ratios of distances are those of any scale
            *found,
            *(() if found or evidence is None else _unlikely(losses, count, evidence)),
            *(() if pruned or nothing_left else _still(structure, passed)),
        ]
    for text in texts:
        processes.warn(text)


def judge_targets(structure: Structure, data: Data, *, whole: bool = True) -> None:
    """Refuse targets of regressions whose squares leave float64, and warn of those all alike.

    Args:
        structure: of the network.
        data: as given, of which several processes have parts.
        whole: whether these are all, not a first batch.

    Raises:
        DataError: the squares overflow float64, by which targets are measured, or vanish there.
    """
    for term in structure.network.terms:
        y = data.values.get(term.label)
        if y is None or not term.loss.equivariant:
            continue
        found, kind = spread(y.flatten(0, -2)), y.dtype  # of sequences of every step
        largest = float(torch.maximum(found.low.abs(), found.high.abs()).max())
        if whole and found.mass > 1 and found.low.equal(found.high):
            processes.warn(
                f"y is {found.low.to(kind).squeeze().tolist()} on every row: so is every answer, "
                "and error bars have no width."
            )
        elif 0 < largest < math.sqrt(sys.float_info.min):
            raise DataError(
                f"y reaches {largest:.3g} at most, and its square vanishes in float64: divide y by "
                "its scale, and multiply predictions by it."
            )
        if isinstance(term.loss, Huber):
            _judge_delta(term.loss, found.deviation)
        if largest * math.sqrt(found.mass * y.shape[-1]) >= math.sqrt(sys.float_info.max):
            raise DataError(
                f"y reaches {largest:.3g}, and sums of its squares overflow float64: divide y by "
                "its scale, and multiply predictions by it."
            )
        if largest >= math.sqrt(torch.finfo(kind).max):
            processes.warn(
                f"y reaches {largest:.3g}, whose square overflows {kind}: errors that are computed "
                "of predictions in that type are infinite or nan. Divide y by its scale, or give X "
                "in float64."
            )


def _judge_delta(loss: Huber, deviation: Tensor) -> None:
    """Warn where delta is next to nothing in the units of an output."""
    if float(deviation.max()) > _DELTAS * loss.delta:
        output = int(deviation.argmax())
        processes.warn(
            f"the delta of {loss!r} is in units of y, whose deviation in column {output} is "
            f"{float(deviation[output]):.3g}: nearly all errors are absolute ones, which fits "
            "follow poorly, and error bars are too wide. Give a delta near the size of the noise, "
            f"as in loss='huber:{0.1 * float(deviation[output]):.2g}', and scale outputs of "
            "several units."
        )


def judge_weights(data: Data) -> None:
    """Warn where samples count as hardly one together, as weights do whose sum is 1."""
    if SAMPLE_WEIGHTS not in data.values:
        return
    samples, mass = processes.total_of(len(data)), processes.total_of(data.mass)
    if samples > _SEVERAL and 0 < mass <= _NONE:
        processes.warn(
            f"{samples:,.0f} samples count as {mass:.3g} by their weights, beside which the "
            "penalty is everything. Give weights whose mean is 1."
        )


def judge_copies(data: Data) -> None:
    """Warn where samples are copies, or weigh more, and the evidence takes all as independent."""
    over_time = TIME in data.values
    different = data if over_time else data.merged()
    count, mass = processes.total_of(len(different)), processes.total_of(data.mass)
    if mass <= _COPIES * count:
        return
    copies = over_time or are_copies(different.table())
    if processes.largest([copies]).any():
        processes.warn(
            f"{count:,.0f} different samples count as {mass:.0f}, by weights or as "
            "copies of each other: the evidence takes all as independent, the fit follows their "
            "noise, and error bars are too narrow. Give each once, with weights whose mean is 1."
        )


def are_copies(different: Tensor) -> bool:
    """Say whether samples alike are copies, by all rows that differ, (rows, numbers).

    Where no column has many different entries, samples alike are as independent as any.
    """
    most = max(_KINDS if len(different) > 2 * _KINDS else 2, len(different) / 2)
    return any(len(column.unique()) > most for column in different.T)


def is_useless(structure: Structure, data: Data, passed: Values) -> bool:
    """Say whether a forward pass is no better than a constant prediction, or than noise allows."""
    losses = [*_losses(structure, data, passed)]  # all of it, by every process
    return any(True for _ in _useless(structure, data, losses, most=1.0))


def scale_hint(data: Data) -> str:
    """Return what to do about inputs whose scales are the likely cause of a failure, or ""."""
    inputs = [x for v, x in data.values.items() if isinstance(v, Input)]
    largest = max(float(x.abs().max()) for x in inputs) if len(data) else 0.0
    if not 0 < largest < float("inf"):
        return ""
    with processes.alone():
        deviations = torch.cat([spread(x.flatten(0, -2)).deviation for x in inputs])
    varied = deviations[deviations > 0]
    if largest <= _FAR and (not len(varied) or float(varied.max() / varied.min()) <= _FAR):
        return ""
    return (
        f" The likely cause is the scale of X, whose entries reach {largest:.3g} and whose "
        f"features deviate by {float(deviations.min()):.3g} to {float(deviations.max()):.3g}: "
        "use standardize=True, or scale them."
    )


@dataclass(frozen=True)
class _Loss:
    """What the loss of some samples is.

    Attributes:
        term: of the network.
        mean: loss of a sample, of those where it is finite.
        constant: that of the best constant prediction.
        infinite: how many samples have an infinite loss, and their share by weight.
        samples: how many were looked at.
        outputs: columns of the targets.
    """

    term: Term
    mean: float
    constant: float
    infinite: tuple[int, float]
    samples: int
    outputs: int


def _losses(structure: Structure, data: Data, passed: Values) -> Iterator[_Loss]:
    for term in structure.network.terms:
        u, y, weights = compared(term, data, passed)
        if not float(weights.sum()) > 0:
            continue
        shares = weights / weights.sum()
        mean = (shares @ y).unsqueeze(0)
        if term.state is None:
            found = float(shares @ term.divergence.values(y, u))
            # The best constant prediction is the mean of the targets; its loss is Jensen's gap.
            potential = term.divergence.activation.potential_value
            constant = float(shares @ potential(y) - potential(mean).sum())
            yield _Loss(term, found, constant, (0, 0.0), *y.shape)
        else:
            loss = structure.loss(term)
            assert isinstance(loss, OutputLoss)  # it has output states
            values = loss.output_values
            own = values(y, processes.joined(passed[term.state]))
            infinite = own == math.inf
            lost = int(infinite.sum()), float(shares[infinite].sum())
            found = float(shares @ own.where(~infinite, 0.0))
            guesses = (mean.expand_as(y), y.median(0, keepdim=True).values.expand_as(y))
            constant = min(float(shares @ values(y, guess)) for guess in guesses)
            yield _Loss(term, found, constant, lost, *y.shape)


def _useless(
    structure: Structure, data: Data, losses: Sequence[_Loss], most: float = _DOUBT,
    held: bool = False, chosen: bool = False,
) -> Iterator[str]:  # fmt: skip
    """Yield a text for every loss that is no better than that of a constant prediction.

    Of what noise lets a fit gain it is asked for `most`: weak signals gain no more, and are true.
    """
    for one in losses:
        term, found, constant, samples = one.term, one.mean, one.constant, one.samples
        lost, share = one.infinite
        if share > _DOUBT:  # a few answers that the simplex leaves out are no failure
            yield (
                f"{lost} of the {samples} training samples that were looked at "
                f"have an infinite {type(term.loss).__name__}: the network gives their class "
                "the probability 0. Take CrossEntropy, which never does, or train longer."
            )
            continue
        # Where targets are noise, each of the last weights gains about the share of one answer.
        free = 0 if term.argument.weights is None else math.prod(term.argument.weights.shape)
        asked = min(max(_GAIN, free / samples), most)
        if not found <= (1 - asked) * constant and constant > 0:
            grade = "no" if found >= constant else "hardly"  # fits of noise are better, too
            parts = (part for one in structure.penalties.values() for part in one.parts)
            bound = held or ends_of(term.argument) is not None
            bound = bound or any(not isinstance(x, Weighted) for x in parts)
            told = (
                "The evidence finds nothing more in X that tells the targets."
                if chosen and not bound
                else f"{'Loosen its constraints, or train' if bound else 'Train'} longer, at "
                "another rate, from another start or with a smaller rho."
            )
            yield (
                f"the network is {grade} better than a constant prediction: on {samples:,} samples "
                f"of training its {type(term.loss).__name__} is {found:.4g} each, that of the "
                f"constant {constant:.4g}. {told}{scale_hint(data)}"
            )


def _unlikely(losses: Sequence[_Loss], share: float, evidence: float) -> Iterator[str]:
    """Yield a text where labels are likelier by their frequencies than by the network.

    By the frequencies of K classes log p(y) is that of the constant, less (K - 1) log(N) / 2 for
    N answers (Schwarz, Estimating the dimension of a model, 1978).

    Args:
        losses: of some samples.
        share: how many samples there are for each of these.
        evidence: log p(y) of the network.
    """
    for one in losses:
        answers = share * one.samples
        own = -answers * one.constant - (one.outputs - 1) * math.log(answers) / 2
        if isinstance(one.term.loss, CrossEntropy) and len(losses) == 1 and evidence < own:
            yield (
                f"labels are likelier by their frequencies alone (log evidence {own:.1f}) than by "
                f"the network ({evidence:.1f}), which may have found noise in X: compare it with "
                "fewer units or another model on samples that it has not seen."
            )


def compared(term: Term, data: Data, passed: Values) -> tuple[Tensor, Tensor, Tensor]:
    """Return pre-activations, targets, and how much each row counts, of all processes."""
    y, u, given = rows_that_count(
        passed, data.last_only, term.label, term.argument, passed[term.label],
        value_of(term.argument, passed),
    )  # fmt: skip
    weights = torch.ones_like(y[..., 0]) if given is None else given
    u, y, weights = map(processes.joined, (u, y, weights))
    return u, y, weights


def _still(structure: Structure, passed: Values) -> Iterator[str]:
    """Yield a text for every layer most of whose units answer the same to every sample."""
    for number, state in enumerate(structure.states, start=1):
        found = _unmoved(state, passed)
        if 2 * found > state.units:
            yield (
                f"{found} of the {state.units} units of layer {number}, {state.activation!r}, "
                "answer the same to every sample (they are dead or saturated): lower the rate, "
                "scale the inputs (standardize=True), or start from smaller weights."
            )


def _unmoved(state: State, passed: Values) -> int:
    rows = passed[state]
    if state.sequence:
        longer = passed[TIME].longer(state.initial_steps)
        rows = rows[longer.valid]
    rows = rows[:: -(-len(rows) // _ROWS) or 1]
    if processes.total_of(len(rows)) < 2:
        return 0
    found = spread(rows)
    still = found.deviation <= _STILL * found.mean.abs()
    weights = passed.get(state.argument.weights)
    if weights is not None and weights.matrix.shape[1] == len(still):
        still &= (weights.matrix != 0).any(0)  # without weights it has been left out by a penalty
    return int(still.sum())


def _outlying(structure: Structure, data: Data) -> Iterator[str]:
    """Yield a text for every input some of whose features have entries far from all others.

    Few entries of a feature, each ten times as far from its median (of some rows) as the others.
    """
    for number, variable in enumerate(structure.network.inputs, start=1):
        values = data.values[variable]
        own = values[data.values[TIME].valid] if variable.sequence else values
        step = -(-len(own) // _LOOKED) or 1
        first = processes.share_of(len(own)).first
        rows = processes.joined(own[::step])
        numbers = processes.joined(torch.arange(first, first + len(own), step, device=own.device))
        some = rows[:: -(-len(rows) // _CENTERED) or 1]
        distance = (rows - some.median(0).values).abs_()
        largest = distance.amax(0)
        away = distance > largest / _OUTLYING
        few = away.sum(0) <= _FEW * distance.sign().sum(0)  # count_nonzero is slow by columns
        features = (few & (largest > 0)).nonzero().flatten()
        distance, away = distance[:, features], away[:, features]
        near = distance.masked_fill(away, 0.0).amax(0)
        beyond = distance.masked_fill(~away, math.inf).amin(0)
        outlying = beyond >= _OUTLYING * near
        if not bool(outlying.any()):
            continue
        times, features = (beyond / near)[outlying], features[outlying]
        far, widest = away[:, outlying].any(1), int(times.argmax())
        yield (
            f"in {int(far.sum())} of the {len(far)} rows of input {number}, the first of them row "
            f"{int(numbers[far][0])}, a feature lies far from all others (feature "
            f"{int(features[widest])} {float(times[widest]):.3g} times as far "
            "from its median as in any other row), which look alike beside it: leave them out, "
            "clip them, say that they are missing, or take another scale, such as logarithms."
        )
