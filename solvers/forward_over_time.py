"""The states of a recurrent layer as they follow from one another."""

from __future__ import annotations

import torch
from torch import Tensor

from liftednet.problems.states_over_time import StatesOverTime


def forward_states(problem: StatesOverTime) -> Tensor:
    """Return the states of a forward pass, (steps, samples, units), 0 beyond the lengths."""
    states = torch.zeros_like(problem.drive)
    previous = torch.zeros_like(states[0])
    for step, drive in enumerate(problem.drive):
        driven = torch.addmm(drive, previous, problem.recurrent)
        previous = problem.divergence.activation.forward(driven)
        states[step] = previous
    return states.where(problem.valid.unsqueeze(-1), 0.0)
