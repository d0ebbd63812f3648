"""The cross-entropy on the simplex by its scalar dual, in one compiled pass."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from liftednet.compiled import in_threads, refusal
from liftednet.problems import Fit, OutputFit
from liftednet.solution import Solution, Status

from ..base import Solver, default_tolerance, judged
from ..output import SimplexDual, settled


@dataclass(frozen=True)
class CompiledSimplex(Solver[OutputFit, Tensor, None]):
    """Solves the cross-entropy on the simplex as `SimplexDual` does, samples in vector registers.

    Lifted Neural Networks, appendix A.

    Example:
        >>> import torch
        >>> from liftednet import OutputFit
        >>> from liftednet.activations import SimplexProjection
        >>> from liftednet.divergences import tight
        >>> from liftednet.losses import SimplexCrossEntropy
        >>> from liftednet.solvers import CompiledSimplex, solve
        >>> y, u = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
        >>> fit = OutputFit(SimplexCrossEntropy(), y, tight(SimplexProjection()), u)
        >>> solve(fit, CompiledSimplex()).value  # 2 z^2 = 1
        tensor([[0.7071, 0.2929]])
    """

    name: str = field(default="compiled-simplex", init=False)

    def obstacle(self, problem: Fit[Any]) -> str | None:
        """Ask for an output fit with the simplex cross-entropy, a CPU, and Numba."""
        unserved = SimplexDual().obstacle(problem)
        return unserved or refusal(problem.pre_activation)  # type: ignore[attr-defined]

    def solve(
        self, problem: OutputFit, start: Tensor | None = None, cache: None = None
    ) -> Solution[Tensor]:
        """Return the minimizer; a start is not used."""
        from .simplex_rows import simplex_rows

        started = time.perf_counter()
        y, u = problem.target.detach().numpy(), problem.pre_activation.detach().numpy()
        value = torch.empty(u.shape, dtype=problem.target.dtype)
        lam, end, z = u.dtype.type(problem.lam), u.dtype.type(settled(value.dtype)), value.numpy()

        def work(part: slice) -> int:
            steps: int = simplex_rows(y[part], u[part], lam, end, z[part])
            return steps

        steps = max(in_threads(work, *u.shape))
        tolerance = default_tolerance(value.dtype)
        return judged(problem, value, steps, started, tolerance, self.name, Status.STALLED)
