"""Max-pooling: no map of units by a convex problem of its own, but ReLU states of differences."""

from __future__ import annotations

from torch import Tensor

from liftednet.activation import Activation
from liftednet.errors import DeclarationError
from liftednet.validation import is_integer


class MaxPooling(Activation):
    """phi(u) = the largest entry of each block of u: a maxout layer behind a dense one.

    Lifted Neural Networks, eq. (9), whose divergence has no least value over v and u together. A
    network states the maximum by `Network.maximum`, as ReLU states of differences; the
    documentation has the proof that no divergence in the maximum alone would do.

    Attributes:
        block: how many pre-activations a unit is the largest of.

    Raises:
        DeclarationError: block is no integer from 2 on.

    Example:
        >>> import torch
        >>> from liftednet.activations import MaxPooling
        >>> MaxPooling(2).forward(torch.tensor([[-1.0, 0.0, 2.0, 1.0]]))
        tensor([[0., 2.]])
    """

    per_unit = False

    def __init__(self, block: int = 2) -> None:
        """Keep the block length."""
        if not is_integer(block) or block < 2:
            raise DeclarationError(f"MaxPooling needs an integer block >= 2, got {block!r}.")
        self.block = int(block)

    def forward(self, u: Tensor) -> Tensor:
        """Return the block maxima, (samples, block * units) to (samples, units)."""
        return u.unflatten(-1, (-1, self.block)).amax(-1)
