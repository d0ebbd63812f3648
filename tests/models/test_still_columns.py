"""Columns that are constant in training: where they move at predict, nothing answers."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_iris
from torch.utils.data import DataLoader, TensorDataset

from liftednet import LiftedClassifier, LiftedRegressor, activations, load, losses, save
from liftednet.layers import concatenate, convolution, delay, dense
from liftednet.models import FullBatch, Lifted, LiftedMLP, LiftedRNN, Minibatch
from liftednet.models.data import prepared
from liftednet.models.settings import Settings
from liftednet.models.standardization import standardization_of
from liftednet.network import Network
from tests.draws import normal

GENERATOR = torch.Generator().manual_seed(6)
X = normal(80, 4, seed=GENERATOR)
Y = (X[:, 0] + X[:, 1] ** 2 > 1).long()
SHORT = Minibatch(epochs=2)


def with_column(x, value):
    return np.c_[np.asarray(x), np.full(len(x), value)]


def _zero_rows(layer):
    return (layer.matrix.abs() < 1e-12).all(1).nonzero().flatten().tolist()


@pytest.mark.parametrize("method", ["auto", SHORT, FullBatch(sweeps=1)])
@pytest.mark.parametrize("constant", [7.0, 0.1 + 1e-16 * (np.arange(120) % 2)])
def test_a_regression_does_not_answer_to_a_column_that_stood_still(method, constant):
    x, y = (part[:120] for part in load_diabetes(return_X_y=True))
    still, moved = with_column(x, constant), with_column(x, 8.0)
    model = LiftedRegressor((20,), method=method, random_state=0).fit(still, y)
    assert np.allclose(model.predict(moved), model.predict(still), atol=1e-2)  # it was 172


def test_what_rounding_leaves_of_a_constant_column_is_zero():
    network = LiftedMLP((5, 1), loss=losses.SquaredError()).network
    x = torch.tensor(with_column(X, 0.1 + 1e-16 * (np.arange(80) % 2)))
    data = prepared(network, x, X[:, :1])
    seen = standardization_of(network, data).of(data).values[network.inputs[0]]
    assert seen.bool().any(0).tolist() == [True] * 4 + [False]


def test_a_classifier_does_not_either_and_answers_to_a_column_that_hardly_moved():
    x, y = load_iris(return_X_y=True)
    still, moved = with_column(x, 7.0), with_column(x, 8.0)
    model = LiftedClassifier((20,), random_state=0).fit(still, y)
    assert np.allclose(model.predict_proba(moved), model.predict_proba(still), atol=1e-12)
    still[0, -1] = 7.001
    model = LiftedClassifier((20,), method=SHORT, random_state=0).fit(still, y)
    assert not np.allclose(model.predict_proba(moved), model.predict_proba(still), atol=1e-3)


@pytest.mark.parametrize("settings", [{}, {"method": SHORT}, {"start": "orthogonal"}])
def test_what_float32_rounds_away_does_not_move_in_float64_either(settings):
    """A column of 1e8 that moves by its last digit, of data that training has in float64."""
    x, y = normal(60, 6, 3).float(), torch.arange(60) % 2
    x[..., 1] = 1e8 + 8 * (x[..., 1] > 0)
    moved = x.clone()
    moved[..., 1] += 1e6
    network = LiftedRNN(3, 6, 2, **settings).fit(x, y)
    assert torch.equal(network.scores(moved), network.scores(x))
    rows = LiftedMLP((3, 6, 2), dtype=torch.float64, **settings).fit(x[:, 0], y)
    assert torch.equal(rows.scores(moved[:, 0]), rows.scores(x[:, 0]))
    exact = LiftedMLP((3, 6, 2), **settings).fit(x[:, 0].double(), y)  # whose digits these are
    assert not torch.equal(exact.scores(moved[:, 0].double()), exact.scores(x[:, 0].double()))


def test_a_warm_start_looks_anew_at_what_moves(tmp_path):
    """From memory and from a file alike: a column that moved by rounding, and then moves."""
    x = normal(200, 3).float()
    x[:, 2] = 1e6 + 0.0625 * (x[:, 2] > 0)
    y = x[:, :1].clone()
    model = LiftedMLP((3, 8, 1), loss=losses.SquaredError(), method=Minibatch(epochs=20))
    again = load(save(model.fit(x, y), tmp_path / "model.safetensors"))
    assert torch.equal(again.predict(x), model.predict(x))
    x[:, 2] = 1e6 + 3 * normal(200, seed=5).float()
    y += (x[:, 2:] - 1e6) / 3
    for one in (model, again):
        one.warm_start, one.method = True, Minibatch(epochs=60)
        assert float((one.fit(x, y).predict(x) - y).square().mean() / y.var()) < 0.02
    torch.testing.assert_close(again.predict(x), model.predict(x))


def test_rows_are_found_through_what_joins_inputs():
    network = Network()
    first, second, image = network.input(4), network.input(2), network.input(2, 3, 3)
    both = network.state(activations.ReLU(), dense(concatenate(second, first), 5))
    again = network.state(activations.ReLU(), dense(concatenate(first, both), 5))
    seen = network.state(activations.ReLU(), convolution(image, 3, 2))
    network.loss(losses.CrossEntropy(), dense(concatenate(again, seen), 2))
    x, z, pixels = X.clone(), X[:, :2].clone(), X.new_zeros(len(X), 18)
    x[:, 2], z[:, 0], pixels[:, 9:] = 3.0, -1.0, torch.rand(80, 9, generator=GENERATOR)
    weights = Lifted(network, method=SHORT).fit((x, z, pixels.reshape(-1, 2, 3, 3)), Y).weights
    assert dict(zip(network.parameters, [_zero_rows(layer) for layer in weights], strict=True)) == {
        both.argument.weights: [0, 4],
        again.argument.weights: [2],
        seen.argument.weights: [0, 1, 2, 3],
        network.terms[0].argument.weights: [],
    }


def test_rows_are_found_behind_a_delay():
    network = Network()
    x = network.input(3, sequence=True)
    h = network.state(activations.Tanh(), dense(concatenate(x, delay(x)), 4))
    network.loss(losses.CrossEntropy(), dense(h, 2))
    steps = normal(20, 5, 3)
    steps[..., 1] = 2.0
    model = Lifted(network, method=SHORT).fit(steps, torch.arange(20) % 2)
    assert _zero_rows(model.weights[0]) == [1, 4]


def test_weights_that_were_given_stay():
    x = torch.tensor(with_column(X, 7.0))
    first = LiftedMLP((5, 8, 2), method=Minibatch(epochs=1, rate=1e-12), dtype=torch.float64)
    given = Settings._first_weights(first)
    first.start = [layer.to(x) for layer in given]
    for first.warm_start in (False, True):
        first.fit(x, Y)
        assert torch.allclose(first.weights[0].matrix, given[0].matrix.double(), atol=1e-6)


def test_columns_that_move_after_the_first_batch_of_a_loader_are_heard(generator):
    """The first rows of a column move by one rounding of 1e6, the others by far more."""
    x = torch.randn(400, 3, generator=generator)
    move = 3 * torch.rand(400, generator=generator) - 1.5
    move[:20] = torch.randint(0, 2, (20,), generator=generator) / 16
    x[:, 2] = 1e6 + move
    y = x[:, :1] + 2 * (x[:, 2:] - 1e6)
    model = LiftedMLP((3, 16, 1), loss=losses.SquaredError(), method=Minibatch(epochs=40))
    model.fit(DataLoader(TensorDataset(x, y), batch_size=20))
    assert float((model.forward(x) - y).square().mean() / y.var()) < 0.01
