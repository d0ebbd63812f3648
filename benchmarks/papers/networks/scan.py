"""Recurrences over time, run without an autograd graph per step."""

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
        slope: puts the derivatives that belong to outputs (first) into a tensor (second).
    """

    apply: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]


RELU = Elementwise(torch.relu_, lambda output, out: torch.sign(output, out=out))
TANH = Elementwise(torch.tanh_, lambda output, out: torch.square(output, out=out).neg_().add_(1))


def independent_scan(
    drive: Tensor, weight: Tensor, start: Tensor, activation: Elementwise
) -> Tensor:
    """Run h_t = phi(a_t + w * h_{t-1}) over time (Li et al., IndRNN, 2018, eq. 2).

    Every step is two in-place passes forward and three backward, so the cost per step is that of
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


def dense_scan(drive: Tensor, weight: Tensor, start: Tensor, activation: Elementwise) -> Tensor:
    """Run h_t = phi(a_t + h_{t-1} W) over time, the recurrence of a plain network.

    Args:
        drive: a, (time, batch, units).
        weight: W, (units, units).
        start: h_0, (batch, units).
        activation: phi.

    Returns:
        h_1 to h_T, (time, batch, units); differentiable once in the three tensors.
    """
    states: Tensor = _DenseScan.apply(  # type: ignore[no-untyped-call]
        drive, weight, start, activation
    )
    return states


def _run(
    ctx: Any,
    drive: Tensor,
    weight: Tensor,
    start: Tensor,
    activation: Elementwise,
    add_product: Callable[..., Tensor],
) -> Tensor:
    """Return all states, and keep what the way back needs."""
    states = torch.empty_like(drive)
    previous = start
    for driven, state in zip(drive.unbind(0), states.unbind(0), strict=True):
        add_product(driven, previous, weight, out=state)
        previous = activation.apply(state)
    ctx.save_for_backward(states, weight, start)
    ctx.activation = activation
    return states


class _IndependentScan(Function):
    @staticmethod
    def forward(
        ctx: Any, drive: Tensor, weight: Tensor, start: Tensor, activation: Elementwise
    ) -> Tensor:
        return _run(ctx, drive, weight, start, activation, torch.addcmul)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        states, weight, start = ctx.saved_tensors
        # The error of the pre-activation: e_t = (g_t + w * e_{t+1}) * phi'(a_t + w * h_{t-1}).
        # Each step stays in the cache: whole-sequence products would read the memory again.
        errors, slope = torch.empty_like(states), torch.empty_like(start)
        weight_sum, later = torch.zeros_like(start), torch.zeros_like(start)
        earlier = (start, *states[:-1].unbind(0))
        steps = zip(gradient.unbind(0), states.unbind(0), earlier, errors.unbind(0), strict=True)
        for given, state, before, error in reversed(list(steps)):
            ctx.activation.slope(state, slope)
            later = torch.addcmul(given, weight, later, out=error).mul_(slope)
            weight_sum.addcmul_(later, before)
        return errors, weight_sum.sum(0), weight * later, None


class _DenseScan(Function):
    @staticmethod
    def forward(
        ctx: Any, drive: Tensor, weight: Tensor, start: Tensor, activation: Elementwise
    ) -> Tensor:
        return _run(ctx, drive, weight, start, activation, torch.addmm)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        states, weight, start = ctx.saved_tensors
        # The error of the pre-activation: e_t = (g_t + e_{t+1} W') * phi'(a_t + h_{t-1} W).
        errors, slope = torch.empty_like(states), torch.empty_like(start)
        back, later = weight.T.contiguous(), torch.zeros_like(start)
        steps = zip(gradient.unbind(0), states.unbind(0), errors.unbind(0), strict=True)
        for given, state, error in reversed(list(steps)):
            ctx.activation.slope(state, slope)
            later = torch.addmm(given, later, back, out=error).mul_(slope)
        # All steps in one product, which a graph would make one by one.
        weight_sum = states[:-1].flatten(0, 1).T @ errors[1:].flatten(0, 1)
        return errors, weight_sum.addmm_(start.T, errors[0]), later @ back, None
