"""Products with the transpose of a Jacobian, by autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def pulled_back(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], rows: Sequence[Tensor], **options: Any
) -> tuple[Tensor, ...]:
    """Return J'u, to the bits of torch.autograd.grad(outputs, inputs, rows).

    That imports sympy, half a second in every process, to compare shapes that may be symbols. A
    number whose gradient in the outputs is u has no shape to compare.

    Args:
        outputs: that are differentiated.
        inputs: in which.
        rows: u, of the shapes of the outputs; differentiable where the graph is created.
        options: retain_graph, create_graph and so on.
    """
    with torch.enable_grad():
        number: Tensor = _Paired.apply(*outputs, *rows)  # type: ignore[no-untyped-call]
    return torch.autograd.grad(number, inputs, **options)


class _Paired(torch.autograd.Function):
    """A number that says its gradient in some tensors is some others."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        """Return 0."""
        ctx.save_for_backward(*tensors[len(tensors) // 2 :])
        return tensors[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the other tensors as the gradient in the first."""
        rows = ctx.saved_tensors
        return (*rows, *(None for _ in rows))
