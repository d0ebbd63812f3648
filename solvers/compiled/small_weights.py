"""Small weight fits by Newton's method, compiled, for every map of the catalogue."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from liftednet.activations import Softmax
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import Design, Fit, WeightFit, Weights
from liftednet.problems.ramps import Array
from liftednet.problems.weight_loops import operations, unlooped
from liftednet.solution import Solution, Status

from ..base import Solver, default_tolerance, judged
from ..generalized_linear import GeneralizedLinear
from ..ridge import Ridge

_QUADRATIC, _CURVED = 30_000, 500_000  # operations up to which calls of torch take longer
_MARGIN = 0.1  # of the tolerance


@dataclass(frozen=True)
class CompiledSmallWeights(Solver[WeightFit, Weights, None]):
    """Solves a small weight fit by Newton steps with dense Hessians, quadratic or not.

    What they do not solve is left to `Ridge` and `GeneralizedLinear`.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-8 in float64, 1e-5 in float32.

    Example:
        >>> import torch
        >>> from liftednet import Design, WeightFit
        >>> from liftednet.divergences import tight
        >>> from liftednet.activations import Sigmoid
        >>> from liftednet.penalties import SquaredFrobenius
        >>> from liftednet.solvers import CompiledSmallWeights
        >>> x, y = torch.tensor([[-1.0], [1.0]]), torch.tensor([[0.2], [0.8]])
        >>> fit = WeightFit(tight(Sigmoid()), Design(x), y, SquaredFrobenius(1e-9))
        >>> CompiledSmallWeights().solve(fit).value.matrix  # log(0.8 / 0.2)
        tensor([[1.3863]])
    """

    tolerance: float | None = None
    name: str = field(default="compiled-small-weights", init=False)

    def obstacle(self, problem: Fit[Any]) -> str | None:
        """Ask for a weight fit of the catalogue's maps, a squared penalty, a CPU, and Numba."""
        if not isinstance(problem, WeightFit):
            return "it solves weight fits alone"
        if not isinstance(problem.penalty, SquaredFrobenius):
            return "it needs the penalty SquaredFrobenius"
        return unlooped(problem)

    def suits(self, problem: WeightFit) -> bool:
        """Say whether it is so small that calls of torch would take longer."""
        inputs = problem.design.features + problem.design.bias
        if isinstance(problem.divergence.activation, Softmax) and not problem.quadratic:
            size = inputs * problem.units
            return size**2 * (problem.design.samples + size) <= _CURVED
        return operations(problem) * inputs <= (_QUADRATIC if problem.quadratic else _CURVED)

    def solve(
        self, problem: WeightFit, start: Weights | None = None, cache: None = None
    ) -> Solution[Weights]:
        """Return the minimizer to the tolerance."""
        from .small_weight_rows import newton_weights

        started = time.perf_counter()
        penalty, design = problem.penalty, problem.design.centered
        assert isinstance(penalty, SquaredFrobenius) and problem.loops is not None  # by obstacle
        tolerance = self.tolerance or default_tolerance(problem.targets.dtype)
        stacked = np.zeros((design.features + design.bias, problem.units))
        if start is not None:
            stacked[:] = design.joined(start).numpy()
        pull = np.zeros((design.features, problem.units))
        if penalty.center is not None:
            pull[:] = penalty.linear_term(torch.from_numpy(pull)).numpy()
        cross = problem.cross.contiguous().numpy()
        given = cross, problem.lam, penalty.rho, pull, _MARGIN * tolerance
        try:
            steps, solved = newton_weights(problem.loops, *given, stacked)
        except np.linalg.LinAlgError:
            steps, solved = 0, False
        if solved:
            value = _split(design, stacked)
            solution = judged(problem, value, steps, started, tolerance, self.name)
            if solution.status is Status.SOLVED:
                return solution
        other: Solver[Any, Any, Any] = (
            Ridge() if problem.quadratic else GeneralizedLinear(self.tolerance)
        )
        solution = other.solve(problem, start, other.prepare(problem))
        return replace(solution, seconds=time.perf_counter() - started)


def _split(design: Design, stacked: Array) -> Weights:
    """Return what `Design.split` does, by numpy, whose calls take less time."""
    kind = design.inputs.dtype
    whole = torch.from_numpy(stacked)
    matrix = whole[: design.features].to(kind)
    if not design.bias:
        return Weights(matrix, None)
    if design.shift is None:
        return Weights(matrix, whole[-1].to(kind))
    bias = stacked[-1] - design.shift.numpy() @ matrix.numpy()
    return Weights(matrix, torch.from_numpy(bias).to(kind))
