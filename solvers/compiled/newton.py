"""State fits below a few quadratic links by Newton's method on their dual, compiled."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from liftednet.compiled import in_threads
from liftednet.problems import Fit, StateFit
from liftednet.problems.ramps import Ramp, padded, ramp, unserved
from liftednet.solution import Solution

from ..base import Solver, default_tolerance, judged
from ..chunks import device_chunks
from ..dual import COARSE, Dual, largest_term
from ..dual_rows import TurnedMap, dual_rows, shared_map

_MOST = 32  # columns of all links, whose products are as many as half their square


@dataclass(frozen=True)
class NewtonMap:
    """What all samples share.

    Attributes:
        turned: the links' weights A in rotated coordinates.
        line: phi.
        quick: A, its products and phi for compiled loops, in float32.
        exact: the same in float64.
    """

    turned: TurnedMap
    line: Ramp
    quick: Any
    exact: Any

    def serves(self, problem: StateFit) -> bool:
        """Say whether the problem has these weights and this phi."""
        return self.line == ramp(problem.divergence.activation) and self.turned.serves(problem)


@dataclass(frozen=True)
class CompiledNewton(Solver[StateFit, Tensor, NewtonMap]):
    """Solves a state fit with few quadratic links exactly, samples in vector registers.

    Semismooth Newton steps on the dual of `Dual`, min |y + h|^2 / 2 + Phi*(U - y A'), for an
    activation of at most three straight pieces: the Hessian I + A'DA changes with the few units
    whose piece changes. Float32 leads; a few steps from float64 gradients finish.

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

    tolerance: float | None = None
    name: str = field(default="compiled-newton", init=False)

    def obstacle(self, problem: Fit[Any]) -> str | None:
        """Ask for a state fit with few quadratic links, a ramp, a CPU, and Numba."""
        if not isinstance(problem, StateFit):
            return Dual().obstacle(problem)
        refused = Dual().obstacle(problem) or unserved(problem)
        if refused is not None:
            return refused
        columns = sum(link.shape[1] for link in problem.links)
        if columns > _MOST:
            return f"it serves at most {_MOST} columns of all links, not {columns}"
        return None

    def prepare(self, problem: StateFit, previous: NewtonMap | None = None) -> NewtonMap:
        """Return the links' weights and their products, the previous ones if they serve."""
        from .newton_rows import shared_rows

        if previous is not None and previous.serves(problem):
            return previous
        line, turned = ramp(problem.divergence.activation), shared_map(problem)
        assert line is not None and isinstance(turned, TurnedMap)  # asked for by obstacle
        quick, exact = (
            shared_rows(turned, line, dtype, padded) for dtype in (np.float32, np.float64)
        )
        return NewtonMap(turned, line, quick, exact)

    def solve(
        self, problem: StateFit, start: Tensor | None = None, cache: NewtonMap | None = None
    ) -> Solution[Tensor]:
        """Return the minimizer to the tolerance."""
        from .newton_rows import newton_rows, room

        started = time.perf_counter()
        shared = self.prepare(problem, cache)
        tolerance = self.tolerance or default_tolerance(problem.pre_activation.dtype)
        value = problem.pre_activation.new_empty(problem.samples, problem.units)

        def work(whole: slice) -> int:
            rooms = room(shared.quick, np.float32), room(shared.exact, np.float64)
            most = 0
            for part in _chunks(whole, problem.units):
                rows, scale = dual_rows(problem, shared.turned, part), largest_term(problem, part)
                y = rows.multipliers(None if start is None else start[part])
                if start is None:
                    y = rows.precondition(y)
                arrays = (x.contiguous().detach().numpy() for x in (rows.u, rows.h, y))
                goals = max(tolerance, COARSE) * scale, tolerance * scale
                maps = shared.quick, shared.exact
                given = start is not None, value[part].numpy()
                most = max(most, newton_rows(*arrays, *maps, *rooms, *goals, *given))
            return most

        steps = max(in_threads(work, problem.samples, problem.units))
        return judged(problem, value, steps, started, tolerance, self.name)


def _chunks(whole: slice, columns: int) -> Iterator[slice]:
    for part in device_chunks(whole.stop - whole.start, columns, torch.device("cpu")):
        yield slice(whole.start + part.start, min(whole.start + part.stop, whole.stop))
