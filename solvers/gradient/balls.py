"""Linear minimization over p-balls of several tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from liftednet.errors import DataError
from liftednet.validation import is_number

from .gradients import positive


@dataclass(frozen=True)
class Ball:
    """The vectors whose p-norm is at most the radius.

    Attributes:
        p: of the norm, 1 to infinity.
        radius: positive.

    Raises:
        DataError: p below 1, or a radius that is not positive and finite.
    """

    p: float
    radius: float

    def __post_init__(self) -> None:
        """Refuse what is no ball."""
        if not is_number(self.p) or not self.p >= 1:
            raise DataError(f"p must be at least 1; it is {self.p!r}.")
        positive("The radius", self.radius)

    def norm(self, tensors: Sequence[Tensor]) -> float:
        """Return the p-norm of all entries together."""
        entries = torch.cat([t.detach().flatten() for t in tensors])
        largest = float(entries.abs().max())
        if largest == 0:
            return 0.0
        return largest * float(torch.linalg.vector_norm(entries / largest, self.p))

    def minimizer(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the point of the ball where the linear function is least.

        s = argmin { <s, g> : |s|_p <= radius } (RNN training along locally optimal trajectories,
        eqs. 6 and 7). With q = p / (p - 1), Hoelder's inequality is tight at

            s_i = -radius sign(g_i) |g_i|^(q - 1) / |g|_q^(q - 1),

        which is -radius g / |g|_2 for p = 2 and -radius sign(g) for p = infinity; for p = 1 all
        weight goes to the first largest |g_i|. The minimum is -radius |g|_q. Where g is 0, s is 0.

        Args:
            gradients: tensors of any shapes; the norm is of all their entries together.

        Returns:
            s, in the shapes of `gradients`.
        """
        largest = torch.stack([g.abs().max() for g in gradients]).max()
        if largest == 0:
            return [torch.zeros_like(g) for g in gradients]
        if self.p == 1:
            return self._vertex(gradients, largest)
        if self.p == math.inf:
            return [-self.radius * g.sign() for g in gradients]
        return self._smooth(gradients, largest)

    def _vertex(self, gradients: Sequence[Tensor], largest: Tensor) -> list[Tensor]:
        minimizer = [torch.zeros_like(g) for g in gradients]
        place = next(i for i, g in enumerate(gradients) if g.abs().max() == largest)
        index = gradients[place].abs().argmax()
        sign = gradients[place].flatten()[index].sign()
        minimizer[place].view(-1)[index] = -self.radius * sign
        return minimizer

    def _smooth(self, gradients: Sequence[Tensor], largest: Tensor) -> list[Tensor]:
        # Dividing by the largest entry first keeps every power between 0 and 1.
        scaled = [g / largest for g in gradients]
        if self.p == 2:
            norms = torch.stack([torch.linalg.vector_norm(t) for t in scaled])
            factor = -self.radius / torch.linalg.vector_norm(norms)
            return [t * factor for t in scaled]
        conjugate = self.p / (self.p - 1)
        powers = [t.abs() ** (conjugate - 1) for t in scaled]
        total = torch.stack([(w * t.abs()).sum() for w, t in zip(powers, scaled, strict=True)])
        factor = -self.radius / total.sum() ** (1 / self.p)
        return [t.sign() * w * factor for w, t in zip(powers, scaled, strict=True)]
