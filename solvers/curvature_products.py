"""Gauss-Newton's model of a network by products alone: no matrix, and no limit on the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .krylov import Krylov
from .levenberg_marquardt import Damped, relative
from .linearized import Linearized
from .objective import Forward, Product, joined

_FLAT = 3e-4  # relative decrease of the model per product, below which more do not pay
_WINDOW = 5  # products over which it is measured


@dataclass(frozen=True, eq=False)
class Curvature:
    """C = J' Hess R J + pull as a map.

    Attributes:
        forward: the objective.
        linear: J, at a point.
        curved: products with the Hessian of every loss there.
    """

    forward: Forward
    linear: Linearized
    curved: Sequence[Product]

    def product(self, direction: Tensor) -> Tensor:
        """Return C v for a direction v, (parameters,)."""
        ahead = self.linear.ahead(self.forward.split(direction))
        bent = [curved(part) for curved, part in zip(self.curved, ahead, strict=True)]
        return joined(self.linear.back(bent)) + self.forward.pulls * direction


class CurvatureProducts:
    """<g, s> + <s, C s> / 2 with C = J' Hess R J + pull, J the Jacobian of the outputs.

    A damped step is found by conjugate gradients, without a preconditioner: C + mu has a few large
    eigenvalues and a crowd near mu, which a metric of units or layers scatters
    (benchmarks/results/gauss_newton.md).

    Attributes:
        gradient: g, (parameters,), float64.
        curvature: C.
    """

    def __init__(
        self, forward: Forward, point: Tensor, flat: float = _FLAT, window: int = _WINDOW
    ) -> None:
        """Pass forward at a point, (parameters,) in float64; `flat` and `window` as in Krylov."""
        linear = Linearized(forward, point)
        pairs = list(zip(forward.targets, linear.outputs, strict=True))
        slopes = zip(*(target.slopes(outputs) for target, outputs in pairs), strict=True)
        left, answered = (joined(linear.back(part)) for part in slopes)
        curved = [target.curved(outputs) for target, outputs in pairs]
        self.curvature = Curvature(forward, linear, curved)
        pulled = forward.pulls * point
        self.gradient = left + pulled
        self._scale = max(float(term.abs().max()) for term in (answered, answered - left, pulled))
        # A product of the model itself would keep the passes alive until garbage is collected.
        self._space = Krylov(self.curvature.product, self.gradient, flat, window)

    @property
    def residual(self) -> float:
        """The largest entry of the gradient over the largest of its terms."""
        return relative(self.gradient, self._scale)

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
        return float(signs @ self.curvature.product(signs)) / len(signs)

    def minimizer(self, damping: float) -> Damped:
        """Return a damped step by conjugate gradients, truncated where they no longer pay."""
        return self._space.minimizer(damping)
