"""A recurrent layer over all its steps, and its derivatives without a graph for each step.

A step is a few operations on small tensors, whose nodes in a graph of autograd cost more than
they do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from .objective import Product


def recurrence(drive: Tensor, weight: Tensor, activate: Product) -> Tensor:
    """Return h_t = phi(h_(t-1) W + d_t) of all steps, (steps, samples, units), after h = 0.

    Lifted Recurrent Neural Networks, section 3. It is differentiated step by step, but in a
    `TorchFunctionMode` that takes it as a whole, as `Linearized` does.

    Args:
        drive: d, (steps, samples, pre-activations).
        weight: W, (units, pre-activations).
        activate: phi.
    """
    if has_torch_function((drive, weight)):
        found: Tensor = handle_torch_function(recurrence, (drive, weight), drive, weight, activate)
        return found
    row, rows = drive.new_zeros(*drive.shape[1:-1], len(weight)), []
    for driven in drive:
        row = activate(torch.addmm(driven, row, weight))
        rows.append(row)
    return torch.stack(rows)


class LinearRecurrence(torch.autograd.Function):
    """`recurrence` for a phi that acts unit by unit, whose backward pass is one loop.

    That pass is linear in what comes back to the states, and can be differentiated in it: this is
    the product with the Jacobian. It cannot be in the weights.
    """

    @staticmethod
    def forward(ctx: Any, drive: Tensor, weight: Tensor, activate: Product) -> Tensor:
        """Return the states."""
        rows = recurrence(drive, weight, activate)
        before = torch.cat([torch.zeros_like(rows[:1]), rows[:-1]])
        with torch.enable_grad():
            u = (drive + before @ weight).requires_grad_()
            (slopes,) = torch.autograd.grad(activate(u).sum(), u)
        ctx.save_for_backward(before, slopes, weight)
        return rows

    @staticmethod
    def backward(ctx: Any, *pushes: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return what pushes on the states ask of d and W."""
        before, slopes, weight = (saved.detach() for saved in ctx.saved_tensors)
        asked: Tensor = _Asked.apply(pushes[0], slopes, weight)  # type: ignore[no-untyped-call]
        return asked, before.flatten(0, 1).T @ asked.flatten(0, 1), None


class _Asked(torch.autograd.Function):
    """l_t = phi'(u_t) (p_t + l_(t+1) W'), a linear map of the pushes p."""

    @staticmethod
    def forward(ctx: Any, pushes: Tensor, slopes: Tensor, weight: Tensor) -> Tensor:
        """Return l of all steps."""
        ctx.save_for_backward(slopes, weight)
        return torch.stack(
            _chained(reversed(pushes.unbind()), reversed(slopes.unbind()), weight.T)[::-1]
        )

    @staticmethod
    def backward(ctx: Any, *moves: Tensor) -> tuple[Tensor, None, None]:
        """Return the transposed map: how states move with their pre-activations."""
        slopes, weight = ctx.saved_tensors
        return torch.stack(_chained(moves[0], slopes, weight)), None, None


def _chained(terms: Iterable[Tensor], slopes: Iterable[Tensor], weight: Tensor) -> list[Tensor]:
    """Return r_t = s_t (x_t + r_(t-1) W), one step after another."""
    found: list[Tensor] = []
    for term, slope in zip(terms, slopes, strict=True):
        found.append(slope * (torch.addmm(term, found[-1], weight) if found else term))
    return found
