"""State fits below quadratic links by coordinate descent and exact solves, compiled."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from liftednet.compiled import in_threads
from liftednet.problems import StateFit
from liftednet.problems.ramps import ramp
from liftednet.solution import Solution, Status

from ..base import default_tolerance, judged
from ..dual import Dual, largest_term
from ..dual_rows import SharedMap, TurnedMap, dual_rows
from ..proximal import Proximal
from ..solver_table import SolverTable
from .ramps import OnRamps, chunks

_UNITS = 500  # whose matrix in float32 a core's own cache holds
_PROBED = 4  # samples that tell what the others will take
_WORK = 8.0  # times units x columns x log of the condition: beyond it others are faster, measured
_PATIENCE = 3.0  # times that, once it has begun


@dataclass(frozen=True)
class CompiledDescent(OnRamps):
    """Solves a state fit below quadratic links exactly, where steps from unit to unit are few.

    Coordinate descent in float32 finds the pieces of phi on which the states are, and a Cholesky
    factor of A A' on the free units their minimizer in float64; pieces that it contradicts change,
    as in block principal pivoting (Kim and Park, 2011). That is fastest where few states are free
    or the start is nearly optimal: some samples tell, and `Dual` or `Proximal` take what they are
    faster at.

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

    def solve(
        self, problem: StateFit, start: Tensor | None = None, cache: SharedMap | None = None
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
        known = shared if isinstance(other, Dual) else other.prepare(problem)
        solution = other.solve(problem, start, known)
        return replace(solution, seconds=time.perf_counter() - started)

    def _states(
        self, problem: StateFit, start: Tensor | None, shared: SharedMap, tolerance: float
    ) -> Tensor | None:
        """Return the states, or None where that takes more than it does others."""
        assert isinstance(shared, TurnedMap)  # on a CPU
        from .descent_rows import descend, lines

        whole = shared.map @ shared.adjoint
        hessian, single = whole.numpy(), whole.float().numpy()
        line = lines(ramp(problem.divergence.activation))
        most = _WORK * shared.map.numel() * math.log1p(float(shared.spectrum.max()))

        def solved(part: slice, budget: float) -> Tensor | None:
            rows = dual_rows(problem, shared, part)
            right = torch.addmm(rows.u.double(), rows.h.double(), shared.adjoint)
            begin = torch.zeros_like(right) if start is None else start[part].double()
            z, goal = begin.clone().contiguous(), tolerance * largest_term(problem, part)
            budget *= len(z)
            ended = descend(hessian, single, right.numpy(), *line, goal, budget, z.numpy())
            return z if ended else None

        samples = problem.samples
        value = problem.pre_activation.new_empty(samples, problem.units)

        def work(mine: slice) -> bool:
            for part in chunks(mine, problem.units):
                found = solved(part, _PATIENCE * most)
                if found is None:
                    return False
                value[part] = found
            return True

        try:
            if samples > _PROBED and solved(slice(0, samples, samples // _PROBED), most) is None:
                return None
            return value if all(in_threads(work, samples, problem.units)) else None
        except np.linalg.LinAlgError:  # numbers overflow
            return None
