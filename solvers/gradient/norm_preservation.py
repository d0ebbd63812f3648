"""The regularizer that prefers gradients whose norm survives each step back in time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from liftednet.errors import DataError


def norm_preservation(loss: Tensor, states: Sequence[Tensor]) -> Tensor:
    """Return Omega (Pascanu et al. 2013; On Recurrent Neural Networks, eq. 2.18).

    With e_t = dL / dh_t, for each sample,

        Omega = sum_t (|e_{t+1} dh_{t+1}/dh_t| / |e_{t+1}| - 1)^2,

    averaged over the samples. Steps that no error reaches (e_{t+1} = 0) add nothing. It is
    differentiable in the weights: add a multiple to the loss and call backward.

    Args:
        loss: scalar, computed from `states`.
        states: hidden states h_1, h_2, ... of (batch, size), each computed from the one before.

    Returns:
        A scalar.

    Raises:
        DataError: fewer than two states, or states that the loss does not depend on.
    """
    if len(states) < 2:
        raise DataError(f"Omega compares consecutive states and needs two; given {len(states)}.")
    try:
        errors = torch.autograd.grad(loss, states, create_graph=True)
    except RuntimeError as problem:
        raise DataError(f"The loss does not depend on all states: {problem}") from problem
    terms = [
        _term(error, earlier, later)
        for error, earlier, later in zip(errors[1:], states, states[1:], strict=False)
    ]
    return torch.stack(terms).sum(0).mean()


def _term(error: Tensor, earlier: Tensor, later: Tensor) -> Tensor:
    """Return the term of one step for each sample: (batch,)."""
    # The ratio does not feel the scale of the error, which vanishing gradients make underflow.
    scale = error.detach().abs().amax(1, keepdim=True)
    reached = scale.squeeze(1) > 0
    unit = error / torch.where(scale > 0, scale, torch.ones_like(scale))
    (carried,) = torch.autograd.grad(later, earlier, unit, create_graph=True)
    ratio = _norm(carried) / torch.where(reached, _norm(unit), torch.ones_like(unit[:, 0]))
    return torch.where(reached, (ratio - 1).square(), torch.zeros_like(ratio))


def _norm(rows: Tensor) -> Tensor:
    """Return the norm of each row, with gradient 0 where it is 0."""
    squares = rows.square().sum(1)
    some = squares > 0
    return torch.where(some, squares, torch.ones_like(squares)).sqrt() * some
