"""Where the states of a recurrent layer start: as they follow from one another, or at rest."""

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


def best_start(problem: StatesOverTime) -> Tensor:
    """Return the states of a forward pass, or of rest in the samples where those are better.

    A forward pass through weights that expand makes states of 1e9, beside which the rounding of
    one step hides what the links ask for.
    """
    forward, exact = forward_states(problem), problem.double()
    rest = problem.divergence.activation.project(torch.zeros_like(forward))
    rest = rest.where(problem.valid.unsqueeze(-1), 0.0)
    reached = exact.values(forward.double()).nan_to_num(torch.inf)
    return torch.where((exact.values(rest.double()) < reached)[:, None], rest, forward)
