"""Truncated backpropagation and the norm-preserving regularizer against autograd by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from benchmarks.papers.networks import CellRecurrence, IndRNN, SequenceModel
from benchmarks.papers.through_time import norm_preservation, truncated_backward
from liftednet.errors import DataError


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


def test_a_loss_at_the_end_reaches_only_the_last_segment() -> None:
    torch.manual_seed(2)
    model = SequenceModel(nn.RNN(2, 4, batch_first=True), 4, 1)
    x = torch.randn(3, 9, 2, requires_grad=True)
    truncated_backward(
        model, x, 4, lambda o, first: o[:, -1].sum() if first == 8 else torch.zeros(())
    )
    assert x.grad is not None and not x.grad[:, :8].any() and x.grad[:, 8].any()
    with pytest.raises(DataError, match="segment length"):
        truncated_backward(model, x, 0, lambda o, first: o.sum())


def states_of(weight: Tensor, drive: Tensor) -> list[Tensor]:
    states = [torch.tanh(drive[0] @ weight)]
    for step in drive[1:]:
        states.append(torch.tanh(states[-1] @ weight + step))
    return states


def omega_by_jacobians(weight: Tensor, drive: Tensor) -> Tensor:
    """Eq. 2.18 with every Jacobian written out, for tanh: dh'/dh = W diag(1 - h'^2)."""
    states = states_of(weight, drive)
    total = torch.zeros(drive.shape[1], dtype=drive.dtype)
    error = 2 * states[-1] + 1
    for later, earlier in zip(states[:0:-1], states[-2::-1], strict=True):
        carried = (error * (1 - later**2)) @ weight.T
        total = total + (carried.norm(dim=1) / error.norm(dim=1) - 1) ** 2
        error = carried + torch.cos(earlier)
    return total.mean()


def loss_of(states: list[Tensor]) -> Tensor:
    early = sum((torch.sin(s).sum() for s in states[:-1]), torch.zeros((), dtype=torch.float64))
    return early + (states[-1] ** 2 + states[-1]).sum()


def test_omega_and_its_gradient_are_those_of_the_formula() -> None:
    source = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 4, generator=source, dtype=torch.float64).requires_grad_()
    drive = torch.randn(6, 3, 4, generator=source, dtype=torch.float64)
    states = states_of(weight, drive)
    omega = norm_preservation(loss_of(states), states)
    wanted = omega_by_jacobians(weight, drive)
    assert torch.allclose(omega, wanted)
    found = torch.autograd.grad(omega, weight, retain_graph=True)[0]
    assert torch.allclose(found, torch.autograd.grad(wanted, weight)[0])


def test_omega_is_zero_for_an_orthogonal_linear_network_and_safe_where_nothing_arrives() -> None:
    turn = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64))[0].requires_grad_()
    states = [torch.randn(3, 4, dtype=torch.float64) @ turn]
    for _ in range(5):
        states.append(states[-1] @ turn)
    assert norm_preservation(states[-1].sum(), states).item() < 1e-20
    dead = torch.zeros(4, 4, requires_grad=True)
    states = [torch.ones(3, 4) @ dead]
    for _ in range(3):
        states.append(torch.relu(states[-1] @ dead - 1))
    omega = norm_preservation((states[-1] ** 2).sum(), states)
    assert omega.item() == 0
    assert not torch.autograd.grad(omega, dead)[0].isnan().any()


def test_omega_feels_tiny_errors() -> None:
    """An error of 1e-30, whose square float32 cannot hold, still has its ratio."""
    half = torch.tensor([[0.5]], requires_grad=True)
    states = [torch.ones(1, 1) @ half]
    states += [states[0] @ half]
    omega = norm_preservation(1e-30 * states[-1].sum(), states)
    assert torch.isclose(omega, torch.tensor(0.25))


def test_omega_refuses_states_that_do_not_matter() -> None:
    with pytest.raises(DataError, match="two"):
        norm_preservation(torch.zeros(()), [torch.zeros(1, 1)])
    free = [torch.zeros(1, 1, requires_grad=True) for _ in range(2)]
    with pytest.raises(DataError, match="depend"):
        norm_preservation(torch.ones((), requires_grad=True) * 2, free)
