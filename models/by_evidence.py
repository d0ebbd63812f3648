"""Small networks by the data: of several fits that of the largest evidence."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch

from liftednet.activation import Activation
from liftednet.activations import ReLU, Tanh
from liftednet.errors import FitWarning, SolverError
from liftednet.power import Power

from .builders import LiftedMLP
from .choice import matrix_work
from .error_bars import FEW, answer_skewed, laplace_of, widen
from .lifted import Lifted
from .trace import Step

STEPS = 200  # of one fit at most
EXACT_STEPS = 250  # of one without noise
_SIZES = (4, 16, 48, 144)  # units; what is linear needs none of them
SHAPED = 8  # units that outputs of a shape begin with, of which there may be seven kinds
_STARTS = 2  # of the smallest network with the first units
_MOST_WEIGHTS = 3000
_MOST_WORK = 3e10  # multiplications in one matrix: half a second, and a fit has some dozens
_MOST_OF_MORE = 1e10  # of more units than the first, which ask for more steps, or more outputs
_NOISE = 0.5  # share of the variance of standardized targets that is noise, before they are seen
_EXPONENTS = np.linspace(0, 2, 9)  # of skewed targets
_PULLS = np.logspace(-3, 4, 29)  # of the linear fits that tell one of another
_SMALL = 0.05  # quantile of positive targets, in units of which they are nearly their logarithms
_QUARTILES = 1.349  # how far they are apart in a normal distribution
_SAME = 1e-9  # of the largest entry of a column: a deviation that is rounding
_MOST_UNITS = 40  # of two layers for functions without noise
_FOR_A_WEIGHT = 3  # answers of them
_NEARLY = 1e-2  # share of noise below which targets may be such a function
_MET = 1e-18  # share of noise that is rounding
_ALIKE, _CHANGED = 3.0, 0.5  # ratio of scales and difference of exponents that are another power's
_SURE = 3.0  # of log p(y): less tells neither exponents nor sizes apart
_LIKELY = 10.0  # of log p(y): fits that are less behind may be true as well
_LOOKS = 5  # at the evidence, by which a fit is judged
_AHEAD = 4.0  # how many times as much as in these it may yet gain

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Size:
    """A network u = phi(X W + b) V + c + X Q with one layer of units beside a linear one.

    What is linear is left to Q, whose rho is its own, so that few units do for the rest.

    Attributes:
        inputs: columns of X.
        outputs: columns of u.
        noisy: whether the noise of the targets is to be found, too, as of squared errors.
        units: of every hidden layer.
        layers: how many hidden ones there are.
    """

    inputs: int
    outputs: int
    noisy: bool
    units: int = _SIZES[0]
    layers: int = 1

    @property
    def rho(self) -> tuple[float, ...]:
        """Rho of W, V and Q from which the evidence goes on, those of layers between W and V as V.

        With noise s a weight has the prior N(0, s / (2 rho)): by these X W, phi(X W) V and X Q
        have variances about 1 on standardized data. From much weaker priors the first steps follow
        the noise, and are not led back.
        """
        noise = _NOISE if self.noisy else 1.0
        seen = (self.inputs, *self.layers * (self.units,), self.inputs)
        return tuple(noise * count / 2 for count in seen)

    @property
    def weights(self) -> int:
        """How many numbers W, b, V, c and Q have, and those between."""
        between = (self.layers - 1) * self.units * (self.units + 1)
        beside = self.outputs * (self.inputs + 1)
        return self.units * (self.inputs + 1 + self.outputs) + between + beside

    def without_noise(self, samples: int) -> Size:
        """Return the size for as many samples of a smooth function: two layers, three for a weight.

        Two layers of so many weights come nearer in the same time than one, or than larger ones.
        """
        sizes = [replace(self, units=units, layers=2) for units in range(self.units, _MOST_UNITS)]
        answers = samples * self.outputs
        few = [x for x in sizes if x.weights * _FOR_A_WEIGHT <= answers and x.serves(samples)]
        return few[-1] if few else sizes[0]

    def serves(self, samples: int) -> bool:
        """Say whether a matrix of all weights is made in a time that a fit without options has.

        Where so many rows are that this is for the fewest units alone, they want more than these.
        """
        larger = replace(self, units=_SIZES[1])
        return self._serves(samples) and (
            self.units >= _SIZES[1] or larger.weights > _MOST_WEIGHTS or larger._serves(samples)
        )

    def _serves(self, samples: int) -> bool:
        work = matrix_work(samples * self.outputs, self.weights)
        few = self.units <= _SIZES[1] and self.layers == 1 and self.outputs <= 2
        return self.weights <= _MOST_WEIGHTS and work <= (_MOST_WORK if few else _MOST_OF_MORE)


@dataclass(frozen=True)
class Candidate:
    """A network to be fitted.

    Attributes:
        size: of it.
        activation: of its units.
        start: the number of its first weights.
        power: of its targets, None where they stay as they are.
    """

    size: Size
    activation: Activation
    start: int = 0
    power: Power | None = None


class _BehindError(Exception):
    """A fit does not head for more than another has."""


@dataclass
class _Search:
    """Fits: how many, those of nearly the largest evidence, and of the best what it warned of."""

    make: Callable[[Candidate], LiftedMLP]
    fit: Callable[..., object]
    evidence: float = -math.inf
    noise: float = 1.0
    model: LiftedMLP | None = None
    candidate: Candidate | None = None
    told: Sequence[warnings.WarningMessage] = field(default_factory=list)
    count: int = 0
    near: list[tuple[float, Candidate, LiftedMLP]] = field(default_factory=list)

    def tries(self, candidate: Candidate, least: float = 0.0) -> bool:
        """Fit a network, and say whether it is the best so far by more than so much.

        One of another activation is left where its steps no longer head for that: kinks take long.
        One of more units is not, whose evidence may stand still for many steps before it rises.

        Raises:
            KeyboardInterrupt: the fit was interrupted; what it has come to counts.
        """
        model, wanted = self.make(candidate), -math.inf
        model._power = candidate.power
        if self.candidate is not None and self.candidate.activation is not candidate.activation:
            assert self.model is not None and self.model.trace is not None  # it has been fitted
            looks = [step.evidence for step in self.model.trace.steps]
            wanted = max((x for x in looks if x is not None), default=wanted)
        seen: list[float] = []

        def follow(step: Step) -> None:
            if step.evidence is not None:
                seen.append(max([step.evidence, *seen[-1:]]))
                gained = seen[-1] - seen[-_LOOKS - 1 :][0]
                if len(seen) > _LOOKS and seen[-1] + _AHEAD * gained < wanted:
                    raise _BehindError

        found, noise, stopped = -math.inf, 1.0, False
        with suppress(_BehindError), warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", FitWarning)
            self.fit(model, on_step=follow)
            stopped = model.interrupted
            found, noise = _evidence(model)
        better = self.model is None or found > self.evidence + least
        if better:
            self.evidence, self.noise, self.model, self.told = found, noise, model, told
            self.candidate = candidate
        self.count += 1
        near = [*self.near, (found, candidate, model)]
        self.near = [one for one in near if one[0] > self.evidence - _LIKELY]
        if stopped:
            raise KeyboardInterrupt
        return better


def fit_by_evidence(
    size: Size,
    data: tuple[Array, Array, Array | None],
    make: Callable[[Candidate], LiftedMLP],
    fit: Callable[..., object],
    activations: Sequence[Activation] = (Tanh(), ReLU()),
    exact: bool = False,
    bent: bool = True,
) -> LiftedMLP:
    """Fit networks of growing size as long as the evidence clearly grows, and return the best.

    Units are smooth but where kinks have the larger evidence, and targets of regressions are
    brought to a power where that has. Networks of one unit, which have the largest evidence on most
    small tables, answer worse there; fits weighted by their evidence, or by leave-one-out
    densities, answer no better than the best alone (benchmarks.small_sets, the tables that are
    open).

    Args:
        size: of the smallest network.
        data: inputs, targets, and weights of samples or None.
        make: declares a model.
        fit: fits it, and takes `on_step` as `Lifted.fit` does.
        activations: of the units, to choose from; the first is the first that is tried.
        exact: whether targets have no noise, which two layers are for. Where one layer leaves a
            hundredth of the variance or less, they are tried by themselves.
        bent: whether targets may be brought to a power, which keeps no shape.
    """
    search, cut = _Search(make, fit), ""
    deep = Candidate(size.without_noise(len(data[0])), activations[0])
    try:
        search.tries(deep if exact else Candidate(size, activations[0]))
        if not exact:
            power = power_of(*data) if bent and size.noisy else None
            cut = _choose(search, size, len(data[0]), activations, deep, power)
    except KeyboardInterrupt:
        if search.model is None:
            raise
        search.model.tell_interrupted()
        cut = ", after which training was interrupted"
    model, found = search.model, search.candidate
    assert model is not None and found is not None  # the first is, at least
    near = [other for _, candidate, other in search.near if candidate.power is found.power]
    if near:  # or there is no noise
        widen(model, near)
    if found.power is not None:
        answer_skewed(model)
    of_powers = "" if found.power is None else " of powers of the targets"
    layers = " in each of two layers" if found.size.layers > 1 else ""
    model.tell_reason(
        f"{found.size.units} units of {found.activation!r}{layers}{of_powers} have the largest "
        f"evidence of {search.count} fits{cut}"
    )
    for warning in search.told:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return model


def _choose(
    search: _Search, size: Size, samples: int, activations: Sequence[Activation], deep: Candidate,
    power: Power | None,
) -> str:  # fmt: skip
    """Try other targets, starts, sizes and activations, and return what took too long."""
    cut = ""
    if power is not None:
        search.tries(Candidate(size, activations[0], power=power))
    assert search.candidate is not None  # the first is, at least
    for start in range(1, _STARTS):
        search.tries(replace(search.candidate, start=start))
    for units in (x for x in _SIZES if x > size.units):
        larger = replace(search.candidate, size=replace(size, units=units), start=0)
        if search.evidence == math.inf:
            break
        if not larger.size.serves(samples):
            cut = f"; {units} would take longer than a fit without settings may"
            break
        # with more weights than answers two layers follow any noise, which is small by chance
        if search.noise < _NEARLY and size.noisy and deep.size.weights <= samples * size.outputs:
            search.tries(deep, _SURE)
            break
        if not search.tries(larger, _SURE):
            break
    for kind in activations[1:]:
        search.tries(replace(search.candidate, activation=kind, start=0))
    return cut


def _evidence(model: LiftedMLP) -> tuple[float, float]:
    """Return log p(y), infinity where targets are met but for rounding, and the noise's share."""
    try:
        found = laplace_of(model)
    except SolverError:
        assert model.trace is not None  # it has been fitted
        reached = [step.objective for step in model.trace.steps]
        met = len(reached) > 1 and reached[-1] < 1e-9 * reached[0]
        return (math.inf, 0.0) if met else (-math.inf, 1.0)
    share = float(found.noise.max())
    return (math.inf if 0 < share < _MET else found.logarithm), share


def suits(model: Lifted, X: Array, y: Array, weights: Array | None = None) -> bool:
    """Say whether targets are such as the power was chosen for that a fit's targets have.

    Args:
        model: of the fit.
        X: (samples, inputs), as those after it.
        y: (samples, outputs) of another fit.
        weights: (samples,) how often each counts; None for once.
    """
    (term,) = model.network.terms
    moments = model._known.standardization.moments.get(term.label)
    if moments is None or (known := moments.power) is None:
        return True
    now = power_of(X, y, weights)
    if now is None:
        return False
    near = (now.center - known.center).abs() <= known.scale
    alike = (now.scale / known.scale).log().abs() <= math.log(_ALIKE)
    return bool((near & alike & ((now.exponent - known.exponent).abs() <= _CHANGED)).all())


def power_of(X: Array, y: Array, weights: Array | None = None) -> Power | None:
    """Return the power by which linear fits make the targets most likely; None where 1 is as good.

    Around the median, in units of the distance of the quartiles; of positive targets also around 0,
    in units of small ones, which is nearly a logarithm. Exponents are from 0 to 2.

    Args:
        X: (samples, inputs).
        y: (samples, outputs).
        weights: (samples,) how often each counts; None for once.
    """
    X, y = X.astype(float), y.astype(float)
    counts = np.ones(len(X)) if weights is None else weights.astype(float)
    rows = X - np.average(X, 0, counts)
    width = np.sqrt(np.average(rows**2, 0, counts))
    varies = width > _SAME * abs(X).max(0)
    rows = np.c_[rows[:, varies] / width[varies], np.ones(len(X))]
    root, targets = np.sqrt(counts)[:, None], torch.from_numpy(y)
    left, values, _ = np.linalg.svd(root * rows, full_matrices=False)
    each = np.broadcast_to(counts[:, None], y.shape)
    small, low, center, high = np.quantile(
        y, (_SMALL, 0.25, 0.5, 0.75), 0, weights=each, method="inverted_cdf"
    )
    if (low == high).any() or len(X) < FEW:
        return None
    places = [(center, (high - low) / _QUARTILES)]
    if (y > 0).all():
        places.append((np.zeros_like(small), small))
    no = np.zeros_like(center)
    powers = [
        Power(*map(torch.from_numpy, (*place, no + p, no, no - np.inf, no + np.inf)))
        for place in places for p in _EXPONENTS
    ]  # fmt: skip
    found = [
        counts @ power.log_slopes(targets).numpy()
        + _linear_evidence(left, values, root * power.of(targets).numpy(), counts.sum())
        for power in powers
    ]
    best, same = np.argmax(found, 0), list(_EXPONENTS).index(1.0)
    if (np.max(found, 0) - found[same]).sum() < _SURE:
        return None
    chosen = [[getattr(powers[n], x.name)[k] for k, n in enumerate(best)] for x in fields(Power)]
    return Power(*map(torch.stack, chosen))


def _linear_evidence(left: Array, values: Array, t: Array, count: float) -> Array:
    """Return the largest log p(t) of linear fits with one rho, (outputs,), but for constants.

    Args:
        left: left singular vectors of the inputs, of which one is constant.
        values: their singular values.
        t: targets, (samples, outputs).
        count: how many there are.
    """
    seen = left.T @ t
    rest = (t**2).sum(0) - (seen**2).sum(0)
    found = []
    for pull in _PULLS:
        noise = (rest + (pull / (values**2 + pull)) @ seen**2) / count
        likely = -count / 2 * np.log(np.maximum(noise, np.finfo(float).tiny))
        found.append(likely - np.log1p(values**2 / pull).sum() / 2)
    return np.max(found, 0)
