"""Gauss-Newton's model of a network by products alone: no matrix, and no limit on the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .krylov import Krylov
from .levenberg_marquardt import Damped, relative
from .objective import Forward, Product, Tensors, joined

_FLAT = 5e-4  # relative decrease of the model per product, below which more do not pay
_WINDOW = 10  # products over which it is measured


class CurvatureProducts:
    """<g, s> + <s, C s> / 2 with C = J' Hess R J + pull, J the Jacobian of the outputs.

    The forward pass is differentiated once and kept. u -> J'u is one pass back through it; as that
    pass is linear in u, going back through it in turn is v -> J v (Pearlmutter, Fast Exact
    Multiplication by the Hessian, 1994).
    """

    def __init__(
        self, forward: Forward, point: Tensor, flat: float = _FLAT, window: int = _WINDOW
    ) -> None:
        """Pass forward at a point, (parameters,) in float64; `flat` and `window` as in Krylov."""
        self._forward = forward
        self._weights = tuple(
            part.detach().clone().requires_grad_() for part in forward.split(point)
        )
        with torch.enable_grad(), _StepByStep():
            self._outputs = forward.at(self._weights)
        found = [outputs.detach() for outputs in self._outputs]
        self._seen = [torch.zeros_like(outputs, requires_grad=True) for outputs in found]
        self._pulled = self._backward(self._seen, create_graph=True)
        pairs = list(zip(forward.targets, found, strict=True))
        self._curved: list[Product] = [target.curved(outputs) for target, outputs in pairs]
        slopes = zip(*(target.slopes(outputs) for target, outputs in pairs), strict=True)
        left, answered = (joined(self._backward(part)) for part in slopes)
        pulled = forward.pulls * point
        self.gradient = left + pulled
        self._scale = max(float(term.abs().max()) for term in (answered, answered - left, pulled))
        self._space = Krylov(self.product, self.gradient, flat, window)

    @property
    def residual(self) -> float:
        """The largest entry of the gradient over the largest of its terms."""
        return relative(self.gradient, self._scale)

    @property
    def products(self) -> int:
        """How many products with C the steps have taken."""
        return self._space.size

    @cached_property
    def mean_curvature(self) -> float:
        """The mean of the diagonal of C, estimated as z'C z over signs z (Hutchinson, 1990)."""
        generator = torch.Generator().manual_seed(0)
        signs = torch.randint(0, 2, self.gradient.shape, generator=generator)
        signs = 2.0 * signs.to(self.gradient) - 1.0
        return float(signs @ self.product(signs)) / len(signs)

    def product(self, direction: Tensor) -> Tensor:
        """Return C v for a direction v, (parameters,)."""
        parts = self._forward.split(direction)
        ahead = torch.autograd.grad(self._pulled, self._seen, parts, retain_graph=True)
        bent = [curved(part) for curved, part in zip(self._curved, ahead, strict=True)]
        return joined(self._backward(bent)) + self._forward.pulls * direction

    def minimizer(self, damping: float) -> Damped:
        """Return a damped step by conjugate gradients, truncated where they no longer pay."""
        return self._space.minimizer(damping)

    def _backward(self, rows: Iterable[Tensor], create_graph: bool = False) -> Tensors:
        """Return J'u for u shaped as the outputs, shaped as the weights."""
        return torch.autograd.grad(
            self._outputs,
            self._weights,
            tuple(rows),
            retain_graph=True,
            create_graph=create_graph,
            materialize_grads=True,
        )


class _StepByStep(TorchFunctionMode):
    """Takes `torch.stack` apart again as a whole where it is differentiated twice.

    Its own backward pass selects one part after another, and going back through a selection fills
    a tensor of the whole size: over T steps, T^2.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
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
