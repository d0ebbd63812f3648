"""Raw divergences of the paper: its alternative printed forms, and max-pooling."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from liftednet.activation import DivergenceActivation
from liftednet.errors import DeclarationError
from liftednet.lazy import cvxpy as cp
from liftednet.validation import is_integer, is_number

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


class MaxPooling(DivergenceActivation):
    """phi(u) = the largest entry of each block of u.

    Lifted Neural Networks, eq. (9) and the divergence below it, weight 1'v + 1'(u - D v)_+. As
    printed, with weight 1, every v from the second largest entry to the largest is an argmin; a
    weight strictly between 0 and 1 leaves the largest alone.

    Example:
        >>> import torch
        >>> from liftednet.activations import MaxPooling
        >>> MaxPooling(2).forward(torch.tensor([[-1.0, 0.0, 2.0, 1.0]]))
        tensor([[0., 2.]])
    """

    def __init__(self, block: int = 2, weight: float = 0.5) -> None:
        """Keep the block length and the weight on 1'v."""
        numbers = is_integer(block) and is_number(weight)
        if not numbers or block < 2 or not 0 < weight < 1:
            raise DeclarationError(
                "MaxPooling needs an integer block >= 2 and 0 < weight < 1, got "
                f"block = {block!r}, weight = {weight!r}."
            )
        self.block = int(block)
        self.weight = float(weight)

    def forward(self, u: Tensor) -> Tensor:
        """Return the block maxima, (samples, block * units) to (samples, units)."""
        return u.unflatten(-1, (-1, self.block)).amax(-1)

    def divergence(self, v: Expression, u: Expression) -> Expression:
        """Return weight 1'v + 1'(u - D v)_+ with D repeating each unit over its block."""
        repeat = np.kron(np.eye(v.shape[1]), np.ones((1, self.block)))
        return self.weight * cp.sum(v) + cp.sum(cp.pos(u - v @ repeat))

    def pre_units(self, units: int) -> int:
        """Return block * units."""
        return self.block * units
