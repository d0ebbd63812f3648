"""Networks at their forward pass: where a descent begins, and where a network is judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from liftednet.errors import DeclarationError
from liftednet.losses import OutputLoss
from liftednet.problems import Design, OutputFit, Weights
from liftednet.solvers import Solver, solve

from .architecture import Architecture
from .feedforward import FeedforwardBlocks, forward_states
from .multipliers import MultiplierBlocks


def first_states(
    architecture: Architecture,
    weights: Sequence[Weights],
    inputs: Tensor,
    target: Tensor,
    solver: str | Solver[Any, Any, Any],
) -> list[Tensor]:
    """Return the states of the forward pass; those of the output minimize their own fit."""
    passed = forward_states(architecture, weights, inputs)
    if not architecture.has_output_states:
        return passed[:-1]
    below = weights[-1].apply(passed[-2] if len(passed) > 1 else inputs)
    divergence, lam, loss = architecture.divergences[-1], architecture.lam[-1], architecture.loss
    assert isinstance(loss, OutputLoss)  # seen to by design_network
    fit = OutputFit(loss, target, divergence, below, lam)
    return [*passed[:-1], solve(fit, solver).value]


def blocks_at(
    architecture: Architecture,
    weights: Sequence[Weights],
    inputs: Tensor,
    target: Tensor,
    solver: str | Solver[Any, Any, Any],
    state_passes: int = 1,
) -> FeedforwardBlocks:
    """Return the blocks of a network on data, with the states of its forward pass."""
    states = first_states(architecture, weights, inputs, target, solver)
    kind = MultiplierBlocks if architecture.multipliers else FeedforwardBlocks
    return kind(architecture, Design(inputs), target, weights, states, state_passes)


def mean_objective(
    architecture: Architecture,
    solver: str | Solver[Any, Any, Any],
    inputs: Tensor,
    target: Tensor,
    weights: Sequence[Weights],
) -> float:
    """Return the joint objective at the forward pass over the number of samples."""
    return blocks_at(architecture, weights, inputs, target, solver).objective() / len(inputs)


def refuse_output_states(architecture: Architecture) -> None:
    """Raise `DeclarationError` where the last layer has states, and no fit to the data."""
    if architecture.has_output_states:
        raise DeclarationError(
            "refit_output needs a loss on the last pre-activation, such as CrossEntropy; "
            f"{type(architecture.loss).__name__} has output states here."
        )


def refitted_output(
    blocks: FeedforwardBlocks, solver: str | Solver[Any, Any, Any]
) -> FeedforwardBlocks:
    """Return blocks at the forward pass, the last layer fitted to its features.

    Raises:
        SolverError: the fit failed.
    """
    fresh = blocks_at(blocks.architecture, blocks.weights, blocks.inputs, blocks.target, solver)
    last = fresh.sweep()[-1]
    last.assign(solve(last.problem(), solver, last.value()).value)
    return fresh
