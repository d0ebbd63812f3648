"""Recurrences that torch lacks, called as torch's own: outputs, state = recurrence(x, state).

torch.nn.RNN, LSTM and GRU with `batch_first=True` are recurrences in the same sense.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from liftednet.errors import DataError

from .scan import RELU, TANH, Elementwise, dense_scan, independent_scan

State = Any


class CellRecurrence(nn.Module):
    """Applies any cell over time; the cell stays one module, called once a step.

    Args:
        cell: called as `state = cell(x, state)` with x (batch, features) and None for the first
            state, such as torch.nn.RNNCell, GRUCell and LSTMCell. A state that is a tuple shows
            its first part.
    """

    def __init__(self, cell: nn.Module) -> None:
        """Keep the cell."""
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor, state: State = None) -> tuple[Tensor, State]:
        """Return the states (batch, time, units) over time, and the last one as it is.

        Args:
            x: (batch, time, features).
            state: of the cell; None starts it.
        """
        shown = []
        for step in x.unbind(1):
            state = self.cell(step, state)
            shown.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(shown, 1), state


class PlainRNN(nn.RNN):
    """torch.nn.RNN of one layer, batch first, run by a scan: same weights, same states, less time.

    Args:
        input_size: features.
        hidden_size: units.
        nonlinearity: "tanh" or "relu".
    """

    def __init__(self, input_size: int, hidden_size: int, nonlinearity: str = "tanh") -> None:
        """Draw the weights as torch.nn.RNN does.

        Raises:
            DataError: an unknown nonlinearity.
        """
        self._activation = _elementwise(nonlinearity)
        super().__init__(input_size, hidden_size, 1, nonlinearity, batch_first=True)

    def forward(  # type: ignore[override]
        self, x: Tensor, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the states (batch, time, units) and the last one (1, batch, units).

        Args:
            x: (batch, time, features).
            state: (1, batch, units); None is zero.
        """
        bias = self.get_parameter("bias_ih_l0") + self.get_parameter("bias_hh_l0")
        drive = linear(x.transpose(0, 1), self.get_parameter("weight_ih_l0"), bias)
        return _scanned(drive, self.get_parameter("weight_hh_l0"), state, self._activation)


class BatchNormRNN(nn.Module):
    """A tanh or ReLU network whose input-to-hidden part is batch-normalized.

    h_t = phi(BN(W x_t) + U h_{t-1} + b) with statistics over batch and time (Laurent et al.,
    Batch Normalized Recurrent Neural Networks, 2015, eq. 9; b is BN's own shift).

    Args:
        input_size: features.
        hidden_size: units.
        nonlinearity: "tanh" or "relu".
    """

    def __init__(self, input_size: int, hidden_size: int, nonlinearity: str = "tanh") -> None:
        """Build the parts; U is drawn as torch.nn.RNN draws it.

        Raises:
            DataError: an unknown nonlinearity.
        """
        super().__init__()
        self.input = nn.Linear(input_size, hidden_size, bias=False)
        self.norm = nn.BatchNorm1d(hidden_size)
        self.recurrent = nn.Parameter(torch.empty(hidden_size, hidden_size))
        nn.init.uniform_(self.recurrent, -1 / math.sqrt(hidden_size), 1 / math.sqrt(hidden_size))
        self._activation = _elementwise(nonlinearity)

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the states (batch, time, units) and the last one (1, batch, units).

        Args:
            x: (batch, time, features).
            state: (1, batch, units); None is zero.
        """
        projected = self.input(x.transpose(0, 1))
        drive = self.norm(projected.flatten(0, 1)).unflatten(0, projected.shape[:2])
        return _scanned(drive, self.recurrent, state, self._activation)


class IndRNN(nn.Module):
    """Stacked layers of units that each recur on themselves alone.

    h_t = phi(W x_t + b + w * h_{t-1}) (Li et al., IndRNN, 2018, eq. 2), with batch normalization
    over batch and time between the layers. |w| is kept at most 2^(1/steps), so that no unit grows
    by more than a factor of 2 over a sequence; the last layer starts in
    [2^(-1/steps), 2^(1/steps)], the others in [0, 1] (the paper, section 3.2 and its code).

    Args:
        input_size: features.
        hidden_size: units of each layer.
        layers: number of layers.
        steps: length of the longest sequence, for the bound.
        nonlinearity: "relu" or "tanh".
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        layers: int,
        steps: int,
        nonlinearity: str = "relu",
    ) -> None:
        """Build the layers.

        Raises:
            DataError: an unknown nonlinearity, or no layers or steps.
        """
        super().__init__()
        if layers < 1 or steps < 1:
            raise DataError(f"IndRNN needs layers and steps of at least 1: {layers}, {steps}.")
        self.bound = 2.0 ** (1 / steps)
        sizes = [input_size] + [hidden_size] * layers
        self.inputs = nn.ModuleList(nn.Linear(a, hidden_size) for a in sizes[:-1])
        self.weights = nn.ParameterList(torch.rand(hidden_size) for _ in range(layers))
        nn.init.uniform_(self.weights[-1], 1 / self.bound, self.bound)
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden_size) for _ in range(layers - 1))
        self._activation = _elementwise(nonlinearity)

    def forward(self, x: Tensor, state: list[Tensor] | None = None) -> tuple[Tensor, list[Tensor]]:
        """Return the last layer's states (batch, time, units) and each layer's last state.

        Args:
            x: (batch, time, features).
            state: one (batch, units) for each layer; None is zero.
        """
        signal = x.transpose(0, 1).contiguous()
        last = []
        for layer, (into, weight) in enumerate(zip(self.inputs, self.weights, strict=True)):
            if layer > 0:
                signal = self.norms[layer - 1](signal.flatten(0, 1)).unflatten(0, signal.shape[:2])
            drive = into(signal)
            start = torch.zeros_like(drive[0]) if state is None else state[layer]
            signal = independent_scan(drive, weight, start, self._activation)
            last.append(signal[-1])
        return signal.transpose(0, 1), last

    @torch.no_grad()
    def constrain_(self) -> None:
        """Bring every recurrent weight back into its bound; call it after each step."""
        for weight in self.weights:
            weight.clamp_(-self.bound, self.bound)


def _scanned(
    drive: Tensor, weight: Tensor, state: Tensor | None, activation: Elementwise
) -> tuple[Tensor, Tensor]:
    """Return states, batch first, and the last one, of h_t = phi(a_t + U h_{t-1})."""
    start = torch.zeros_like(drive[0]) if state is None else state[0]
    states = dense_scan(drive, weight.T, start, activation)
    return states.transpose(0, 1), states[-1:]


def _elementwise(nonlinearity: str) -> Elementwise:
    known = {"relu": RELU, "tanh": TANH}
    if nonlinearity not in known:
        raise DataError(f'nonlinearity must be "relu" or "tanh"; it is {nonlinearity!r}.')
    return known[nonlinearity]
