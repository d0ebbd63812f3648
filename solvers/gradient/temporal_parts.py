"""The gradient of a recurrent cell, split into its parts per time step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from liftednet.errors import DataError

from .gradients import Closure, check_gradients

Consumer = Callable[[int, list[Tensor]], None]


class TemporalParts:
    """Watches a cell while a model applies it over time, and hands over each part as it comes.

    The part of step k is the gradient with respect to a copy of the parameters that only step k
    uses (On Recurrent Neural Networks, eq. 3.1); the parts sum to the gradient (eq. 3.2). Inside
    the `with` block every call of the cell is one step and runs on aliases of its parameters,
    which share their storage. Backward then delivers the steps from the last to the first, and a
    delivered part is forgotten: memory does not grow with the number of steps.

        with TemporalParts(cell, consume):
            loss(model(x), y).backward()

    The parameters of the cell get no gradient in this way; all others get theirs.

    Args:
        cell: any module, called once a step by whatever model contains it.
        consume: called with the step, from 0, and the part: one tensor for every parameter of
            the cell that needs a gradient, in the order of `cell.parameters()`.

    Raises:
        DataError: the cell has no parameter that needs a gradient.
    """

    def __init__(self, cell: nn.Module, consume: Consumer) -> None:
        """Remember the places of the cell's parameters."""
        self.steps = 0
        self._cell = cell
        self._consume = consume
        self._places = _places(cell)
        if not self._places:
            raise DataError(f"{type(cell).__name__} has no parameter that needs a gradient.")
        self._pending: dict[int, dict[int, Tensor]] = {}
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        """Begin to watch."""
        self._handles = [
            self._cell.register_forward_pre_hook(self._alias),
            self._cell.register_forward_hook(self._restore, always_call=True),
        ]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop watching; deliver steps that did not use all parameters."""
        for handle in self._handles:
            handle.remove()
        if error is None:
            for step in sorted(self._pending, reverse=True):
                self._deliver(step)
        self._pending.clear()

    def _alias(self, cell: nn.Module, inputs: object) -> None:
        for index, (owner, name, parameter) in enumerate(self._places):
            alias = parameter.detach().requires_grad_()
            alias.register_post_accumulate_grad_hook(partial(self._arrive, self.steps, index))
            # functional_call swaps parameters in this way too; the property setter would refuse.
            owner._parameters[name] = alias  # type: ignore[assignment]
        self.steps += 1

    def _restore(self, cell: nn.Module, inputs: object, output: object) -> None:
        for owner, name, parameter in self._places:
            owner._parameters[name] = parameter

    def _arrive(self, step: int, index: int, alias: Tensor) -> None:
        assert alias.grad is not None
        self._pending.setdefault(step, {})[index] = alias.grad
        alias.grad = None
        if len(self._pending[step]) == len(self._places):
            self._deliver(step)

    def _deliver(self, step: int) -> None:
        arrived = self._pending.pop(step)
        self._consume(
            step,
            [
                arrived[index] if index in arrived else torch.zeros_like(parameter)
                for index, (_, _, parameter) in enumerate(self._places)
            ],
        )


def _places(cell: nn.Module) -> list[tuple[nn.Module, str, nn.Parameter]]:
    """Return owner, name and value of each parameter that needs a gradient, each value once."""
    found: dict[int, tuple[nn.Module, str, nn.Parameter]] = {}
    for owner in cell.modules():
        for name, parameter in owner.named_parameters(recurse=False):
            if parameter.requires_grad:
                found.setdefault(id(parameter), (owner, name, parameter))
    return list(found.values())


def part_norm(part: list[Tensor]) -> Tensor:
    """Return the Euclidean norm of all entries of a part together."""
    norms = torch.stack([torch.linalg.vector_norm(t) for t in part])
    return norms.square().sum().sqrt()


def temporal_norms(cell: nn.Module, closure: Closure) -> Tensor:
    """Return the norm of each temporal part of the gradient (section 3.2, figure 3.1).

    Args:
        cell: the module that is applied once a step.
        closure: computes the loss of a model that contains the cell on one batch, calls
            backward, and returns the loss.

    Returns:
        (steps,) norms over all parameters of the cell, first step first.

    Raises:
        DataError: a cell without parameters, or one that the closure never calls.
        SolverError: gradients that are NaN or infinite.
    """
    norms: dict[int, Tensor] = {}

    def consume(step: int, part: list[Tensor]) -> None:
        check_gradients(part)
        norms[step] = part_norm(part)

    with TemporalParts(cell, consume) as parts:
        closure()
    if parts.steps == 0:
        raise DataError(f"The closure never called the cell {type(cell).__name__}.")
    # A step whose output reaches no loss has no part.
    return torch.stack([norms.get(step, torch.zeros(())) for step in range(parts.steps)])
