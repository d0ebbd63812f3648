"""Small state fits by Newton's method, compiled, for every map of the catalogue."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from liftednet.compiled import refusal
from liftednet.problems import Fit, StateFit
from liftednet.problems.ramps import Array, columns_above, link_map, own_map, unserved
from liftednet.solution import Solution, Status

from ..base import Solver, default_tolerance, judged
from ..dual import Dual
from ..newton_states import NewtonStates
from ..proximal import Proximal
from ..solver_table import SolverTable

if TYPE_CHECKING:
    from liftednet.compiled.states import LinkRows

_WORK = 5_000_000  # operations of a step, up to which calls of torch take longer, measured
_EACH = 5_000  # of a sample, whatever its size
_FEW = 8  # samples, up to which it is faster than loops that know ramps alone


@dataclass(frozen=True)
class CompiledSmall(Solver[StateFit, Tensor, None]):
    """Solves a small state fit by the Newton steps of `NewtonStates`, one sample after another.

    With dense systems, below joint and tight links alike, for the maps of the catalogue. What the
    steps leave over, at kinks, is finished in torch.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-8 in float64, 1e-5 in float32.

    Example:
        >>> import torch
        >>> from liftednet import Link, StateFit
        >>> from liftednet.activations import Tanh
        >>> from liftednet.divergences import tight
        >>> from liftednet.solvers import CompiledSmall
        >>> link = Link(tight(Tanh()), torch.eye(1), torch.zeros(1), torch.tensor([[0.5]]))
        >>> CompiledSmall().solve(StateFit(tight(Tanh()), torch.tensor([[1.0]]), (link,))).value
        tensor([[0.7108]])
    """

    tolerance: float | None = None
    name: str = field(default="compiled-small", init=False)

    def obstacle(self, problem: Fit[Any]) -> str | None:
        """Ask for a state fit of the catalogue's maps below matrices, a CPU, and Numba."""
        if not isinstance(problem, StateFit):
            return "it solves state fits alone"
        if not problem.links or not problem.matrices:
            return "it needs links through a matrix that all samples share"
        if own_map(problem.divergence) is None:
            return f"it does not know the map of {problem.divergence!r}"
        for link in problem.links:
            if link_map(link.divergence) is None:
                return f"it does not know the map of {link.divergence!r}"
        return refusal(problem.pre_activation)

    def suits(self, problem: StateFit) -> bool:
        """Say whether it is so small that calls of torch would take longer."""
        columns = columns_above(problem)
        work = problem.samples * (columns**2 * (problem.units + columns) + _EACH)
        return work <= _WORK and (problem.samples <= _FEW or unserved(problem) is not None)

    def solve(
        self, problem: StateFit, start: Tensor | None = None, cache: None = None
    ) -> Solution[Tensor]:
        """Return the minimizer to the tolerance."""
        from .small_rows import newton_each

        started = time.perf_counter()
        own, loops = own_map(problem.divergence), problem.loops
        assert own is not None and loops is not None  # asked for by obstacle
        tolerance = self.tolerance or default_tolerance(problem.pre_activation.dtype)
        if start is None:
            start = problem.divergence.activation.forward(problem.pre_activation)
        u, links = loops
        z = start.detach().numpy().astype(float)
        above = _beside(links, problem.lam)
        try:
            steps, solved = newton_each(u.astype(float), *above, own, 0.8 * tolerance, z)
        except np.linalg.LinAlgError:  # numbers overflow
            steps, solved = 0, False
        value = torch.from_numpy(z).to(problem.pre_activation.dtype)
        if solved:
            solution = judged(problem, value, steps, started, tolerance, self.name)
            if solution.status is Status.SOLVED:
                return solution
        others = NewtonStates(self.tolerance), Dual(self.tolerance), Proximal(self.tolerance)
        other = SolverTable(others).best(problem)
        solution = other.solve(problem, start, other.prepare(problem))
        return replace(solution, seconds=time.perf_counter() - started)


def _beside(links: tuple[LinkRows, ...], lam: float) -> tuple[Array, ...]:
    """Return weights, offsets, targets, the table and the slopes of links side by side, float64."""
    offsets = [link.offset for link in links]
    rows = max(map(len, offsets))
    offsets = [x if len(x) == rows else x.repeat(rows, 0) for x in offsets]
    table = np.array(
        [(link.weight.shape[1], link.lam / lam, link.smooth, *link.above) for link in links]
    )
    return (
        np.concatenate([link.weight for link in links], 1, dtype=float),
        np.concatenate(offsets, 1, dtype=float),
        np.concatenate([link.target for link in links], 1, dtype=float),
        table,
        np.concatenate([link.slope for link in links], dtype=float)[:, 0],
    )
