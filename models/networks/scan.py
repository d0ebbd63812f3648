"""The recurrence of independent units, run without an autograd graph per step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class Elementwise:
    """An activation whose slope follows from its output.

    Attributes:
        apply: replaces its argument by the activation, in place.
        slope: the derivative, from the output.
    """

    apply: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


RELU = Elementwise(torch.relu_, lambda h: (h > 0).to(h.dtype))
TANH = Elementwise(torch.tanh_, lambda h: 1 - h.square())


def independent_scan(
    drive: Tensor, weight: Tensor, start: Tensor, activation: Elementwise
) -> Tensor:
    """Run h_t = phi(a_t + w * h_{t-1}) over time (Li et al., IndRNN, 2018, eq. 2).

    Every step is two in-place passes, forward and backward, so the cost per step is that of
    reading the data; autograd would keep and schedule a node for each operation of each step.

    Args:
        drive: a, (time, batch, units).
        weight: w, (units,).
        start: h_0, (batch, units).
        activation: phi.

    Returns:
        h_1 to h_T, (time, batch, units); differentiable once in the three tensors.
    """
    states: Tensor = _IndependentScan.apply(  # type: ignore[no-untyped-call]
        drive, weight, start, activation
    )
    return states


class _IndependentScan(Function):
    @staticmethod
    def forward(
        ctx: Any, drive: Tensor, weight: Tensor, start: Tensor, activation: Elementwise
    ) -> Tensor:
        states = torch.empty_like(drive)
        previous = start
        for driven, state in zip(drive.unbind(0), states.unbind(0), strict=True):
            torch.addcmul(driven, weight, previous, out=state)
            previous = activation.apply(state)
        ctx.save_for_backward(states, weight, start)
        ctx.activation = activation
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        states, weight, start = ctx.saved_tensors
        # The error of the pre-activation: e_t = (g_t + w * e_{t+1}) * phi'(a_t + w * h_{t-1}).
        errors = ctx.activation.slope(states)
        later = torch.zeros_like(start)
        steps = list(zip(gradient.unbind(0), errors.unbind(0), strict=True))
        for given, error in reversed(steps):
            later = error.mul_(torch.addcmul(given, weight, later))
        weight_gradient = (errors[1:] * states[:-1]).sum((0, 1)) + (errors[0] * start).sum(0)
        return errors, weight_gradient, weight * errors[0], None
