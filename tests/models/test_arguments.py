"""What a user may give at the door: numpy's numbers, and mistakes that are named."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from liftednet import DataError, DeclarationError, LiftedError, activations
from liftednet.errors import NotFittedError
from liftednet.models import LiftedMLP, LiftedRNN, Minibatch
from liftednet.problems import Weights
from tests.models.networks import full, labeled

X, Y = labeled(samples=60)
PAIRS = [(torch.zeros(4, 3), torch.zeros(3))]


def test_numbers_of_numpy_are_numbers():
    counts: dict[str, Any] = {"epochs": np.int64(2), "batch_size": np.int32(20)}
    numbers: dict[str, Any] = {"lam": np.float32(2.0), "rho": np.float64(0.5), "seed": np.int64(0)}
    sizes: Any = 4, np.int64(5), np.int32(3)
    wanted = Minibatch(epochs=2, batch_size=20)
    model = LiftedMLP(sizes, **numbers, method=Minibatch(**counts)).fit(X, Y)
    plain = LiftedMLP((4, 5, 3), lam=2.0, rho=0.5, method=wanted).fit(X, Y)
    assert model.weights[0].matrix.equal(plain.weights[0].matrix)
    assert repr(model) == repr(plain)
    assert full((4, 3), sweeps=np.int64(2)).fit(X, Y).is_fitted


def test_numbers_of_numpy_are_numbers_of_a_recurrent_network():
    sizes: Any = np.int64(4), np.int64(5), np.int32(3)
    numbers: dict[str, Any] = {"rho": np.float32(0.5), "sweeps": np.int64(2), "seed": np.int64(0)}
    model = LiftedRNN(*sizes, **numbers).fit(X[:, None], Y)
    plain = LiftedRNN(4, 5, 3, rho=0.5, sweeps=2).fit(X[:, None], Y)
    assert model.weights[0].matrix.equal(plain.weights[0].matrix)
    assert repr(model) == repr(plain)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"start": 3}, "Weights.*int"),
        ({"start": PAIRS}, "Weights.*tuple"),
        ({"solver": None}, "solver.*None"),
        ({"solver": 3}, "solver.*3"),
        ({"rho": None}, "rho.*None"),
        ({"dtype": "float32"}, "dtype.*float32"),
        ({"divergence": []}, r"divergence.*\[\]"),
        ({"method": []}, r"method.*\[\]"),
    ],
)
@pytest.mark.parametrize("build", [partial(LiftedMLP, (4, 3)), partial(LiftedRNN, 4, 5, 3)])
def test_mistakes_are_refused_at_the_door(build, options, words):
    with pytest.raises(LiftedError, match=words):
        build(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tolerance": None}, "tolerance.*None"),
        ({"state_solver": 3}, "solver.*3"),
        ({"activation": activations.Softmax()}, r"Softmax.*unit by unit"),
        ({"activation": activations.Softmax(), "divergence": "tight"}, r"Softmax.*unit by unit"),
        ({"hidden_size": 6.0}, r"sizes.*6\.0"),
        ({"hidden_size": True}, "sizes.*True"),
    ],
)
def test_mistakes_with_a_recurrent_network_are_refused_at_the_door(options, words):
    with pytest.raises((DataError, DeclarationError), match=words):
        LiftedRNN(**{"input_size": 4, "hidden_size": 5, "output_size": 3, **options})


def test_weights_that_are_pairs_are_refused():
    model = LiftedMLP((4, 3))
    with pytest.raises(DataError, match=r"Weights\(W, b\).*tuple"):
        model.with_weights(PAIRS)  # type: ignore[arg-type]
    assert model.with_weights([Weights(*PAIRS[0])]).is_fitted


def test_bytes_in_the_other_order_are_refused():
    x = X.numpy()
    with pytest.raises(DataError, match="X cannot be used"):
        LiftedMLP((4, 3)).fit(x.astype(x.dtype.newbyteorder()), Y)


def test_a_model_without_data_says_that_it_has_weights():
    first = LiftedMLP((4, 3), method=Minibatch(epochs=1)).fit(X, Y)
    given = LiftedMLP((4, 3)).with_weights(first.weights)
    loader = DataLoader(TensorDataset(X, Y), batch_size=20)
    streamed = LiftedMLP((4, 3), method=Minibatch(epochs=1)).fit(loader)
    for model in (given, streamed):
        for ask in (model.objective, model.residual, model.gap, lambda m=model: m.states):
            with pytest.raises(NotFittedError, match="weights but no data"):
                ask()


def test_a_model_without_hidden_layers_has_no_activations_to_name():
    assert "activations=[], loss=CrossEntropy()" in repr(LiftedMLP((4, 3)))
