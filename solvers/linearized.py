"""A network near its weights: products with the Jacobian of its outputs and with its transpose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import compress
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from liftednet.gradients import pulled_back

from .objective import Forward, Tensors
from .recurrence import LinearRecurrence, recurrence


class Linearized:
    """J, the derivatives of all outputs in all weights, as two maps.

    The forward pass is differentiated once and kept. u -> J'u is one pass back through it; as that
    pass is linear in u, going back through it in turn is v -> J v.

    Attributes:
        outputs: at the weights, each (samples, rows, outputs).
    """

    def __init__(self, forward: Forward, point: Tensor) -> None:
        """Pass forward at a point, (parameters,) in float64."""
        self._weights = tuple(part.clone().requires_grad_() for part in forward.split(point))
        with torch.enable_grad(), _StepsTogether():
            self._outputs = forward.at(self._weights)
        self.outputs = tuple(part.detach() for part in self._outputs)
        self._seen = [torch.zeros_like(part, requires_grad=True) for part in self.outputs]
        pulled = self._backward(self._seen, create_graph=True)
        self._reached = [part.requires_grad for part in pulled]  # not a weight without effect
        self._pulled = tuple(compress(pulled, self._reached))

    def ahead(self, directions: Tensors) -> Tensors:
        """Return J v for v shaped as the weights, shaped as the outputs."""
        parts = tuple(compress(directions, self._reached))
        return pulled_back(self._pulled, self._seen, parts, retain_graph=True)

    def back(self, rows: Iterable[Tensor]) -> Tensors:
        """Return J'u for u shaped as the outputs, shaped as the weights."""
        return self._backward(rows, create_graph=False)

    def _backward(self, rows: Iterable[Tensor], create_graph: bool) -> Tensors:
        return pulled_back(
            self._outputs,
            self._weights,
            tuple(rows),
            retain_graph=True,
            create_graph=create_graph,
            materialize_grads=True,
        )


class _StepsTogether(TorchFunctionMode):
    """Differentiates what is made of many steps by an operation of its own.

    A recurrence would else be a graph of every step. The backward pass of `torch.stack` selects one
    step after another, and going back through a selection fills a tensor of the whole shape: over
    T steps, T^2.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func is recurrence:
            return LinearRecurrence.apply(*args)  # type: ignore[no-untyped-call]
        if func is not torch.stack or "out" in named:
            return func(*args, **named)
        tensors = args[0] if args else named["tensors"]
        axis = args[1] if len(args) > 1 else named.get("dim", 0)
        return _Stack.apply(axis, *tensors)  # type: ignore[no-untyped-call]


class _Stack(torch.autograd.Function):
    """torch.stack, with a backward pass that is one unbind."""

    @staticmethod
    def forward(ctx: Any, axis: int, *tensors: Tensor) -> Tensor:
        """Return the stacked tensors."""
        ctx.axis = axis
        return torch.stack(tensors, axis)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the parts of a gradient."""
        return None, *gradient.unbind(ctx.axis)
