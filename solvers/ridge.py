"""Weight fits with a joint divergence: one Cholesky factor, of features or of samples."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor

from liftednet.divergences import Joint
from liftednet.errors import SolverError
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import Design, WeightFit, Weights
from liftednet.products import cholesky, square_of_rows
from liftednet.solution import Solution, Status

from .base import Solver, default_tolerance

_FEW = 1 << 14  # entries of X, for which products in float32 spare nothing
_ROUNDING = 1e-13  # relative residual from which there is nothing to refine; eps for each input


@dataclass(frozen=True)
class Factor:
    """A Cholesky factor of the ridge system of a design, in float64.

    With at least as many samples as inputs it is that of curvature [X, 1]'[X, 1] + 2 rho I, the
    bias not penalized; with fewer samples that of X_c X_c' + 2 rho / curvature I, with X_c
    centered where there is a bias. X is less the shift of the design.

    Attributes:
        design: [X, 1].
        curvature: lam L.
        rho: of the penalty.
        lower: the factor.
    """

    design: Design
    curvature: float
    rho: float
    lower: Tensor

    def solve(self, right: Tensor) -> Tensor:
        """Return the solution for a right-hand side."""
        half = torch.linalg.solve_triangular(self.lower, right, upper=False)
        # The two take two thirds of the time of `cholesky_solve`.
        return torch.linalg.solve_triangular(self.lower.T, half, upper=True)


def _factored(problem: WeightFit, previous: Factor | None) -> Factor:
    """Factor the ridge system; the previous factor is returned where it is that of these data.

    Raises:
        SolverError: the matrix is not positive definite in float64.
    """
    if not problem.design.wide:
        _ = problem.cross  # in one pass with the Gram matrix
    assert isinstance(problem.penalty, SquaredFrobenius)  # asked for by refusal
    curvature, rho = problem.curvature, problem.penalty.rho
    design = problem.design.centered
    data = design, curvature, rho
    if previous is not None and (previous.design, previous.curvature, previous.rho) == data:
        return previous
    if design.wide:
        system = square_of_rows(design.shifted.double())
        if design.bias:
            mean = system.mean(0)
            system += mean.mean() - mean - mean.unsqueeze(1)
        system.diagonal().add_(2 * rho / curvature)
    else:
        system = curvature * design.gram
        system.diagonal()[: design.features].add_(2 * rho)
    lower, minor = cholesky(system)
    if minor:
        raise SolverError(
            f"the ridge system with {design.features} inputs is singular in float64 (leading "
            f"minor {minor}): raise rho = {rho:.3g} or scale the inputs."
        )
    return Factor(design, curvature, rho, lower)


@dataclass(frozen=True)
class Ridge(Solver[WeightFit, Weights, Factor]):
    """Solves a weight fit whose divergence is quadratic, exactly.

    (lam L [X, 1]'[X, 1] + 2 rho I) [W; b] = lam ([X, 1]'V - [X, 1]'1 c') + 2 rho [W_0; 0];
    Lifted Neural Networks, section 6.1. With fewer samples than inputs in its dual form. Sums over
    float32 samples are those of float32 products where the certificate allows it.

    Example:
        >>> import torch
        >>> from liftednet.problems import Design, WeightFit
        >>> from liftednet.activations import Identity
        >>> from liftednet.divergences import joint
        >>> from liftednet.penalties import SquaredFrobenius
        >>> from liftednet.solvers import Ridge, solve
        >>> x, y = torch.eye(2), torch.tensor([[3.0], [0.6]])
        >>> fit = WeightFit(joint(Identity()), Design(x, bias=False), y, SquaredFrobenius(1.0))
        >>> solve(fit, Ridge()).value.matrix.flatten()  # y / 3
        tensor([1.0000, 0.2000])
    """

    kind = WeightFit
    name: str = field(default="ridge", init=False)

    def refusal(self, problem: WeightFit) -> str | None:
        """Ask for a joint divergence and a squared Frobenius penalty."""
        if not isinstance(problem.divergence, Joint):
            return 'it needs a quadratic divergence (divergence="joint")'
        if not isinstance(problem.penalty, SquaredFrobenius):
            return "it needs the penalty SquaredFrobenius"
        return None

    def prepare(self, problem: WeightFit, previous: Factor | None = None) -> Factor | None:
        """Return the factor, the previous one as long as X, lam and rho do not change."""
        try:
            return _factored(_rough(problem) or problem, previous)
        except SolverError:  # which the rounding of sums may have made so
            return _factored(problem, previous)

    def solve(
        self, problem: WeightFit, start: Weights | None = None, cache: Factor | None = None
    ) -> Solution[Weights]:
        """Return the exact minimizer; a start is not used."""
        started, rough = time.perf_counter(), _rough(problem)
        if rough is not None:
            with suppress(SolverError):  # the rounding of its sums made it so
                solution = self._solved(rough, cache, started)
                if solution.status is Status.SOLVED:
                    return solution
        return self._solved(problem, cache, started)

    def _solved(
        self, problem: WeightFit, cache: Factor | None, started: float
    ) -> Solution[Weights]:
        system = _factored(problem, cache)
        tolerance = default_tolerance(problem.targets.dtype)

        def solution(stacked: Tensor) -> Solution[Weights]:
            value = problem.design.centered.split(stacked)
            return self.judged(problem, value, 0, started, tolerance)

        if problem.design.wide:
            return solution(_from_samples(problem, system))
        stacked = system.solve(_right_side(problem))
        found = solution(stacked)
        rounding = max(_ROUNDING, problem.design.features * torch.finfo(torch.float64).eps)
        if found.residual <= rounding or not problem.design.exact:
            return found
        refined = _refined(problem, system, stacked, rounding)
        return found if refined is stacked else solution(refined)


def _rough(problem: WeightFit) -> WeightFit | None:
    """Return the fit by sums of float32 products, or None where there are none to be had."""
    inputs = problem.design.inputs
    if inputs.dtype is torch.float64 or problem.design.wide or inputs.numel() < _FEW:
        return None
    return problem.rough


def _refined(problem: WeightFit, system: Factor, value: Tensor, rounding: float) -> Tensor:
    """Return [W; b] refined once where conditioning has cost digits, else as it is."""
    right, design = _right_side(problem), problem.design.centered
    left = torch.addmm(right, design.gram, value, alpha=-system.curvature)
    left[: design.features] -= 2 * system.rho * value[: design.features]
    if bool(left.abs().max() <= rounding * right.abs().max()):
        return value
    return value + system.solve(left)


def _right_side(problem: WeightFit) -> Tensor:
    assert isinstance(problem.penalty, SquaredFrobenius)
    right = problem.lam * problem.asked
    if problem.penalty.center is not None:
        right[: problem.design.features] += problem.penalty.linear_term(right)
    return right


def _from_samples(problem: WeightFit, system: Factor) -> Tensor:
    """Return [W; b] with W = W_0 + X_c' (X_c X_c' + 2 rho / (lam L) I)^-1 (T - X W_0)_c."""
    assert isinstance(problem.penalty, SquaredFrobenius)
    design, center = problem.design.centered, problem.penalty.center
    left, inputs = problem.ridge_targets, design.shifted.double()
    shift = left.new_zeros(()) if center is None else center.to(left)
    if center is not None:
        left = left - inputs @ shift
    mean = left.mean(0) if design.bias else left.new_zeros(())
    found = system.solve(left - mean)  # of samples whose sum is 0: X need no center
    move = (torch.nn.functional.pad(found, (0, 1), value=1.0).T @ inputs).T  # with the sum of X
    if not design.bias:
        return move[:, :-1] + shift
    off = mean - move[:, -1] @ move[:, :-1] / len(inputs)
    return torch.cat([move[:, :-1] + shift, off.unsqueeze(0)])
