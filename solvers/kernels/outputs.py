"""Output fits on the device: one read and one write for each sample."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from liftednet.activations import SimplexProjection
from liftednet.divergences import joint
from liftednet.losses import SimplexCrossEntropy
from liftednet.problems import OutputFit

from ..output import kept_positive
from .device import Kernel, on_device, padded_width, refusal, require_room

_MOST_CLASSES = 1024
_ENTRIES = 512  # of a warp on the simplex, 16 for each thread; twice as many spill


@dataclass(frozen=True)
class FusedSimplex(Kernel[OutputFit]):
    """Solves the cross-entropy on the simplex in one launch, up to 1,024 classes.

    Lifted Neural Networks, appendix A, as `SimplexDual` does: Newton's method for the multiplier
    of each sample, from an upper bound.

    Attributes:
        rows: samples of a tile; None for as many as a warp has room for.
    """

    rows: int | None = None
    kind = OutputFit
    name: str = field(default="fused-simplex", init=False)

    def refusal(self, problem: OutputFit) -> str | None:
        """Ask for the simplex cross-entropy, in float32 on a GPU."""
        if not isinstance(problem.loss, SimplexCrossEntropy):
            return f"it needs the loss SimplexCrossEntropy, not {type(problem.loss).__name__}"
        if problem.target.shape[1] > _MOST_CLASSES:
            return f"it serves at most {_MOST_CLASSES} classes, not {problem.target.shape[1]}"
        return refusal(problem.pre_activation)

    def trial(self, u: Tensor, y: Tensor) -> OutputFit:
        """Return a small problem."""
        return OutputFit(SimplexCrossEntropy(), y, joint(SimplexProjection()), u, 0.7)

    def minimize(
        self, problem: OutputFit, start: Tensor | None, cache: None, tolerance: float
    ) -> tuple[Tensor, int]:
        """Return the minimizer; a start is not used.

        Raises:
            SolverError: the states do not fit on the device.
        """
        return kept_positive(self.states(problem), problem.target), 0

    def states(self, problem: OutputFit) -> Tensor:
        """Return the minimizer without judging it, (samples, outputs)."""
        from .output_rows import simplex_rows

        u = problem.pre_activation
        samples, classes = u.shape
        require_room(samples, classes, 4 * classes, 0, u.device)
        value = torch.empty_like(u, memory_format=torch.contiguous_format)
        width = padded_width(classes)
        rows = max(1, _ENTRIES // width) if self.rows is None else self.rows
        grid = (-(-samples // rows),)
        with on_device(u):
            simplex_rows[grid](
                problem.target.contiguous(),
                u.contiguous(),
                value,
                samples,
                float(problem.lam),
                CLASSES=classes,
                WIDTH=width,
                ROWS=rows,
                num_warps=1,
            )
        return value
