"""State fits below quadratic links by coordinate descent and exact solves, compiled."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from liftednet.compiled import in_threads
from liftednet.divergences import Joint
from liftednet.problems import StateFit
from liftednet.problems.ramps import Array, ramp
from liftednet.problems.state_fit import reach
from liftednet.solution import Solution, Status

from ..base import default_tolerance, judged
from ..dual import Dual
from ..dual_rows import curvature_of, scales_of
from ..link_weights import LinkWeights, link_weights
from ..proximal import Proximal
from ..solver_table import SolverTable
from .ramps import OnRamps, chunks

_UNITS = 500  # whose matrix in float32 a core's own cache holds
_PROBED, _SWEPT = 4, 16  # samples that tell what the others will take
_SWEEPS = 1_000  # of a sample at most
_POWERS = 20  # steps to the largest eigenvalue
_WORK = 8.0  # times units x columns x log of the condition: beyond it others are faster, measured
_PATIENCE = 3.0  # times that, once it has begun
_SWEEP = 5.0  # operations of sample after sample in the time of one of sixteen together, measured


@dataclass(frozen=True)
class SharedHessian:
    """What fits below the same links share.

    Attributes:
        weights: the links' weights.
        scales: lam_k L_k / lam.
        hessian: H, the sum of scale_k W_k W_k', (units, units), float64.
        single: the same in float32.
        panels: the same for sweeps.
        work: operations of a sample beyond which others are faster.
        others: what other solvers have prepared, by their names.
    """

    weights: LinkWeights
    scales: tuple[float, ...]
    hessian: Array
    single: Array
    panels: Array
    work: float
    others: dict[str, Any]

    def serves(self, problem: StateFit) -> bool:
        """Say whether the problem has these weights and these scales."""
        return self.scales == scales_of(problem) and self.weights.are_those_of(problem)


@dataclass(frozen=True)
class CompiledDescent(OnRamps[SharedHessian]):
    """Solves a state fit below quadratic links by coordinate descent, where steps are few.

    Sixteen samples at a time in vector registers where few sweeps over the units do. Else sample
    by sample: float32 finds the pieces of phi on which the states are, and a Cholesky factor of
    A A' on the free units their minimizer in float64; pieces that it contradicts change, as in
    block principal pivoting (Kim and Park, 2011), fastest where few states are free or the start
    is nearly optimal. Some samples tell, and `Dual` or `Proximal` take what they are faster at.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-8 in float64, 1e-5 in float32.

    Example:
        >>> import torch
        >>> from liftednet import Link, StateFit
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> from liftednet.solvers import CompiledDescent
        >>> link = Link(joint(ReLU()), torch.eye(2), torch.zeros(2), torch.ones(1, 2))
        >>> fit = StateFit(joint(ReLU()), torch.tensor([[2.0, -2.0]]), (link,))
        >>> CompiledDescent().solve(fit).value
        tensor([[1.5000, 0.0000]])
    """

    name: str = field(default="compiled-descent", init=False)

    def suits(self, problem: StateFit) -> bool:
        """Say whether the units are so few that their matrix stays in a cache."""
        return problem.units <= _UNITS

    def prepare(self, problem: StateFit, previous: SharedHessian | None = None) -> SharedHessian:
        """Return the links' products, the previous ones if they serve."""
        if previous is not None and previous.serves(problem):
            return previous
        from .sweep_rows import panelled

        scales = scales_of(problem)
        hessian = torch.zeros(problem.units, problem.units, dtype=torch.float64)
        for link, scale in zip(problem.links, scales, strict=True):
            weight = link.weight.double()
            hessian.addmm_(weight, weight.T, alpha=scale)
        columns = sum(link.shape[1] for link in problem.links)
        work = _WORK * problem.units * columns * math.log1p(_largest(hessian))
        whole = hessian.numpy()
        parts = whole, hessian.float().numpy(), panelled(whole), work
        return SharedHessian(link_weights(problem), scales, *parts, {})

    def solve(
        self, problem: StateFit, start: Tensor | None = None, cache: SharedHessian | None = None
    ) -> Solution[Tensor]:
        """Return the minimizer to the tolerance; the solution names the solver that found it."""
        started = time.perf_counter()
        shared = self.prepare(problem, cache)
        tolerance = self.tolerance or default_tolerance(problem.pre_activation.dtype)
        value = self._states(problem, start, shared, tolerance)
        if value is not None:
            solution = judged(problem, value, 1, started, tolerance, self.name)
            if solution.status is Status.SOLVED:
                return solution
        other = SolverTable((Dual(self.tolerance), Proximal(self.tolerance))).best(problem)
        known = shared.others.setdefault(other.name, other.prepare(problem))
        solution = other.solve(problem, start, known)
        return replace(solution, seconds=time.perf_counter() - started)

    def _states(
        self, problem: StateFit, start: Tensor | None, shared: SharedHessian, tolerance: float
    ) -> Tensor | None:
        """Return the states, or None where that takes more than it does others."""
        from .descent_rows import descend, lines
        from .sweep_rows import sweep

        line, quick = lines(ramp(problem.divergence.activation))
        value = problem.pre_activation.new_empty(problem.samples, problem.units)

        def begun(part: slice) -> tuple[Array, float, Array]:
            right, size = _asked(problem, part)
            z = torch.zeros_like(right) if start is None else start[part].double().clone()
            return right.numpy(), tolerance * size, z.contiguous().numpy()

        def alone(part: slice, budget: float) -> tuple[float, Array]:
            right, goal, z = begun(part)
            parts = shared.hessian, shared.single, right, line, quick, goal
            used: float = descend(*parts, budget * len(z), z)
            return used / len(z), z

        def together(part: slice, most: int) -> tuple[int, Array]:
            right, goal, z = begun(part)
            parts = shared.hessian, shared.panels, right, line, goal, most
            return sweep(*parts, z), z

        def all_by(way: Callable[[slice, Any], tuple[float, Array]], most: Any) -> Tensor | None:
            def work(mine: slice) -> bool:
                for part in chunks(mine, problem.units):
                    used, z = way(part, most)
                    if not used < math.inf:
                        return False
                    value[part] = torch.from_numpy(z)
                return True

            return value if all(in_threads(work, *value.shape)) else None

        try:
            if problem.samples <= _SWEPT:
                return all_by(alone, _PATIENCE * shared.work)
            used, _ = alone(_some(problem, _PROBED), shared.work)
            most = int(min(_SWEEP * min(used, shared.work) / problem.units**2, _SWEEPS))
            sweeps, _ = together(_some(problem, _SWEPT), most)
            found = all_by(together, 2 * most) if sweeps < math.inf else None
            if found is None and used < math.inf:
                found = all_by(alone, _PATIENCE * shared.work)
            return found
        except np.linalg.LinAlgError:  # numbers overflow
            return None


def _some(problem: StateFit, count: int) -> slice:
    """Return some samples from all over."""
    step = max(1, problem.samples // count)
    return slice(0, min(count * step, problem.samples), step)


def _largest(hessian: Tensor) -> float:
    """Return nearly the largest eigenvalue."""
    v = hessian.sum(0)
    for _ in range(_POWERS):
        v = hessian @ (v / v.norm().clamp(min=1e-300))
    return float(v.norm())


def _asked(problem: StateFit, part: slice) -> tuple[Tensor, float]:
    """Return b for these samples, and the largest of 1, the reach of U and the links' V W' / lam.

    b is U and the sum of (V - c - L C) W' lam_k / lam.
    """
    right = problem.pre_activation[part].double().clone()
    size = max(1.0, float(reach(problem.divergence.activation, right).max()))
    for link in problem.links:
        assert isinstance(link.divergence, Joint)  # the quadratic divergence
        turned, target = link.weight.double().T, link.target[part].double()
        pulled = (link.lam / problem.lam) * (target @ turned)
        size = max(size, float(pulled.abs().max()))
        offset = link.offset if link.offset.ndim == 1 else link.offset[part]
        away = link.divergence.offset(target) + curvature_of(link) * offset.double()
        right += pulled
        if bool(away.any()):
            right -= (link.lam / problem.lam) * (away @ turned)
    return right, size
