"""Weight fits with a kink or ends for each entry or row by coordinate descent on their sums."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from liftednet.divergences import Joint
from liftednet.penalties import L1, GroupLasso, Penalty, SquaredFrobenius
from liftednet.problems import WeightFit, Weights
from liftednet.solution import Solution, Status

from ..base import Solver
from ..choice import solved_by
from .loops import Array, array, at_hand, in_threads, refusal, worth_compiling

_WIDEST = 4_096  # inputs, of which each has a row of sums
_PATIENCE = 400  # steps of accelerated gradients in whose time it is left to them
_PASSES = 20_000  # over rows
_QUICK = 16  # times as fast an entry of sums is in a step of torch's as one of states
_ROUNDING = 1e-13  # of terms, that sums over samples may be off


class Parts(NamedTuple):
    """A penalty that sees each entry of W by itself, or each row.

    Attributes:
        low: the least W, (inputs, units) or (1, 1).
        high: the largest.
        kink: of kink |w|.
        group: of group |w_i|_2 for every row, beside squares alone.
        square: of square |w - w_0|^2 / 2.
        pull: the sum of square w_0, (inputs, units), or None.
    """

    low: Tensor
    high: Tensor
    kink: float
    group: float
    square: float
    pull: Tensor | None


def parted(penalty: Penalty, shape: tuple[int, int]) -> Parts | None:
    """Return a penalty by its parts, or None where it is more than that."""
    high = torch.full((1, 1), torch.inf, dtype=torch.float64)
    low, kink, group, square = -high, 0.0, 0.0, 0.0
    pull: Tensor | None = None
    for part in penalty.parts:
        if isinstance(part, SquaredFrobenius):
            square += part.curvature
            if part.center is not None:
                own = part.linear_term(torch.zeros(shape, dtype=torch.float64))
                pull = own if pull is None else pull + own
        elif isinstance(part, L1):
            kink += part.rho
        elif isinstance(part, GroupLasso):
            group += part.rho
        elif (ends := part.ends(shape)) is not None:
            low, high = torch.maximum(low, ends[0]), torch.minimum(high, ends[1])
        else:
            return None
    entries = kink > 0 or bool(low.isfinite().any()) or bool(high.isfinite().any())
    return None if group and entries else Parts(low, high, kink, group, square, pull)


@dataclass(frozen=True)
class CoordinateDescent(Solver[WeightFit, Weights, None]):
    """Solves a quadratic weight fit with a penalty of entries or of rows, by its Gram matrix.

    With H the Gram matrix about the mean of X and q what it pulls to, every unit is
    min w'Hw / 2 - <q, w> + penalty(w): coordinate descent in float32 finds which entries are zero,
    at an end or free, and a Cholesky factor of H there what they are in float64; entries that
    contradict it change (Kim and Park, 2011, for nonnegative ones). Rows of a `GroupLasso` are
    minimized over one after another. What takes too long is left to `ProximalWeights`.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-8 in float64, 1e-5 in float32.

    Example:
        >>> import torch
        >>> from liftednet.problems import Design, WeightFit
        >>> from liftednet.activations import Identity
        >>> from liftednet.divergences import joint
        >>> from liftednet.penalties import L1
        >>> from liftednet.solvers import CoordinateDescent, solve
        >>> x, y = torch.eye(2), torch.tensor([[3.0], [0.5]])
        >>> fit = WeightFit(joint(Identity()), Design(x, bias=False), y, L1(1.0))
        >>> solve(fit, CoordinateDescent()).value.matrix.flatten()
        tensor([2., 0.])
    """

    kind = WeightFit
    tolerance: float | None = None
    name: str = field(default="coordinate-descent", init=False)

    def refusal(self, problem: WeightFit) -> str | None:
        """Ask for a quadratic divergence, a penalty of entries or rows, a CPU, and Numba."""
        if not problem.by_gram:
            return 'it needs divergence="joint", and at least as many samples as inputs'
        if parted(problem.penalty, (problem.design.features, problem.units)) is None:
            return f"it needs a penalty of each entry or row by itself, not {problem.penalty!r}"
        if problem.design.features > _WIDEST:
            return f"it serves at most {_WIDEST} inputs, not {problem.design.features}"
        return refusal(problem.targets)

    def suits(self, problem: WeightFit) -> bool:
        """Say whether no compiler has to be waited for, or that is worth it."""
        groups = any(isinstance(part, GroupLasso) for part in problem.penalty.parts)
        loop = "descend_together" if groups else "descend"
        return worth_compiling(problem.design.features**2 // _QUICK, problem.units) or at_hand(
            "descent_rows", loop
        )

    def solve(
        self, problem: WeightFit, start: Weights | None = None, cache: None = None
    ) -> Solution[Weights]:
        """Return the minimizer to the tolerance; the solution names the solver that found it."""
        started = time.perf_counter()
        try:
            solution = super().solve(problem, start, cache)
            if solution.status is Status.SOLVED:
                return solution
        except np.linalg.LinAlgError:  # inputs that are sums of others
            pass
        solution = solved_by(problem, ("proximal-weights",), start, self.tolerance)
        return replace(solution, seconds=time.perf_counter() - started)

    def minimize(
        self, problem: WeightFit, start: Weights | None, cache: None, tolerance: float
    ) -> tuple[Weights, int]:
        """Return the minimizer, or what was reached where that takes too long."""
        from .descent_rows import descend_together

        hessian, right, middle = _about_the_mean(problem)
        design, features = problem.design.centered, problem.design.features
        found = parted(problem.penalty, (features, problem.units))
        assert found is not None  # asked for by refusal
        right = right if found.pull is None else right + found.pull
        size = max(float(right.abs().max()), found.kink, found.group)
        goal, whole, b = max(_ROUNDING, 1e-3 * tolerance) * size, array(hessian), array(right.T)
        begin = problem.zeros() if start is None else start
        z = array(begin.matrix.double().T).copy()
        if found.group:
            square, group = float(found.square), float(found.group)
            most = descend_together(whole, b, square, group, goal, _PASSES, z)
        else:
            most = self._by_entries(found, whole, b, goal, z)
        matrix = torch.from_numpy(z).T
        if design.bias:
            matrix = torch.cat([matrix, middle - _mean(design) @ matrix])
        return design.split(matrix), int(math.isfinite(most))

    def _by_entries(self, found: Parts, whole: Array, b: Array, goal: float, z: Array) -> float:
        from .descent_rows import Rest, descend

        low, high = (array(end.expand(len(whole), -1).T) for end in (found.low, found.high))
        rest = Rest(low, high, found.square, found.square, found.kink)
        parts = whole, whole.astype(np.float32)

        def work(part: slice) -> float:
            own: Any = rest if len(low) == 1 else rest._replace(low=low[part], high=high[part])
            budget = _PATIENCE * 2.0 * len(whole) ** 2 * len(z[part])
            used: float = descend(*parts, b[part], own, goal, budget, z[part])
            return used

        return max(in_threads(work, *z.shape))


def _mean(design: Any) -> Tensor:
    """Return the mean of [X - shift], (1, inputs)."""
    mean: Tensor = (design.gram[-1:, :-1] / design.gram[-1, -1]).to(torch.float64)
    return mean


def _about_the_mean(problem: WeightFit) -> tuple[Tensor, Tensor, Tensor]:
    """Return the Hessian in W where b follows, what pulls at W, and the mean that b pulls to."""
    assert isinstance(problem.divergence, Joint)  # asked for by refusal
    asked, design = problem.asked, problem.design.centered
    gram, curvature = design.gram, problem.lam * problem.divergence.smoothness
    if not design.bias:
        return curvature * gram, problem.lam * asked, asked[:0]
    mean, mass = _mean(design), gram[-1, -1]
    hessian = gram[:-1, :-1] - mass * mean.T @ mean
    middle = asked[-1:] / (mass * problem.divergence.smoothness)
    return curvature * hessian, problem.lam * (asked[:-1] - mean.T @ asked[-1:]), middle
