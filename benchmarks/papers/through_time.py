"""Gradients through time: cut into segments, and judged by their norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from liftednet.errors import DataError
from liftednet.solvers.gradient import Closure, TemporalParts, check_gradients, part_norm

State = Any
"""A tensor, or a tuple or list of states; None stands for the start."""


class Stateful(Protocol):
    """A model that takes up where it stopped; torch's recurrent networks are such."""

    def __call__(self, x: Tensor, state: State = None) -> tuple[Tensor, State]:
        """Return outputs (batch, time, ...) and the state after the last step."""
        ...


SegmentLoss = Callable[[Tensor, int], Tensor]


def truncated_backward(model: Stateful, x: Tensor, segment: int, loss: SegmentLoss) -> Tensor:
    """Add up the gradients of a loss, none of which reaches back beyond its segment.

    Segments of the given length are run one after another; each starts from the state where the
    last one ended, cut from its graph, and is backpropagated at once, so that memory holds one
    segment. A segment as long as the sequence gives the ordinary gradient.

    Args:
        model: run as `outputs, state = model(x, state)`.
        x: (batch, time, features) inputs.
        segment: steps of a segment, positive; the last may be shorter.
        loss: called with the outputs (batch, steps, ...) of a segment and the number of its first
            step; returns the segment's share of the loss.

    Returns:
        The sum of the segments' losses; the gradients are added to those of the parameters.
    """
    total = torch.zeros((), dtype=x.dtype)
    state: State = None
    for number, part in enumerate(x.split(segment, dim=1)):
        outputs, state = model(part, detached(state))
        share = loss(outputs, number * segment)
        if share.requires_grad:  # a segment without targets adds nothing
            share.backward()
        total = total + share.detach()
    return total


def detached(state: State) -> State:
    """Return a state whose tensors are cut from their graph.

    Args:
        state: a tensor, a tuple or list of states, or None.
    """
    if isinstance(state, Tensor):
        return state.detach()
    if isinstance(state, (tuple, list)):
        return type(state)(detached(part) for part in state)
    return state


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
