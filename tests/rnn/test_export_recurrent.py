"""Exported recurrent networks give the outputs of the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from liftednet import activations
from liftednet.data import echo
from liftednet.errors import DataError
from liftednet.export_recurrent import initialize_rnn_, recurrent_to_torch
from liftednet.models import FullBatch, GaussNewton, LiftedRNN, Minibatch

KINDS: list[dict[str, Any]] = [
    {},
    {"activation": activations.Tanh(), "divergence": "tight"},
    {"activation": activations.Sigmoid(), "hidden_size": (4, 3)},
    {"activation": activations.Softplus(), "bidirectional": True, "hidden_size": (3, 4)},
    {"bidirectional": True, "hidden_size": (4, 4), "learn_initial_state": True},
    {"hidden_size": (3, 5), "learn_initial_state": True},
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_exported_network_gives_the_outputs_of_the_model(kind):
    x, y = echo(12, 6, lag=1, classes=3)
    x = x.double()
    lengths = torch.tensor([6, 2, 4, 1] * 3)
    options: dict[str, Any] = {
        "hidden_size": 4,
        "start": "orthogonal",
        "method": FullBatch(2, extrapolation=False),
        **kind,
    }
    model = LiftedRNN(3, output_size=3, **options).fit(x, y, lengths=lengths)
    network = recurrent_to_torch(model)
    real = torch.arange(6) < lengths[:, None]
    outputs = network(x, lengths).softmax(-1)
    torch.testing.assert_close(
        outputs[real], model.forward(x, lengths=lengths)[real], atol=1e-5, rtol=0
    )
    torch.testing.assert_close(network(x).softmax(-1), model.forward(x), atol=1e-5, rtol=1e-5)
    assert all(parameter.requires_grad for parameter in network.parameters())
    fast = isinstance(network.recurrence, nn.RNN)
    assert fast == (kind in (KINDS[0], KINDS[1], KINDS[4]))


def test_a_users_own_rnn_takes_the_weights():
    x, y = echo(12, 6, lag=1, classes=3)
    model = LiftedRNN(3, 4, 3, start="orthogonal", method=GaussNewton(2)).fit(x, y)
    recurrence = nn.RNN(3, 4, nonlinearity="relu", batch_first=True)
    readout = nn.Linear(4, 3)
    initialize_rnn_(recurrence, readout, model)
    outputs = readout(recurrence(x)[0]).double().softmax(-1)
    torch.testing.assert_close(outputs, model.forward(x), atol=1e-5, rtol=1e-5)
    other: Any = nn.LSTM(3, 4)
    with pytest.raises(DataError, match=r"nn\.RNN, got LSTM"):
        initialize_rnn_(other, readout, model)
    with pytest.raises(DataError, match="nonlinearity"):
        initialize_rnn_(nn.RNN(3, 4), readout, model)
    with pytest.raises(DataError, match="bias_hh_l0"):
        initialize_rnn_(nn.RNN(3, 5, nonlinearity="relu"), readout, model)
    with pytest.raises(DataError, match="readout"):
        initialize_rnn_(recurrence, nn.Linear(4, 2), model)


@pytest.mark.parametrize("activation", [activations.ReLU(), activations.Sigmoid()])
def test_torch_exports_it_for_any_number_of_samples(activation, generator):
    x = torch.randn(9, 4, 2, generator=generator, dtype=torch.float64)
    model = LiftedRNN(2, 3, 2, activation, bidirectional=True, method=Minibatch(epochs=1))
    network = recurrent_to_torch(model.fit(x, (x[..., 0] > 0).long()))
    free = ({0: torch.export.Dim("samples")},)
    program = torch.export.export(network, (x[:3],), dynamic_shapes=free)
    torch.testing.assert_close(program.module()(x), network(x))
    whole = torch.full((9,), 4)
    torch.testing.assert_close(network(x), network(x, whole))
