"""Truncated backpropagation against autograd by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from benchmarks.papers.networks import CellRecurrence, SequenceModel
from benchmarks.papers.through_time import truncated_backward


def gradient(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("segment", [1, 4, 9])
def test_gradient_stops_at_the_segment_and_the_state_does_not(segment: int) -> None:
    """By hand: the same loss on a graph whose state is detached every `segment` steps."""
    torch.manual_seed(1)
    cell = nn.RNNCell(2, 4)
    model = SequenceModel(CellRecurrence(cell), 4, 1)
    x, y = torch.randn(3, 9, 2), torch.randn(3, 9, 1)

    def loss(outputs: Tensor, first: int) -> Tensor:
        return ((outputs - y[:, first : first + outputs.shape[1]]) ** 2).sum()

    truncated_backward(model, x, segment, loss)
    found = gradient(model)
    model.zero_grad()
    state, total = torch.zeros(3, 4), torch.zeros(())
    for t in range(9):
        state = cell(x[:, t], state.detach() if t % segment == 0 else state)
        total = total + ((model.readout(state) - y[:, t]) ** 2).sum()
    total.backward()
    assert torch.allclose(found, gradient(model), atol=1e-5)
