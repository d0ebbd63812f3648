"""Damped Gauss-Newton steps in all weights of a network at once, whatever the network is."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from liftednet import processes
from liftednet.errors import DeclarationError

from .equations import DirectModel, NormalEquations, OutputEquations, answers
from .kinks import across_kinks
from .krylov import CurvatureProducts
from .local_model import Damped, LocalModel
from .objective import Forward

_SMALLEST_DAMPING = 1e-10  # in units of the first model's mean curvature
_ATTEMPTS = 20
_PAYS = 0.1  # of what a step lowers: by less than that, no further correction is worth its time
_SLOW = 1e-2  # relative decrease from which kinks keep a model from meeting the objective
_MOST_WORK = 2.5e8  # multiplications in a matrix that takes less time than the products
_PRODUCT_SHARE = 25  # of a product in a matrix by layers, times n / m
_OUTPUT_SHARE = 8  # of a product in a matrix of outputs, times their square / m


@dataclass(frozen=True, eq=False)
class Descended:
    """What a damped step did.

    Attributes:
        step: s, (parameters,).
        decrease: by how much it lowers the objective, positive.
        attempts: how many dampings were tried.
    """

    step: Tensor
    decrease: float
    attempts: int


@dataclass
class LevenbergMarquardt:
    """Minimizes the model + mu |s|^2 / 2, with a damping mu that learns from each step.

    Further solves with the same matrix correct the step for what the linearized network is wrong
    by, s <- s_0 - (C + mu)^-1 J' Hess R (u(w + s) - u(w) - J s), as long as each lowers the
    objective by more than the last. The first is the second-order correction of Nocedal and Wright,
    Numerical Optimization, section 18.3, here with the effect of the geodesic acceleration of
    Transtrum and Sethna (2012); all are the simplified Newton iteration of Deuflhard, Newton
    Methods for Nonlinear Problems, 2004. Steps follow the valley that they would else cross.

    mu is multiplied by max(1/3, 1 - (2 r - 1)^3) after a step whose decrease is r times that of
    the model, and by 2, 4, 8, ... where the objective would rise: Nielsen, Damping Parameter in
    Marquardt's Method, 1999.

    Attributes:
        damping: the first mu, in units of the first model's mean curvature.
        mu: the next, or 0 before the first step.
        floor: the smallest that it may become, 0 before the first step.
        corrections: of a step at most, as many as the model has use for where it is None.
    """

    damping: float = 1.0
    mu: float = 0.0
    floor: float = 0.0
    corrections: int | None = None
    name: str = field(default="levenberg-marquardt", init=False)

    def descend(self, model: LocalModel, decrease: Callable[[Tensor], float]) -> Descended | None:
        """Return a step that lowers the objective, or None where none is found.

        Args:
            model: of the objective at the current point.
            decrease: by how much a step lowers the objective; NaN or infinity counts as a rise.
        """
        if self.mu == 0.0:
            unit = model.mean_curvature
            self.mu, self.floor = self.damping * unit, _SMALLEST_DAMPING * unit
        growth = 2.0
        for attempt in range(1, _ATTEMPTS + 1):
            damped = model.minimizer(self.mu)
            most = model.corrections if self.corrections is None else self.corrections
            step, gained = _corrected(model, damped, decrease, most)
            if 0 < gained < math.inf and damped.expected > 0:
                share = min(gained / damped.expected, 1.0)
                factor = max(1 / 3, 1 - (2 * share - 1) ** 3)
                self.mu = max(self.mu * factor, self.floor)
                return Descended(step, gained, attempt)
            self.mu *= growth
            growth *= 2
        return None


def _corrected(
    model: LocalModel, damped: Damped, decrease: Callable[[Tensor], float], most: int
) -> tuple[Tensor, float]:
    """Return the best of a damped step and its corrections, and by how much it lowers."""
    best, gained = damped.step, decrease(damped.step)
    for _ in range(most):
        step = model.inside(damped.step - damped.solve(model.bend(best)))
        found = decrease(step)
        if not gained < found < math.inf:
            break
        pays = found - gained > _PAYS * abs(found)
        best, gained = step, found
        if not pays:
            break
    return best, gained


Form = Callable[[Forward, Tensor], LocalModel]


def direct(forward: Forward, point: Tensor) -> DirectModel:
    """Return the model with a matrix of the outputs, or of the weights where these are fewer."""
    return (OutputEquations if OutputEquations.serves(forward) else NormalEquations)(forward, point)


FORMS: dict[str, Form] = {"products": CurvatureProducts, "normal": direct}


@dataclass(frozen=True, eq=False)
class Taken:
    """A step that lowered the objective.

    Attributes:
        point: all weights after it, (parameters,), float64.
        objective: the value there.
        decrease: by how much it is lower than before.
        residual: the relative gradient before the step.
        attempts: how many dampings were tried.
        matrix: whether products have become so many that the next step should take the matrix.
        crossed: how many times L-BFGS has gone on across kinks; None before the first.
        evidence: log p(y) before it, where rho follow that.
    """

    point: Tensor
    objective: float
    decrease: float
    residual: float
    attempts: int
    matrix: bool
    crossed: int | None = None
    evidence: float | None = None


def form_named(name: str | None) -> Form | None:
    """Return a form of the model by its name; None stays None, and is chosen.

    Raises:
        DeclarationError: there is no such form.
    """
    if name is not None and name not in FORMS:
        known = ", ".join(map(repr, FORMS))
        raise DeclarationError(f"there is no form {name!r} of a step; there are {known}.")
    return None if name is None else FORMS[name]


def form_for(forward: Forward) -> Form:
    """Return the form whose first steps should bring the objective down in less time.

    With m numbers in the loss and n weights, the matrix of dense layers takes (m + n) n^2
    multiplications, that of fewer outputs than weights m^2 n. It is better where they take about as
    long as the products alone need to be called, a few hundredths of a second
    (benchmarks/results/gauss_newton.md). That of other networks, sample by sample, is not.
    """
    if forward.layers is None:
        return CurvatureProducts
    asked, weights = answers(forward), len(forward.pulls)
    by_outputs = OutputEquations.serves(forward)
    work = asked**2 * weights if by_outputs else (asked + weights) * weights**2
    return direct if work <= _MOST_WORK else CurvatureProducts


def costs_a_matrix(model: LocalModel, forward: Forward) -> bool:
    """Return whether a step has taken more products than a matrix by layers has time for.

    Where the residuals become small, so does the damping, and conjugate gradients need more and
    more products. The matrix of m samples and n weights takes about n (m + n) / (25 m) of them,
    that of k outputs k^2 / (8 m).
    """
    if forward.layers is None or not isinstance(model, CurvatureProducts):
        return isinstance(model, DirectModel)
    weights, samples = len(forward.pulls), processes.total_of(forward.samples)
    if OutputEquations.serves(forward):
        return _OUTPUT_SHARE * model.products * samples > answers(forward) ** 2
    return _PRODUCT_SHARE * model.products * samples > weights * (samples + weights)


def steps(
    forward: Forward,
    point: Tensor,
    tolerance: float,
    form: Form | None = None,
    solver: LevenbergMarquardt | None = None,
    objective: float | None = None,
    matrix: bool = False,
    crossed: int | None = None,
) -> Generator[Taken, None, bool]:
    """Yield one step after another, each of which lowers the objective.

    Nothing is changed in place: where it is interrupted, the last step stands.

    Args:
        forward: the network, its data and its targets.
        point: all weights at the start, (parameters,), float64.
        tolerance: stop when no entry of the gradient, relative to its terms, is larger.
        form: how the model at a point is made; None for a choice by size, and by what a step of
            products has cost.
        solver: with the damping to go on with; None for a new one.
        objective: the value at the start, where it is known.
        matrix: whether the step before has found that a matrix would be faster.
        crossed: as the step before has told it.

    Returns:
        Whether the tolerance has been reached; no step lowers the objective otherwise.
    """
    given = form or form_for(forward)
    damped = solver or LevenbergMarquardt()
    objective = forward.objective(point) if objective is None else objective
    while crossed is None:
        model = (direct if matrix else given)(forward, point)
        if model.residual <= tolerance:
            return True
        found = damped.descend(model, partial(forward.decrease, point, objective))
        decrease = 0.0 if found is None else found.decrease
        if forward.kinked and decrease < _SLOW * objective:
            break
        # What is left untaken is found again by who goes on from a checkpoint.
        if found is None or not decrease > 0.0:
            return False
        point, objective = forward.within(point + found.step), objective - decrease
        matrix = form is None and costs_a_matrix(model, forward)
        taken = Taken(point, objective, decrease, model.residual, found.attempts, matrix)
        del model  # with the passes that it keeps, before the next one is made
        yield taken
    return (yield from across_kinks(forward, point, objective, tolerance, crossed or 0))
