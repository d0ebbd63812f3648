"""The leaky ReLU with a slope for every channel, torch's nn.PReLU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from liftednet.activation import Activation
from liftednet.errors import DataError, DeclarationError
from liftednet.lazy import cvxpy as cp

if TYPE_CHECKING:
    from cvxpy.expressions.expression import Expression


class PReLU(Activation):
    """phi(u) = u where u > 0, else alpha u, with a slope alpha > 0 for every channel.

    Phi(v) = (max(v, 0)^2 + min(v, 0)^2 / alpha) / 2 as in Lifted Neural Networks, eq. (8), unit by
    unit; He et al., Delving deep into rectifiers, 2015. A layer has as many units as slopes, or a
    multiple of that: channels of neighboring units, as flattened images have them. With one slope
    it takes any number of units.

    Raises:
        DeclarationError: a slope is not positive and finite, or there is none.

    Example:
        >>> import torch
        >>> from liftednet.activations import PReLU
        >>> PReLU([0.5, 0.1]).forward(torch.tensor([[-1.0, -1.0], [2.0, 3.0]]))
        tensor([[-0.5000, -0.1000],
                [ 2.0000,  3.0000]])
    """

    def __init__(self, slopes: float | Sequence[float] | Tensor = 0.25) -> None:
        """Keep the slopes.

        Args:
            slopes: alpha, one for all units or one for each channel, such as `weight` of a
                torch.nn.PReLU.
        """
        try:
            found = torch.as_tensor(slopes, dtype=torch.float64).detach().flatten().tolist()
        except (TypeError, ValueError, RuntimeError) as error:
            raise DeclarationError(f"PReLU needs numbers as slopes, got {slopes!r}.") from error
        if not found or not all(0 < slope < math.inf for slope in found):
            raise DeclarationError(
                f"PReLU needs positive slopes, got {found}; a slope of 0 is ReLU(), and with a "
                "negative one the map is not monotone."
            )
        self.slopes: tuple[float, ...] = tuple(found)

    @property
    def lipschitz(self) -> float:
        """The largest slope, 1 included."""
        return max(1.0, *self.slopes)

    def spread(self, units: int) -> tuple[float, ...]:
        """Return the slope of every unit.

        Raises:
            DataError: units are no multiple of the slopes.
        """
        if units % len(self.slopes):
            raise DataError(f"{units} units are no multiple of the {len(self.slopes)} slopes.")
        times = units // len(self.slopes)
        return tuple(slope for slope in self.slopes for _ in range(times))

    def alone(self) -> Sequence[Activation]:
        """Return the map of every channel."""
        return tuple(PReLU(slope) for slope in self.slopes)

    def _of(self, u: Tensor) -> Tensor:
        if len(self.slopes) == 1:
            return u.new_tensor(self.slopes)
        return u.new_tensor(self.spread(u.shape[-1]))

    def _stated(self, v: Expression) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """Return the slopes beside v, (samples, units)."""
        return np.broadcast_to(self.spread(v.shape[-1]), v.shape)

    def forward(self, u: Tensor) -> Tensor:
        """Return u where u > 0, else alpha u."""
        return torch.where(u > 0, u, self._of(u) * u)

    def slope(self, u: Tensor) -> Tensor:
        """Return 1 where u > 0, else alpha."""
        return torch.where(u > 0, 1.0, self._of(u))

    def potential(self, v: Expression) -> Expression:
        """Return (|max(v, 0)|^2 + |min(v, 0)|^2 / alpha) / 2."""
        negative = cp.multiply(1 / self._stated(v), cp.square(cp.neg(v)))
        return (cp.sum_squares(cp.pos(v)) + cp.sum(negative)) / 2

    def excess(self, v: Expression) -> Expression:
        """Return (1 - 1 / L) |max(v, 0)|^2 / 2 + (1 / alpha - 1 / L) |min(v, 0)|^2 / 2."""
        negative = cp.multiply(1 / self._stated(v) - 1 / self.lipschitz, cp.square(cp.neg(v)))
        return ((1 - 1 / self.lipschitz) * cp.sum_squares(cp.pos(v)) + cp.sum(negative)) / 2

    def conjugate(self, u: Expression) -> Expression:
        """Return (|max(u, 0)|^2 + alpha |min(u, 0)|^2) / 2."""
        negative = cp.multiply(self._stated(u), cp.square(cp.neg(u)))
        return (cp.sum_squares(cp.pos(u)) + cp.sum(negative)) / 2

    def prox(self, w: Tensor, t: float | Tensor) -> Tensor:
        """Return w / (1 + t) where w > 0, else w / (1 + t / alpha)."""
        return torch.where(w > 0, w / (1 + t), w / (1 + t / self._of(w)))

    def potential_value(self, v: Tensor) -> Tensor:
        """Return (|max(v, 0)|^2 + |min(v, 0)|^2 / alpha) / 2 per sample, (samples,)."""
        return (v.square() * torch.where(v > 0, 1.0, 1 / self._of(v))).sum(-1) / 2

    def conjugate_value(self, u: Tensor) -> Tensor:
        """Return (|max(u, 0)|^2 + alpha |min(u, 0)|^2) / 2 per sample, (samples,)."""
        return (u * self.forward(u)).sum(-1) / 2

    def project(self, v: Tensor) -> Tensor:
        """Return v: the domain is everything."""
        return v
