"""A recurrent network and its derivatives, by compiled loops over the time of a few samples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from liftednet.layers.time import delayed, steps_before
from liftednet.products import threads

from ..gauss_newton.objective import Forward, Tensors, recurrence
from .loops import LoopMap, Loops, array, at_hand, loop_map, refusal, worth_compiling

_LOOPS = Loops(tuple(f"recurrent_rows.{x}" for x in ("passed", "ahead", "back")), "")
_PASSES = 64  # over all samples, which a training takes at least, and a state fit one of
Rows = np.ndarray[Any, np.dtype[np.float64]]


class RecurrentRows:
    """One recurrent layer and its readout over the inputs of all samples.

    Samples stand last, zeros behind them to a whole number of registers: a block.
    """

    @staticmethod
    def serves(forward: Forward) -> bool:
        """Say whether a network is on a CPU, with Numba, and its loops wait."""
        if forward.recurrent is None:
            return False
        units = forward.pull[0].shape[1]
        if refusal(forward.pull[0]) is not None:
            return False
        return worth_compiling(_PASSES, *forward.data[0].shape[:2], units) or at_hand(_LOOPS)

    def __init__(self, forward: Forward) -> None:
        """Lay out the inputs of a network that they serve."""
        from .lanes import WIDE

        assert forward.recurrent is not None  # it serves
        self._phi, self._map = forward.recurrent.forward, loop_map(forward.recurrent)
        self._inputs, self._lengths = forward.data[0].transpose(0, 1), forward.data[1]
        every = torch.arange(len(self._lengths))
        self._last = (self._lengths - 1, every) if forward.last else None
        self.samples = len(self._lengths)
        self._more, self._wide = -self.samples % WIDE, WIDE
        self.inputs = self._blocks(self._inputs)

    def laid(self, outputs: Tensor) -> Rows:
        """Return (samples, rows, outputs) as (outputs, steps, samples and zeros)."""
        if self._last is None:
            return array(self._filled(outputs.permute(2, 1, 0)))
        laid = outputs.new_zeros(outputs.shape[2], len(self._inputs), self.samples + self._more)
        laid[:, *self._last] = outputs[:, 0].T
        return laid.numpy()

    def _filled(self, rows: Tensor) -> Tensor:
        """Return rows (..., samples) with zeros behind them."""
        return torch.nn.functional.pad(rows, (0, self._more))

    def _blocks(self, rows: Tensor) -> Rows:
        """Return (steps, samples, entries) as (blocks, steps, entries, samples of a block)."""
        filled = self._filled(rows.transpose(1, 2))
        blocks = filled.view(*filled.shape[:2], filled.shape[2] // self._wide, self._wide)
        return array(blocks.permute(2, 0, 1, 3))

    def shown(self, outputs: Rows) -> Tensor:
        """Return outputs (outputs, steps, samples and zeros) as (samples, rows, outputs)."""
        return self._rows(torch.from_numpy(outputs)[..., : self.samples].permute(1, 2, 0))

    def _rows(self, outputs: Tensor) -> Tensor:
        """Return (steps, samples, outputs) as (samples, rows, outputs)."""
        if self._last is None:
            return outputs.transpose(0, 1)
        return outputs[self._last].unsqueeze(1)

    def outputs(self, weights: Tensors) -> Tensor:
        """Return the outputs at weights, (samples, rows, outputs)."""
        if self._map is None:
            return self._by_torch(weights)[0]
        return self._by_loops(self._map, weights, 0)[0]

    def states(self, weights: Tensors) -> tuple[Tensor, Rows, Rows]:
        """Return them, h and phi' of its pre-activations, (blocks, steps, units, samples) each."""
        if self._map is not None:
            return self._by_loops(self._map, weights, len(self.inputs))
        cell, units = weights[0], weights[0].shape[1]
        outputs, drive, states, valid = self._by_torch(weights)
        with torch.enable_grad():
            u = (drive + delayed(states) @ cell[:units]).requires_grad_()
            (slopes,) = torch.autograd.grad(self._phi(u).sum(), u)
        return outputs, self._blocks(states), self._blocks(slopes.where(valid, 0.0))

    def _by_loops(self, one: LoopMap, weights: Tensors, kept: int) -> tuple[Tensor, Rows, Rows]:
        """Return outputs, and states and slopes of so many blocks, which are all or none."""
        from .recurrent_rows import passed

        blocks, steps, _, wide = self.inputs.shape
        cell, readout = map(array, weights)
        states, slopes = np.empty((2, kept, steps, cell.shape[1], wide))
        outputs = np.empty((readout.shape[1], steps, blocks * wide))
        lengths = self._filled(self._lengths).numpy()
        passed(self.inputs, lengths, one, cell, readout, states, slopes, outputs)
        return self.shown(outputs), states, slopes

    def _by_torch(self, weights: Tensors) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return outputs, drives, states, and which steps there are."""
        cell, readout = weights
        units = cell.shape[1]
        drive = self._inputs @ cell[units:-1] + cell[-1]
        valid = steps_before(len(drive), self._lengths).unsqueeze(-1)
        states = recurrence(drive, cell[:units], self._phi).where(valid, 0.0)
        return self._rows(states @ readout[:-1] + readout[-1]), drive, states, valid


class CompiledRecurrence:
    """`Linearized` of one recurrent layer and its readout: products with J and with J'.

    The rows of all samples are read once a product, where a graph of torch reads and writes them
    once for each of its operations.

    Attributes:
        outputs: at the weights, (samples, rows, outputs).
    """

    def __init__(self, forward: Forward, point: Tensor) -> None:
        """Pass forward at a point, (parameters,) in float64, of a network that has rows."""
        assert forward.rows is not None
        self._all, self._pull = forward.rows, forward.pull
        cell, readout = weights = forward.split(point)
        outputs, states, slopes = self._all.states(weights)
        self.outputs = (outputs,)
        self._rows = states, self._all.inputs, slopes
        self._matrices = array(cell[: cell.shape[1]]), array(readout[:-1])

    def ahead(self, directions: Tensors) -> Tensors:
        """Return J v for v shaped as the weights, shaped as the outputs."""
        from .recurrent_rows import ahead

        blocks, steps, _, wide = self._rows[0].shape
        moved = np.empty((self._matrices[1].shape[1], steps, blocks * wide))
        ahead(*self._rows, *self._matrices, *map(array, directions), moved)
        return (self._all.shown(moved),)

    def back(self, rows: Iterable[Tensor]) -> Tensors:
        """Return J'u for u shaped as the outputs, shaped as the weights."""
        from .recurrent_rows import back

        (pushes,) = rows
        asked = tuple(torch.empty_like(part) for part in self._pull)
        states = self._rows[0]
        with threads(float(states.size) * states.shape[2]):
            back(*self._rows, *self._matrices, self._all.laid(pushes), *map(array, asked))
        return asked
