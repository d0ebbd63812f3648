"""Gauss-Newton steps in all weights of a network at once, whatever the network is.

The tight lifted problem, linearized at a forward pass, is a convex quadratic in all weights and
states. With the states eliminated it is the model of Gauss-Newton on the loss of the feedforward
rule (Albersmeyer and Diehl, The Lifted Newton Method, 2010), which the linearized outputs give.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from liftednet import processes
from liftednet.errors import DeclarationError

from .curvature_products import CurvatureProducts
from .direct import DirectModel
from .levenberg_marquardt import LevenbergMarquardt
from .local_model import LocalModel
from .normal_equations import NormalEquations
from .objective import Forward
from .output_equations import OutputEquations, answers

Form = Callable[[Forward, Tensor], LocalModel]


def direct(forward: Forward, point: Tensor) -> DirectModel:
    """Return the model with a matrix of the outputs, or of the weights where these are fewer."""
    return (OutputEquations if OutputEquations.serves(forward) else NormalEquations)(forward, point)


FORMS: dict[str, Form] = {"products": CurvatureProducts, "normal": direct}
_MOST_WORK = 2.5e8  # multiplications in a matrix that takes less time than the products
_PRODUCT_SHARE = 25  # of a product in a matrix by layers, times n / m
_OUTPUT_SHARE = 8  # of a product in a matrix of outputs, times their square / m


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
    """

    point: Tensor
    objective: float
    decrease: float
    residual: float
    attempts: int
    matrix: bool


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

    Returns:
        Whether the tolerance has been reached; no step lowers the objective otherwise.
    """
    given = form or form_for(forward)
    damped = solver or LevenbergMarquardt()
    objective = forward.objective(point) if objective is None else objective
    while True:
        model = (direct if matrix else given)(forward, point)
        if model.residual <= tolerance:
            return True
        found = damped.descend(model, partial(forward.decrease, point, objective))
        if found is None:
            return False
        point = forward.within(point + found.step)
        objective -= found.decrease
        matrix = form is None and costs_a_matrix(model, forward)
        taken = Taken(point, objective, found.decrease, model.residual, found.attempts, matrix)
        del model  # with the passes that it keeps, before the next one is made
        yield taken
