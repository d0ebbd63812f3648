"""The weights of a recurrent network in parts, as exports and streams want them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from liftednet.activation import Activation
from liftednet.problems import Weights

from .arrays import as_tensor
from .recurrent_architecture import RecurrentArchitecture


@dataclass(frozen=True, eq=False)
class CellWeights:
    """One recurrent layer in one direction: H_t = phi(H_{t-1} W + X_t U_0 + b_0).

    Attributes:
        recurrent: W, (units, units).
        inputs: U_0, (features, units).
        bias: b_0, (units,).
        initial: the state before the first step, (units,).
        backward: whether it runs from the last step to the first.
    """

    recurrent: Tensor
    inputs: Tensor
    bias: Tensor
    initial: Tensor
    backward: bool


def cell_weights(
    architecture: RecurrentArchitecture, weights: Sequence[Weights]
) -> tuple[CellWeights, ...]:
    """Return the parts of every cell."""
    parts = []
    for cell, layer in zip(architecture.cells, weights, strict=False):
        assert layer.bias is not None  # every cell has one
        recurrent, rest = layer.matrix[: cell.units], layer.matrix[cell.units :]
        early = rest[cell.inputs :].sum(0) + layer.bias
        initial = architecture.divergence.activation.forward(early.unsqueeze(0))[0]
        if not architecture.learned_start:
            initial = initial.new_zeros(cell.units)
        parts.append(
            CellWeights(recurrent, rest[: cell.inputs], layer.bias, initial, cell.backward)
        )
    return tuple(parts)


def states_one_by_one(
    cells: Sequence[CellWeights], activation: Activation, steps: Iterable[Tensor]
) -> Iterator[Tensor]:
    """Yield the states of the last layer, (samples, units), as steps (samples, inputs) come in."""
    states: list[Tensor] = []
    for step in steps:
        below = as_tensor("a step", step).to(cells[0].inputs)
        states = states or [cell.initial.expand(len(below), -1) for cell in cells]
        for number, cell in enumerate(cells):
            drive = below @ cell.inputs + cell.bias
            below = activation.forward(torch.addmm(drive, states[number], cell.recurrent))
            states[number] = below
        yield below
