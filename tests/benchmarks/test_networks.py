"""Networks against torch's own loops, step by step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from benchmarks.papers.networks import (
    BatchNormRNN,
    CellRecurrence,
    ContextRNN,
    GatedFeedbackRNN,
    IndRNN,
    PlainRNN,
    SequenceModel,
)
from benchmarks.papers.networks.scan import RELU, TANH, dense_scan, independent_scan
from liftednet import starts
from liftednet.errors import DataError


@given(
    steps=st.integers(1, 12),
    seed=st.integers(0, 1000),
    relu=st.booleans(),
    dense=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_scans_and_their_gradients_are_those_of_the_loop(
    steps: int, seed: int, relu: bool, dense: bool
) -> None:
    source = torch.Generator().manual_seed(seed)
    shapes = [(steps, 3, 4), (4, 4) if dense else (4,), (3, 4)]
    leaves = [
        torch.randn(s, generator=source, dtype=torch.float64).requires_grad_() for s in shapes
    ]
    drive, weight, start = leaves
    mixing = torch.randn(steps, 3, 4, generator=source, dtype=torch.float64)
    state, states = start, []
    for step in drive:
        state = (torch.relu if relu else torch.tanh)(
            step + (state @ weight if dense else weight * state)
        )
        states.append(state)
    wanted = torch.stack(states)
    found = (dense_scan if dense else independent_scan)(
        drive, weight, start, RELU if relu else TANH
    )
    assert torch.allclose(found, wanted, atol=1e-12)
    pairs = zip(
        torch.autograd.grad((found * mixing).sum(), leaves),
        torch.autograd.grad((wanted * mixing).sum(), leaves),
        strict=True,
    )
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in pairs)


def test_cell_recurrence_is_torchs_network_with_the_same_weights() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 6, 3)
    for whole, cell in (
        (nn.RNN(3, 5, batch_first=True), nn.RNNCell(3, 5)),
        (nn.GRU(3, 5, batch_first=True), nn.GRUCell(3, 5)),
        (nn.LSTM(3, 5, batch_first=True), nn.LSTMCell(3, 5)),
    ):
        cell.load_state_dict({k.removesuffix("_l0"): v for k, v in whole.state_dict().items()})
        assert torch.allclose(CellRecurrence(cell)(x)[0], whole(x)[0], atol=1e-6)


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_plain_network_is_torchs_with_the_same_weights(nonlinearity: str) -> None:
    torch.manual_seed(0)
    fast, slow = PlainRNN(3, 5, nonlinearity), nn.RNN(3, 5, 1, nonlinearity, batch_first=True)
    slow.load_state_dict(fast.state_dict())
    x, state, mixing = torch.randn(4, 6, 3), torch.rand(1, 4, 5), torch.randn(4, 6, 5)
    gradients = []
    for network in (fast, slow):
        states, last = network(x, state)
        assert torch.equal(states[:, -1], last[0])
        gradients.append(torch.autograd.grad((states * mixing).sum(), list(network.parameters())))
    assert torch.allclose(fast(x, state)[0], slow(x, state)[0], atol=1e-6)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*gradients, strict=True))
    with pytest.raises(DataError, match="nonlinearity"):
        PlainRNN(3, 5, "sigmoid")


def test_batch_norm_network_step_by_step() -> None:
    torch.manual_seed(0)
    network = BatchNormRNN(3, 5, "relu")
    x = torch.randn(4, 6, 3)
    drive = nn.functional.batch_norm(
        (x @ network.input.weight.T).flatten(0, 1), None, None, training=True
    ).unflatten(0, (4, 6))
    state = torch.zeros(4, 5)
    for t in range(6):
        state = torch.relu(drive[:, t] + state @ network.recurrent.T)
    states, last = network(x)
    assert torch.allclose(states[:, -1], state, atol=1e-5)
    assert torch.allclose(last[0], state, atol=1e-5)


def test_indrnn_layers_and_norms_step_by_step() -> None:
    torch.manual_seed(0)
    network = IndRNN(3, 5, 2, steps=6)
    signal = torch.randn(4, 6, 3)
    x = signal
    for layer in range(2):
        state, states = torch.zeros(4, 5), []
        into = network.inputs[layer]
        for t in range(6):
            state = torch.relu(into(signal[:, t]) + network.weights[layer] * state)
            states.append(state)
        signal = torch.stack(states, 1)
        if layer == 0:
            flat = nn.functional.batch_norm(signal.flatten(0, 1), None, None, training=True)
            signal = flat.unflatten(0, (4, 6))
    assert torch.allclose(network(x)[0], signal, atol=1e-5)


def test_a_context_is_a_plain_network_with_a_structured_recurrence() -> None:
    """On Recurrent Neural Networks, eq. 2.14: W = [R P; 0 Q], the context without sigmoid."""
    torch.manual_seed(0)
    network, x = ContextRNN(3, 5, 2).double(), torch.randn(4, 6, 3, dtype=torch.float64)
    q = torch.sigmoid(network.beta).diag()
    ours, into = network.recurrent.weight, network.from_context.weight
    start = torch.cat([network.input.weight + into @ (torch.eye(2) - q) @ network.context.weight,
                       (torch.eye(2) - q) @ network.context.weight])  # fmt: skip
    recurrent = torch.cat([torch.cat([ours, into @ q], 1), torch.cat([torch.zeros(2, 5), q], 1)])
    bias, state = torch.cat([network.input.bias, torch.zeros(2)]), torch.zeros(4, 7)
    for t, shown in enumerate(network(x)[0].unbind(1)):
        u = x[:, t] @ start.T + state.double() @ recurrent.T + bias
        state = torch.cat([torch.sigmoid(u[:, :5]), u[:, 5:]], 1)
        assert torch.allclose(shown, state, atol=1e-12)


def test_gates_that_are_shut_or_open_make_plain_stacks() -> None:
    torch.manual_seed(0)
    network: Any = GatedFeedbackRNN(3, 4, 2)
    x = torch.ones(2, 5, 3)
    own = nn.RNN(3, 4, 2, batch_first=True)
    with torch.no_grad():
        for layer in range(2):
            feedback = torch.zeros(4, 8)
            feedback[:, 4 * layer : 4 * layer + 4] = 2 * own.get_parameter(f"weight_hh_l{layer}")
            network.feedback[layer].weight.copy_(feedback)  # every gate is a half: sigmoid(0)
            network.gates_below[layer].weight.zero_()
            network.gates_before[layer].weight.zero_()
            network.inputs[layer].weight.copy_(own.get_parameter(f"weight_ih_l{layer}"))
            biases = [own.get_parameter(f"bias_{k}h_l{layer}") for k in "ih"]
            network.inputs[layer].bias.copy_(biases[0] + biases[1])
        assert torch.allclose(network(x)[0], own(x)[0], atol=1e-6)
        network.gates_below[0].weight.fill_(-100.0)  # x is 1: shut
        first = torch.tanh(network.inputs[0](x))
        assert torch.allclose(network(x)[1][:, 0], first[:, -1], atol=1e-6)


def test_indrnn_keeps_its_bound() -> None:
    network = IndRNN(3, 50, 2, steps=100)
    bound = 2 ** (1 / 100)
    assert float(network.weights[1].detach().min()) >= 1 / bound
    with torch.no_grad():
        network.weights[0].fill_(7)
        network.weights[1].fill_(-7)
    network.constrain_()
    assert torch.allclose(network.weights[0].detach(), torch.full((50,), bound))
    assert torch.allclose(network.weights[1].detach(), torch.full((50,), -bound))
    with pytest.raises(DataError, match="nonlinearity"):
        IndRNN(3, 5, 1, 10, "sigmoid")
    with pytest.raises(DataError, match="at least 1"):
        IndRNN(3, 5, 0, 10)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.LSTM(3, 5, batch_first=True),
        lambda: CellRecurrence(nn.GRUCell(3, 5)),
        lambda: ContextRNN(3, 3, 2),
        lambda: GatedFeedbackRNN(3, 5, 2),
        lambda: IndRNN(3, 5, 1, 8),
        lambda: BatchNormRNN(3, 5).eval(),
        lambda: PlainRNN(3, 5),
    ],
)
def test_state_carries_on_where_it_stopped_and_padding_changes_nothing(make: object) -> None:
    torch.manual_seed(0)
    model = SequenceModel(make(), 5, 2).eval()  # type: ignore[operator]
    x = torch.randn(4, 8, 3)
    whole, _ = model(x)
    first, state = model(x[:, :3])
    second, _ = model(x[:, 3:], state)
    assert torch.allclose(torch.cat([first, second], 1), whole, atol=1e-6)
    lengths = torch.tensor([8, 5, 1, 3])
    padded = x.clone()
    padded[torch.arange(8) >= lengths[:, None]] = 99
    assert torch.allclose(model.at_end(padded, lengths), model.at_end(x, lengths), atol=1e-6)
    assert torch.allclose(model.at_end(x), whole[:, -1], atol=1e-6)
    with pytest.raises(DataError, match="between 1 and the 8"):
        model.at_end(x, lengths + 1)


def eigenvalue(weight: Tensor) -> float:
    import numpy as np

    return float(np.abs(np.linalg.eigvals(weight.detach().double().numpy())).max())


@given(size=st.integers(1, 30), radius=st.floats(0.01, 10), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_starts_have_their_radius(size: int, radius: float, seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    assert eigenvalue(starts.gaussian(size, radius, source)) == pytest.approx(radius, rel=1e-4)
    turn = starts.orthogonal(size, source)
    assert torch.allclose(turn @ turn.T, torch.eye(size), atol=1e-5)
    assert eigenvalue(starts.identity(size)) == 1


def test_spectral_start_reaches_every_gate_and_layer() -> None:
    network = nn.LSTM(3, 6, num_layers=2)
    starts.spectral_start_(network, 1.1, torch.Generator().manual_seed(0))
    for layer in range(2):
        for gate in network.get_parameter(f"weight_hh_l{layer}").chunk(4):
            assert eigenvalue(gate) == pytest.approx(1.1, rel=1e-4)


def test_bad_starts_are_refused() -> None:
    source = torch.Generator()
    with pytest.raises(DataError, match="must be positive"):
        starts.gaussian(3, 0.0, source)
    with pytest.raises(DataError, match="square"):
        starts.spectral_radius(torch.zeros(2, 3))
    with pytest.raises(DataError, match="eigenvalues are all 0"):
        starts.with_spectral_radius(torch.triu(torch.ones(3, 3), 1), 1.0)
    with pytest.raises(DataError, match="NaN"):
        starts.spectral_radius(torch.full((2, 2), torch.nan))
    with pytest.raises(DataError, match="weight_hh"):
        starts.spectral_start_(nn.Linear(2, 2), 1.0, source)
