"""Networks against torch's own loops, step by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from torch import nn

from benchmarks.papers.networks import (
    RELU,
    TANH,
    BatchNormRNN,
    CellRecurrence,
    EchoStateNetwork,
    IndRNN,
    PlainRNN,
    SequenceModel,
    dense_scan,
    independent_scan,
)
from liftednet.errors import DataError


@given(steps=st.integers(1, 12), seed=st.integers(0, 1000), relu=st.booleans(), dense=st.booleans())
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


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.LSTM(3, 5, batch_first=True),
        lambda: CellRecurrence(nn.GRUCell(3, 5)),
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


def test_readout_is_the_ridge_regression_of_scikit_learn() -> None:
    x = torch.randn(30, 12, 2, generator=torch.Generator().manual_seed(0)).double()
    y = x.cumsum(1)[:, :, :1]
    network = EchoStateNetwork(2, 15, 1, rho=0.05, seed=2)
    network.weight, network.input_weight, network.bias = (
        w.double() for w in (network.weight, network.input_weight, network.bias)
    )
    rows = network.states(x).flatten(0, 1).numpy()
    # The problem is |y - u|^2 / 2 + rho |W|^2, scikit-learn's |y - u|^2 + alpha |W|^2.
    reference = Ridge(alpha=0.1).fit(rows, y.flatten(0, 1).numpy())
    found = network.fit(x, y).outputs(x).flatten(0, 1).numpy()
    assert np.allclose(found, reference.predict(rows).reshape(found.shape), atol=1e-6)
