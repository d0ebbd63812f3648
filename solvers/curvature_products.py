"""Gauss-Newton's model of a network by products alone: no matrix, and no limit on the weights."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from .krylov import Krylov
from .levenberg_marquardt import Damped
from .local_model import LocalModel
from .objective import Forward

_FLAT = 3e-4  # relative decrease of the model per product, below which more do not pay
_WINDOW = 5  # products over which it is measured


class CurvatureProducts(LocalModel):
    """A model whose damped steps are found by conjugate gradients, without a preconditioner.

    C + mu has a few large eigenvalues and a crowd near mu, which a metric of units or layers
    scatters (benchmarks/results/gauss_newton.md).
    """

    corrections = 1  # more make no more starts succeed (benchmarks/results/solver_trials.md)

    def __init__(
        self, forward: Forward, point: Tensor, flat: float = _FLAT, window: int = _WINDOW
    ) -> None:
        """Pass forward at a point, (parameters,) in float64; `flat` and `window` as in Krylov."""
        super().__init__(forward, point)
        # A product of the model itself would keep the passes alive until garbage is collected.
        product, free = self.operator.product, self.free
        among = product if free is None else lambda direction: free * product(free * direction)
        self._space = Krylov(among, self.released(self.gradient), flat, window)

    @property
    def products(self) -> int:
        """How many products with C the steps have taken."""
        return self._space.size

    @cached_property
    def mean_curvature(self) -> float:
        """The mean of the diagonal of C, estimated as z'C z over signs z (Hutchinson, 1990)."""
        generator = torch.Generator().manual_seed(0)
        signs = torch.randint(0, 2, self.gradient.shape, generator=generator)
        signs = 2.0 * signs.to(self.gradient) - 1.0
        return float(signs @ self.operator.product(signs)) / len(signs)

    def minimizer(self, damping: float) -> Damped:
        """Return a damped step by conjugate gradients, truncated where they no longer pay."""
        found = self._space.minimizer(damping)
        step = self.inside(found.step)
        if torch.equal(step, found.step):
            return found
        curved = self.operator.product(step)
        return replace(found, step=step, expected=-float(self.gradient @ step + step @ curved / 2))
