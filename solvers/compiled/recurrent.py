"""A recurrent network near its weights, by compiled loops over the time of a few samples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from liftednet.compiled import refusal
from liftednet.layers.time import delayed, steps_before

from ..objective import Forward, Tensors
from ..recurrence import recurrence

_MOST = 48  # units, whose sums over samples a cache still holds
Rows = np.ndarray[Any, np.dtype[np.float64]]


class CompiledRecurrence:
    """`Linearized` of one recurrent layer and its readout: products with J and with J'.

    The rows of all samples are read once a product, where a graph of torch reads and writes them
    once for each of its operations.

    Attributes:
        outputs: at the weights, (samples, steps, outputs).
    """

    @staticmethod
    def serves(forward: Forward) -> bool:
        """Say whether a network is one of few units, on a CPU, with Numba."""
        if forward.recurrent is None:
            return False
        return forward.pull[0].shape[1] <= _MOST and refusal(forward.pull[0]) is None

    def __init__(self, forward: Forward, point: Tensor) -> None:
        """Pass forward at a point, (parameters,) in float64."""
        from liftednet.compiled.vectors import WIDE

        assert forward.recurrent is not None  # it serves
        self._forward = forward
        cell, readout = forward.split(point)
        units, activate = cell.shape[1], forward.recurrent.forward
        inputs, lengths = forward.data[0].transpose(0, 1), forward.data[1]
        drive = inputs @ cell[units:-1] + cell[-1]
        valid = steps_before(len(inputs), lengths).unsqueeze(-1)
        states = recurrence(drive, cell[:units], activate).where(valid, 0.0)
        with torch.enable_grad():
            u = (drive + delayed(states) @ cell[:units]).requires_grad_()
            (slopes,) = torch.autograd.grad(activate(u).sum(), u)
        self.outputs = ((states @ readout[:-1] + readout[-1]).transpose(0, 1),)
        self._more = -len(lengths) % WIDE
        self._rows = tuple(map(self._laid, (states, inputs, slopes.where(valid, 0.0))))
        self._matrices = cell[:units].contiguous().numpy(), readout[:-1].contiguous().numpy()

    def ahead(self, directions: Tensors) -> Tensors:
        """Return J v for v shaped as the weights, shaped as the outputs."""
        from .recurrent_rows import ahead

        steps, _, samples = self._rows[0].shape
        moved = np.empty((steps, self._matrices[1].shape[1], samples))
        ahead(*self._rows, *self._matrices, *map(_numbers, directions), moved)
        return (torch.from_numpy(moved)[..., : samples - self._more].permute(2, 0, 1),)

    def back(self, rows: Iterable[Tensor]) -> Tensors:
        """Return J'u for u shaped as the outputs, shaped as the weights."""
        from .recurrent_rows import back

        (pushes,) = rows
        asked = tuple(torch.empty_like(part) for part in self._forward.pull)
        pushed = self._laid(pushes.transpose(0, 1))
        back(*self._rows, *self._matrices, pushed, *map(_numbers, asked))
        return asked

    def _laid(self, rows: Tensor) -> Rows:
        """Return rows (steps, samples, entries) with the samples last, zeros behind them."""
        return _numbers(torch.nn.functional.pad(rows.transpose(1, 2), (0, self._more)))


def _numbers(rows: Tensor) -> Rows:
    found: Rows = rows.detach().contiguous().numpy()
    return found
