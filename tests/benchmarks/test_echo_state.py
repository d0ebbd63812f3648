"""Echo-state networks against numpy's recursion and scikit-learn's ridge regression."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from benchmarks import data
from benchmarks.papers.networks import EchoStateNetwork
from liftednet.data import echo
from liftednet.errors import DataError, NotFittedError
from liftednet.losses import CrossEntropy


def test_states_follow_the_leaky_recursion() -> None:
    network = EchoStateNetwork(2, 20, 1, radius=0.9, leak=0.3, seed=1)
    x = torch.randn(3, 6, 2, generator=torch.Generator().manual_seed(0))
    weight, into, bias = (w.numpy() for w in (network.weight, network.input_weight, network.bias))
    assert np.abs(np.linalg.eigvals(weight)).max() == pytest.approx(0.9, rel=1e-4)
    state = np.zeros((3, 20))
    for t in range(6):
        state = 0.7 * np.tanh(state @ weight + x[:, t].numpy() @ into + bias) + 0.3 * state
    assert np.allclose(network.states(x)[:, -1].numpy(), state, atol=1e-5)


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


def test_padding_changes_nothing_and_the_last_step_is_the_last_real_one() -> None:
    x, y = data.temporal_order(40, 30, lengths=(lengths := data.hochreiter_lengths(40, 27)))
    longer = torch.cat([x, torch.full((40, 5, 6), 9.0)], 1)
    first = EchoStateNetwork(6, 30, 4).fit(x, y, lengths)
    second = EchoStateNetwork(6, 30, 4).fit(longer, y, lengths)
    found = first.outputs_at_end(x, lengths)
    assert torch.allclose(found, second.outputs_at_end(longer, lengths), atol=1e-4)
    assert found.shape == (40, 4)


def test_echo_is_learned_to_its_best_score_by_both_losses() -> None:
    """A reservoir of a hundred units holds one step: 1 - 0.1 * 0.9 = 0.91 (the paper's maximum)."""
    x, y = echo(300, 10, 1, 10, seed=0)
    test_x, test_y = echo(1000, 10, 1, 10, seed=1)
    for loss in (None, CrossEntropy()):
        network = EchoStateNetwork(10, 100, 10, radius=0.9, loss=loss).fit(x, y)
        right = network.outputs(test_x).argmax(2) == test_y
        assert bool(right[:, 1:].double().mean() > 0.99)


def test_bad_settings_are_refused() -> None:
    for settings in ({"leak": 1.0}, {"density": 0.0}, {"radius": 0.0}, {"units": 0}):
        with pytest.raises(DataError):
            EchoStateNetwork(**{"input_size": 2, "units": 5, "output_size": 1, **settings})  # type: ignore[arg-type]
    with pytest.raises(NotFittedError, match="fit first"):
        EchoStateNetwork(2, 5, 1, density=0.9).outputs(torch.zeros(1, 2, 2))
