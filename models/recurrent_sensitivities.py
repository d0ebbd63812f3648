"""How a forward pass over time moves with the weights of a recurrent network."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from liftednet.problems.states_over_time import TimeLink
from liftednet.solvers.levenberg_marquardt import Quadratic
from liftednet.solvers.newton_over_time import hessian

from .recurrent_blocks import RecurrentBlocks
from .sequence_arrays import picked

_CHUNK_BYTES = 2**27  # of sensitivities at a time
_ROWS = 1_000  # of the Jacobian at a time


def joint_quadratic(blocks: RecurrentBlocks) -> Quadratic:
    """Return the model of the joint objective in all weights, the states eliminated.

    At a forward pass a tight D(H_t, U_t) and its gradient are zero, and it is minimal for
    dH_t = phi'(U_t) (dH_{t-1} W + [H_{t-1}, X_t, 1] d[W; U_0; b_0]): the states follow the
    weights. What is left is the loss, convex in the outputs, of outputs that are linearized.

    Args:
        blocks: float64, with the states of a forward pass.

    Returns:
        The model in the weights of every layer after another, [W; U_0; b_0] row by row.
    """
    samples = torch.arange(len(blocks.timeline.known))
    parameters = sum(layer.stacked().numel() for layer in blocks.weights)
    gradient = blocks.weights[0].matrix.new_zeros(2, parameters)
    curvature = gradient.new_zeros(parameters, parameters)
    for part in samples.split(_chunk(blocks, parameters)):
        sloped, curved = _loss_quadratic(blocks.take(part))
        gradient += torch.stack([sloped[:, 0], -sloped[:, 1]])
        curvature += curved
    weights = torch.cat([layer.stacked().flatten() for layer in blocks.weights])
    pull = 2 * _decay(blocks)
    curvature.diagonal().add_(pull)
    terms = torch.cat([gradient, (pull * weights)[None]])
    return Quadratic(terms.sum(0), curvature, float(terms.abs().max()))


def _decay(blocks: RecurrentBlocks) -> Tensor:
    """Return rho of every weight, (parameters,), 0 for biases."""
    parts = []
    for number, layer in enumerate(blocks.weights):
        decay = torch.full_like(layer.stacked(), blocks.penalty(number).rho)
        decay[-1] = 0.0
        parts.append(decay.flatten())
    return torch.cat(parts)


def _chunk(blocks: RecurrentBlocks, parameters: int) -> int:
    """Return how many samples go through at a time."""
    widest = max(blocks.architecture.outputs, sum(c.units for c in blocks.architecture.cells))
    steps = blocks.timeline.steps + blocks.timeline.early
    return max(1, _CHUNK_BYTES // (8 * parameters * widest * steps))


def _loss_quadratic(blocks: RecurrentBlocks) -> tuple[Tensor, Tensor]:
    """Return [J' grad R(u), J' y] and J' Hess R(u) J of the outputs u with Jacobian J."""
    readout, task = blocks.weights[-1], blocks.task
    assert task.target is not None and readout.bias is not None
    features, divergence = blocks.features(), blocks.architecture.loss.divergence
    link = TimeLink(divergence, readout.matrix, readout.bias, task.target, task.counted)
    answered = divergence.link_gradient(link.pre_activation(features))
    parts = (
        output_sensitivities(blocks),
        _with_ones(features),
        torch.stack([answered, task.target], -1),
        hessian(link, features),
    )
    slices = zip(*(picked(part, task.places).split(_ROWS) for part in parts), strict=True)
    contributions = (_contributions(*rows) for rows in slices)
    gradient, curvature = next(contributions)
    for sloped, curved in contributions:
        gradient += sloped
        curvature += curved
    return gradient, curvature


def _contributions(
    below: Tensor, rows: Tensor, slopes: Tensor, bend: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the part of some steps in J' slopes and J' bend J.

    Args:
        below: derivatives in the weights of the cells, (n, parameters, outputs).
        rows: [H_t, 1], (n, states + 1), whose outer product with the outputs is the rest of J.
        slopes: (n, outputs, 2).
        bend: (n, outputs, outputs).
    """
    flat = below.transpose(0, 1).flatten(1)
    gradient = torch.cat([flat @ slopes.flatten(0, 1), _crossed(rows, slopes).flatten(0, 1)])
    curved = below @ bend
    first = curved.transpose(0, 1).flatten(1) @ flat.T
    mixed = _crossed(rows, curved).permute(1, 0, 2).flatten(1)
    squares = (rows[:, :, None] * rows[:, None]).flatten(1)
    last = _crossed(squares, bend).unflatten(0, (rows.shape[1], -1)).permute(0, 2, 1, 3)
    last = last.flatten(2).flatten(0, 1)
    return gradient, torch.cat([torch.cat([first, mixed], 1), torch.cat([mixed.T, last], 1)])


def _crossed(rows: Tensor, others: Tensor) -> Tensor:
    """Return sum_n rows[n, i] others[n, j, k], (i, j, k)."""
    crossed: Tensor = (rows.T @ others.flatten(1)).unflatten(1, others.shape[1:])
    return crossed


def output_sensitivities(blocks: RecurrentBlocks) -> Tensor:
    """Return the derivatives of H U_1 in the weights of the cells.

    Returns:
        (steps, samples, parameters of all cells, outputs).
    """
    found: list[Tensor] = []
    outputs: Tensor | float = 0.0
    architecture, readout = blocks.architecture, blocks.weights[-1].matrix
    for number, cell in enumerate(architecture.cells):
        below = [found[n] for n in architecture.below(cell)]
        moved = _cell_sensitivities(blocks, number, torch.cat(below, -1) if below else None)
        if number in architecture.top:
            seen = readout[architecture.columns(cell)]
            own = torch.stack([state @ seen for state in moved])
            outputs = outputs + blocks.timeline.natural(own, cell.backward)
        else:
            found.append(blocks.timeline.natural(torch.stack(list(moved)), cell.backward))
    assert isinstance(outputs, Tensor)  # there is a last layer
    return outputs


def _cell_sensitivities(
    blocks: RecurrentBlocks, number: int, below: Tensor | None
) -> Iterator[Tensor]:
    """Yield the derivatives of a cell's states, step by step in its own order of time."""
    cell, matrix = blocks.architecture.cells[number], blocks.weights[number].matrix
    rows, slope = _with_ones(blocks.rows(number)), blocks.slopes(number)
    sizes = [layer.stacked().numel() for layer in blocks.weights[:-1]]
    first = sum(sizes[:number])
    state = rows.new_zeros(rows.shape[1], sum(sizes), cell.units)
    drive = None
    if below is not None:
        inputs = matrix[cell.units : cell.units + cell.inputs]
        drive = blocks.timeline.own(below, cell.backward) @ inputs
    for step, row in enumerate(rows):
        state = state @ matrix[: cell.units]
        if drive is not None:
            state += drive[step]
        direct = state[:, first : first + sizes[number]].unflatten(1, (-1, cell.units))
        direct.diagonal(dim1=2, dim2=3).add_(row[:, :, None])
        state *= slope[step][:, None]
        yield state


def _with_ones(rows: Tensor) -> Tensor:
    return torch.cat([rows, torch.ones_like(rows[..., :1])], -1)
