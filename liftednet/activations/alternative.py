"""The paper's alternative printed forms, as raw divergences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from liftednet.activation import DivergenceActivation
from liftednet.errors import DeclarationError
from liftednet.lazy import cvxpy as cp
from liftednet.validation import is_number

if TYPE_CHECKING:
    from cvxpy.constraints.constraint import Constraint
    from cvxpy.expressions.expression import Expression


class LeakyReLUHalfSpace(DivergenceActivation):
    """phi(u) = max(u / alpha, u) by |v - u|^2 / 2 on the half-space v >= u / alpha.

    Lifted Neural Networks, section 4 (jointly convex representations), as printed: for alpha in
    (0, 1) its negative slope is 1 and its positive slope 1 / alpha, unlike `LeakyReLU`.

    Example:
        >>> import torch
        >>> from liftednet.activations import LeakyReLUHalfSpace
        >>> LeakyReLUHalfSpace(0.5).forward(torch.tensor([[-1.0, 0.0, 2.0]]))
        tensor([[-1.,  0.,  4.]])
    """

    def __init__(self, alpha: float = 0.5) -> None:
        """Keep alpha."""
        if not is_number(alpha) or not 0 < alpha < 1:
            raise DeclarationError(
                f"LeakyReLUHalfSpace needs 0 < alpha < 1, got alpha = {alpha!r}."
            )
        self.alpha = float(alpha)

    def forward(self, u: Tensor) -> Tensor:
        """Return max(u / alpha, u)."""
        return torch.maximum(u / self.alpha, u)

    def divergence(self, v: Expression, u: Expression) -> Expression:
        """Return |v - u|^2 / 2 where v >= u / alpha, infinite elsewhere."""
        return cp.sum_squares(v - u) / 2 + cp.transforms.indicator([v >= u / self.alpha])


class ReLUAbsolute(DivergenceActivation):
    """phi(u) = max(u, 0) by |v - u|_1 on v >= 0.

    Lifted Neural Networks, section 4: the l1 norm in the place of the l2 norm.

    Example:
        >>> import torch
        >>> from liftednet.activations import ReLUAbsolute
        >>> ReLUAbsolute().forward(torch.tensor([[-1.0, 0.0, 2.0]]))
        tensor([[0., 0., 2.]])
    """

    def forward(self, u: Tensor) -> Tensor:
        """Return max(u, 0)."""
        return u.clamp(min=0)

    def divergence(self, v: Expression, u: Expression) -> Expression:
        """Return |v - u|_1."""
        return cp.sum(cp.abs(v - u))

    def domain(self, v: Expression) -> list[Constraint]:
        """Return v >= 0."""
        return [v >= 0]
