"""The size of a small network, told by the data: of several fits that of the largest evidence."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from liftednet.activation import Activation
from liftednet.activations import ReLU, Tanh
from liftednet.errors import FitWarning, SolverError

from .builders import LiftedMLP
from .choice import matrix_work
from .error_bars import posterior

STEPS = 200  # of one fit at most
_SIZES = (16, 48, 144)  # units; what is linear needs none of them
_STARTS = 2  # of the smallest network with the first units
_MOST_WEIGHTS = 3000
_MOST_WORK = 4e9  # multiplications in one matrix: a fifth of a second, and a fit has some dozens
_NOISE = 0.5  # share of the variance of standardized targets that is noise, before they are seen


@dataclass(frozen=True)
class Size:
    """A network u = phi(X W + b) V + c + X Q with one layer of units beside a linear one.

    What is linear is left to Q, whose rho is its own, so that few units do for the rest.

    Attributes:
        inputs: columns of X.
        outputs: columns of u.
        noisy: whether the noise of the targets is to be found, too, as of squared errors.
        units: of the hidden layer.
    """

    inputs: int
    outputs: int
    noisy: bool
    units: int = _SIZES[0]

    @property
    def rho(self) -> tuple[float, float, float]:
        """Rho of W, V and Q from which the evidence goes on.

        With noise s a weight has the prior N(0, s / (2 rho)): by these X W, phi(X W) V and X Q
        have variances about 1 on standardized data. From much weaker priors the first steps follow
        the noise, and are not led back.
        """
        noise = _NOISE if self.noisy else 1.0
        return noise * self.inputs / 2, noise * self.units / 2, noise * self.inputs / 2

    @property
    def weights(self) -> int:
        """How many numbers W, b, V, c and Q have."""
        return self.units * (self.inputs + 1 + self.outputs) + self.outputs * (self.inputs + 1)

    def serves(self, samples: int) -> bool:
        """Say whether a matrix of all weights is made in a time that a fit without options has."""
        work = matrix_work(samples * self.outputs, self.weights)
        return self.weights <= _MOST_WEIGHTS and work <= _MOST_WORK


Candidate = Callable[[Size, Activation, int], LiftedMLP]  # of a size, its units and a start


def fit_by_evidence(
    size: Size,
    samples: int,
    candidate: Candidate,
    fit: Callable[[LiftedMLP], object],
    activations: Sequence[Activation] = (Tanh(), ReLU()),
) -> LiftedMLP:
    """Fit networks of growing size as long as the evidence grows, and return the best.

    Units are smooth but where kinks have the larger evidence. Networks of one unit, which have the
    largest evidence on most small tables, answer worse there; fits weighted by their evidence, or
    by leave-one-out densities, answer no better than the best alone (benchmarks.small_sets, the
    tables that are open).

    Args:
        size: of the smallest network.
        samples: rows of the data.
        candidate: makes a model.
        fit: fits it.
        activations: of the units, to choose from; the first is the first that is tried.
    """
    best: tuple[float, LiftedMLP, Activation, list[warnings.WarningMessage]] | None = None
    fits = 0
    tries = [(activations[0], start) for start in range(_STARTS)]
    tries += [(kind, 0) for kind in activations[1:]]
    for units in _SIZES:
        now = replace(size, units=units)
        if best is not None and not now.serves(samples):
            break
        before = best
        for kind, start in tries:
            model = candidate(now, kind, start)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always", FitWarning)
                fit(model)
            found, fits = _evidence(model), fits + 1
            if best is None or found > best[0]:
                best = found, model, kind, told
        assert best is not None  # the first is, at least
        if best is before or best[0] == math.inf:
            break
        tries = [(best[2], 0)]
    assert best is not None
    _, model, kind, told = best
    model.tell_reason(
        f"{model.sizes[1]} units of {kind!r} have the largest evidence of {fits} fits"
    )
    for warning in told:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return model


def _evidence(model: LiftedMLP) -> float:
    """Return log p(y); infinity where the targets are met but for rounding."""
    try:
        return posterior(model).log_evidence
    except SolverError:
        assert model.trace is not None  # it has been fitted
        first, *_, last = (step.objective for step in model.trace.steps)
        return math.inf if last < 1e-9 * first else -math.inf
