"""Gradients through time: cut into segments, judged by their norms, or kept from vanishing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from liftednet.errors import DataError
from liftednet.solvers.gradient.gradients import Closure, check_gradients
from liftednet.solvers.gradient.temporal import TemporalParts, part_norm

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

    Raises:
        DataError: a segment length that is not a positive integer.
    """
    if isinstance(segment, bool) or not isinstance(segment, int) or segment < 1:
        raise DataError(f"The segment length must be a positive integer; it is {segment!r}.")
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
