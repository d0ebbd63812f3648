"""Training data and prediction rules of a recurrent network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from liftednet.losses import PinnedLoss
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import Design, WeightFit, Weights

from .arrays import ArrayLike
from .recurrent_architecture import RecurrentArchitecture
from .recurrent_blocks import RecurrentBlocks
from .recurrent_solvers import Solvers
from .sequence_arrays import Task, checked_sequences, checked_timeline, encoded_targets, picked

Lengths = ArrayLike | Sequence[int] | None


def training_task(
    architecture: RecurrentArchitecture,
    X: ArrayLike,
    y: ArrayLike,
    lengths: Lengths,
    dtype: torch.dtype,
    device: str,
) -> Task:
    """Return checked data for training.

    Raises:
        DataError: X, y or lengths cannot be used.
    """
    inputs = checked_sequences(X, architecture.inputs, dtype, device)
    inputs, timeline = checked_timeline(lengths, inputs, int(architecture.learned_start))
    target, per_step = encoded_targets(y, architecture.loss, architecture.outputs, timeline, inputs)
    return Task(inputs, timeline, target, per_step)


def passed_blocks(
    architecture: RecurrentArchitecture,
    X: ArrayLike,
    lengths: Lengths,
    weights: Sequence[Weights],
    solvers: Solvers,
    per_step: bool,
) -> RecurrentBlocks:
    """Return the blocks with fixed weights and free y, after a forward pass.

    Raises:
        DataError: X or lengths cannot be used.
    """
    like = weights[-1].matrix
    inputs = checked_sequences(X, architecture.inputs, like.dtype, str(like.device))
    inputs, timeline = checked_timeline(lengths, inputs, int(architecture.learned_start))
    task = Task(inputs, timeline, None, per_step)
    return RecurrentBlocks(architecture, task, weights, solvers)


def answers(blocks: RecurrentBlocks, per_step: bool) -> Tensor:
    """Return outputs (samples, steps, outputs), or (samples, outputs) at the last steps."""
    output, timeline = blocks.output(), blocks.timeline
    if per_step:
        return output.transpose(0, 1)
    return output[timeline.lengths - 1, torch.arange(output.shape[1], device=output.device)]


def decoded(loss: PinnedLoss, output: Tensor) -> Tensor:
    """Return labels or numbers from outputs (..., outputs)."""
    flat = loss.decode(output.flatten(0, -2))
    return flat.reshape(*output.shape[:-1], *flat.shape[1:])


def readout_fit(passed: RecurrentBlocks, task: Task, rho: float) -> WeightFit:
    """Return the fit of the output weights to the states of a forward pass."""
    assert task.target is not None  # a training task has one
    features = Design(picked(passed.features(), task.places))
    divergence = passed.architecture.loss.divergence
    targets = picked(task.target, task.places)
    return WeightFit(divergence, features, targets, SquaredFrobenius(rho))
