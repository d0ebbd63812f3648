"""Max-pooling as the argmin of a raw divergence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from liftednet.activation import DivergenceActivation
from liftednet.errors import DeclarationError
from liftednet.lazy import cvxpy as cp
from liftednet.validation import is_integer, is_number

if TYPE_CHECKING:
    from cvxpy.expressions.expression import Expression


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
