"""Truncated backpropagation against autograd by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from benchmarks.papers.networks import CellRecurrence, IndRNN, SequenceModel
from benchmarks.papers.through_time import truncated_backward


def gradient(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def models() -> list[nn.Module]:
    torch.manual_seed(0)
    return [
        SequenceModel(nn.RNN(2, 4, batch_first=True), 4, 1),
        SequenceModel(nn.LSTM(2, 4, 2, batch_first=True), 4, 1),
        SequenceModel(IndRNN(2, 4, 1, 9), 4, 1),
        SequenceModel(CellRecurrence(nn.LSTMCell(2, 4)), 4, 1),
    ]


@given(segment=st.integers(9, 20))
@settings(max_examples=3, deadline=None)
def test_a_segment_as_long_as_the_sequence_is_ordinary_backpropagation(segment: int) -> None:
    x, y = torch.randn(3, 9, 2), torch.randn(3, 9, 1)
    for model in models():
        loss = truncated_backward(model, x, segment, lambda o, first: ((o - y) ** 2).sum())
        found = gradient(model)
        model.zero_grad()
        wanted = ((model(x)[0] - y) ** 2).sum()
        wanted.backward()
        assert torch.allclose(loss, wanted.detach(), rtol=1e-5)
        assert torch.allclose(found, gradient(model), atol=1e-5)


@pytest.mark.parametrize("segment", [1, 2, 4, 8])
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
