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
    """An activation whose derivative follows from its output.

    Attributes:
        apply: replaces its argument by the activation, in place.
        pull_back: called with an error, the output and a tensor to fill: puts the error times
            the derivative into the last.
    """

    apply: Callable[[Tensor], Tensor]
    pull_back: Callable[[Tensor, Tensor, Tensor], Tensor]


RELU = Elementwise(
    torch.relu_,
    lambda error, output, out: torch.ops.aten.threshold_backward(error, output, 0, grad_input=out),
)
TANH = Elementwise(
    torch.tanh_,
    lambda error, output, out: torch.ops.aten.tanh_backward(error, output, grad_input=out),
)


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
        # Each step stays in the cache: whole-sequence products would read the memory again.
        errors, arrived = torch.empty_like(states), torch.empty_like(start)
        weight_sum, later = torch.zeros_like(start), torch.zeros_like(start)
        earlier = (start, *states[:-1].unbind(0))
        steps = zip(gradient.unbind(0), states.unbind(0), earlier, errors.unbind(0), strict=True)
        for given, state, before, error in reversed(list(steps)):
            torch.addcmul(given, weight, later, out=arrived)
            later = ctx.activation.pull_back(arrived, state, error)
            weight_sum.addcmul_(later, before)
        return errors, weight_sum.sum(0), weight * later, None
