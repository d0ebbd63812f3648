"""State fits below a few quadratic links by Newton's method on their dual, compiled."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from liftednet.compiled import in_threads
from liftednet.problems import Fit, StateFit
from liftednet.problems.ramps import ramp, rows_of
from liftednet.solution import Solution, Status

from ..base import default_tolerance, judged
from ..dual import Dual
from ..dual_rows import SharedMap, TurnedMap
from .ramps import OnRamps

_MOST = 32  # columns of all links, whose products are as many as half their square


@dataclass(frozen=True)
class CompiledNewton(OnRamps[SharedMap]):
    """Solves a state fit with few quadratic links exactly, samples in vector registers.

    Semismooth Newton steps on the dual of `Dual`, min |y + h|^2 / 2 + Phi*(U - y A'), for an
    activation of at most three straight pieces: the Hessian I + A'DA changes with the few units
    whose piece changes, and is kept in float32, gradients in float64. What is too ill-conditioned
    for that is finished by `Dual`.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-8 in float64, 1e-5 in float32.

    Example:
        >>> import torch
        >>> from liftednet import Link, StateFit
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> from liftednet.solvers import CompiledNewton
        >>> link = Link(joint(ReLU()), torch.eye(2), torch.zeros(2), torch.ones(1, 2))
        >>> fit = StateFit(joint(ReLU()), torch.tensor([[2.0, -2.0]]), (link,))
        >>> CompiledNewton().solve(fit).value
        tensor([[1.5000, 0.0000]])
    """

    name: str = field(default="compiled-newton", init=False)

    def obstacle(self, problem: Fit[Any]) -> str | None:
        """Ask for a state fit with few quadratic links, a ramp, a CPU, and Numba."""
        refused = super().obstacle(problem)
        if refused is not None or not isinstance(problem, StateFit):
            return refused
        columns = sum(link.shape[1] for link in problem.links)
        if columns > _MOST:
            return f"it serves at most {_MOST} columns of all links, not {columns}"
        return None

    def prepare(self, problem: StateFit, previous: SharedMap | None = None) -> SharedMap:
        """Return the links' weights in rotated coordinates, the previous ones if they serve."""
        return Dual().prepare(problem, previous)

    def solve(
        self, problem: StateFit, start: Tensor | None = None, cache: SharedMap | None = None
    ) -> Solution[Tensor]:
        """Return the minimizer to the tolerance."""
        from .newton_rows import newton_rows

        started = time.perf_counter()
        shared, line = self.prepare(problem, cache), ramp(problem.divergence.activation)
        assert isinstance(shared, TurnedMap)  # on a CPU
        assert line is not None and problem.loops is not None  # asked for by obstacle
        map_ = [x.contiguous().numpy() for x in (shared.map, shared.turn, shared.spectrum)]
        tolerance = self.tolerance or default_tolerance(problem.pre_activation.dtype)
        value = problem.pre_activation.new_empty(problem.samples, problem.units)
        u, links = problem.loops
        begin, z = u[:0] if start is None else start.detach().contiguous().numpy(), value.numpy()

        def work(part: slice) -> int:
            rows = u[part], rows_of(links, part), problem.lam, begin[part]
            steps: int = newton_rows(*rows, *map_, line, tolerance, z[part])
            return steps

        steps = max(in_threads(work, problem.samples, problem.units))
        solution = judged(problem, value, steps, started, tolerance, self.name)
        if solution.status is Status.SOLVED:
            return solution
        resisting = Dual(self.tolerance).solve(problem, start, shared)
        steps, seconds = steps + resisting.iterations, time.perf_counter() - started
        return replace(resisting, iterations=steps, seconds=seconds, solver=self.name)
