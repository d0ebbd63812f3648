"""A recurrence and a linear readout: one answer per step, or one at the end."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from liftednet.data.checks import sequence_lengths

State = Any


class SequenceModel(nn.Module):
    """A recurrence followed by a linear layer.

    Args:
        recurrence: called as `states, state = recurrence(x, state)` with x
            (batch, time, features) and states (batch, time, units).
        hidden_size: units.
        output_size: outputs of the linear layer.
    """

    def __init__(self, recurrence: nn.Module, hidden_size: int, output_size: int) -> None:
        """Keep the recurrence and build the readout."""
        super().__init__()
        self.recurrence = recurrence
        self.readout = nn.Linear(hidden_size, output_size)

    def forward(self, x: Tensor, state: State = None) -> tuple[Tensor, State]:
        """Return the outputs of every step (batch, time, outputs), and the state.

        Args:
            x: (batch, time, features).
            state: of the recurrence; None starts it.
        """
        states, state = self.recurrence(x, state)
        return self.readout(states), state

    def at_end(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the outputs at the last real step of each sequence: (batch, outputs).

        Args:
            x: (batch, time, features).
            lengths: (batch,) steps of each sequence; None: all have every step.

        Raises:
            DataError: lengths beyond the data.
        """
        if lengths is not None:
            lengths = sequence_lengths(lengths, *x.shape[:2])
        states, _ = self.recurrence(x)
        if lengths is None:
            return self.readout(states[:, -1])  # type: ignore[no-any-return]
        rows = torch.arange(len(states), device=states.device)
        return self.readout(states[rows, lengths - 1])  # type: ignore[no-any-return]
