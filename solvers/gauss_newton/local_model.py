"""An objective near a point, with the network linearized: what every form of a step needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from liftednet import processes
from liftednet.maps import pulled_back

from ..compiled.recurrent import CompiledRecurrence
from .objective import Forward, LinearRecurrence, Product, Tensors, joined, recurrence


class Linear(Protocol):
    """J, the derivatives of all outputs in all weights, as two maps."""

    @property
    def outputs(self) -> Tensors:
        """The outputs at the weights, each (samples, rows, outputs)."""

    def ahead(self, directions: Tensors) -> Tensors:
        """Return J v for v shaped as the weights, shaped as the outputs."""

    def back(self, rows: Iterable[Tensor]) -> Tensors:
        """Return J'u for u shaped as the outputs, shaped as the weights."""


class Linearized:
    """J, the derivatives of all outputs in all weights, as two maps.

    The forward pass is differentiated once and kept. u -> J'u is one pass back through it; as that
    pass is linear in u, going back through it in turn is v -> J v, for who asks for it.

    Attributes:
        outputs: at the weights, each (samples, rows, outputs).
    """

    def __init__(self, forward: Forward, point: Tensor) -> None:
        """Pass forward at a point, (parameters,) in float64."""
        self._weights = tuple(part.clone().requires_grad_() for part in forward.split(point))
        with torch.enable_grad(), _StepsTogether():
            self._outputs = forward.at(self._weights)
        self.outputs = tuple(part.detach() for part in self._outputs)

    @cached_property
    def _pulled(self) -> tuple[list[Tensor], list[bool], Tensors]:
        """0 for u, which weights have an effect, and J'u of these."""
        seen = [torch.zeros_like(part, requires_grad=True) for part in self.outputs]
        pulled = self._backward(seen, create_graph=True)
        reached = [part.requires_grad for part in pulled]
        return seen, reached, tuple(compress(pulled, reached))

    def ahead(self, directions: Tensors) -> Tensors:
        """Return J v for v shaped as the weights, shaped as the outputs."""
        seen, reached, pulled = self._pulled
        return pulled_back(pulled, seen, tuple(compress(directions, reached)), retain_graph=True)

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


@dataclass(frozen=True, eq=False)
class Curvature:
    """C = J' Hess R J + pull as a map, J the Jacobian of the outputs.

    Attributes:
        forward: the objective.
        linear: J, at a point.
        curved: products with the Hessian of every loss there.
    """

    forward: Forward
    linear: Linear
    curved: Sequence[Product]

    def product(self, direction: Tensor) -> Tensor:
        """Return C v for a direction v, (parameters,)."""
        ahead = self.linear.ahead(self.forward.split(direction))
        return self.back(ahead) + self.forward.pulls * direction

    def back(self, outputs: Tensors) -> Tensor:
        """Return J' Hess R d for a change d of the outputs, (parameters,)."""
        bent = [curved(part) for curved, part in zip(self.curved, outputs, strict=True)]
        return processes.total(joined(self.linear.back(bent)))[0]


@dataclass(frozen=True, eq=False)
class Damped:
    """A minimizer of a damped model.

    Attributes:
        step: s, (parameters,).
        expected: by how much it lowers the model without its damping.
        solve: b -> (C + damping)^-1 b as well as the step was solved for, (parameters,).
    """

    step: Tensor
    expected: float
    solve: Callable[[Tensor], Tensor]


class LocalModel(ABC):
    """<g, s> + <s, C s> / 2, what an objective is near a point.

    Attributes:
        point: all weights, (parameters,), float64.
        gradient: g, (parameters,), float64.
        operator: C as a map.
        free: 0 for weights that rest on an end and are pushed against it, which no step moves, 1
            for others, (parameters,), float64; None where all are free.
        corrections: of a step, that take less time than the next model.
    """

    corrections: int

    def __init__(self, forward: Forward, point: Tensor) -> None:
        """Pass forward at a point, (parameters,) in float64."""
        linear = self.linearized(forward, point)
        pairs = list(zip(forward.targets, linear.outputs, strict=True))
        slopes = zip(*(target.slopes(outputs) for target, outputs in pairs), strict=True)
        left, answered = processes.total(*(joined(linear.back(part)) for part in slopes))
        curved = [target.curved(outputs) for target, outputs in pairs]
        pulled = forward.pulls * point
        self.point, self.gradient = point, left + pulled
        self.operator = Curvature(forward, linear, curved)
        self._scale = max(float(term.abs().max()) for term in (answered, answered - left, pulled))
        held = forward.held(point, self.gradient)
        self.free = None if held is None else 1.0 - held.double()

    def linearized(self, forward: Forward, point: Tensor) -> Linear:
        """Return J at the point."""
        kind = Linearized if forward.rows is None else CompiledRecurrence
        return kind(forward, point)

    @property
    def residual(self) -> float:
        """The largest entry of the gradient in what is free over the largest of its terms."""
        smallest = torch.finfo(torch.float64).tiny
        return float(self.released(self.gradient).abs().max()) / max(self._scale, smallest)

    def released(self, direction: Tensor) -> Tensor:
        """Return a direction with 0 for what is held, (parameters,)."""
        return direction if self.free is None else direction.where(self.free > 0, 0.0)

    def inside(self, step: Tensor) -> Tensor:
        """Return the step from the point to the nearest one between the ends, (parameters,)."""
        ends = self.operator.forward.ends
        if ends is None:
            return step
        return step.clamp(ends[0] - self.point, ends[1] - self.point)

    @property
    @abstractmethod
    def mean_curvature(self) -> float:
        """The mean of the diagonal of C, or an estimate of it."""

    @abstractmethod
    def minimizer(self, damping: float) -> Damped:
        """Return a minimizer of the model + damping |s|^2 / 2, or a good step towards it."""

    @torch.no_grad()
    def bend(self, step: Tensor) -> Tensor:
        """Return J' Hess R (u(w + s) - u(w) - J s) for a step s, both (parameters,).

        To first order in what the linearized outputs are wrong by, it is what the gradient after
        the step has beside the model's.
        """
        forward, linear = self.operator.forward, self.operator.linear
        reached = forward.passed(self.point + step)
        parts = zip(reached, linear.outputs, linear.ahead(forward.split(step)), strict=True)
        return self.operator.back(tuple(after - before - moved for after, before, moved in parts))
