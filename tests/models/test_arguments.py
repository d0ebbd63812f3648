"""What a user may give at the door: numpy's numbers, and mistakes that are named."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

from liftednet import Activation, LiftedError, activations, penalties
from liftednet.errors import DataError, DeclarationError, NotFittedError
from liftednet.models import FullBatch, GaussNewton, LiftedMLP, LiftedRNN, Minibatch
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
    steps: Any = np.int64(2)
    sequences = LiftedRNN(*sizes, rho=np.float32(0.5), method=GaussNewton(steps))
    sequences.fit(X[:, None], Y, lengths=np.ones(60, np.uint16))
    same = LiftedRNN(4, 5, 3, rho=0.5, method=GaussNewton(2)).fit(X[:, None], Y)
    assert sequences.weights[0].matrix.equal(same.weights[0].matrix)
    assert repr(sequences) == repr(same)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"start": 3}, "Weights.*int"),
        ({"start": PAIRS}, "Weights.*tuple"),
        ({"solver": None}, "solver.*None"),
        ({"solver": 3}, "solver.*3"),
        ({"rho": "1"}, "rho.*'1'"),
        ({"rho": 0.1, "penalty": penalties.Nonnegative()}, r"rho=0\.1.*SquaredFrobenius.*rho=None"),
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


UNSIGNED = [np.uint8, np.uint16, np.uint32, np.uint64, torch.uint16, torch.uint32, torch.uint64]


@pytest.mark.parametrize("kind", [*UNSIGNED, ">i8", ">u2"])
def test_labels_of_any_integer_type_are_labels(kind):
    model = full((4, 3), sweeps=1)
    wanted = model.fit(X, Y).weights[0].matrix
    labels = Y.to(kind) if isinstance(kind, torch.dtype) else Y.numpy().astype(kind)
    assert model.fit(X, labels).weights[0].matrix.equal(wanted)


MASKED = np.ma.masked_array(X.numpy(), X.numpy() > 1)


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (X, np.full(60, 2**64 - 1, np.uint64), r"y has integers beyond 9\d+"),
        (X, Y.numpy().astype(np.uint64) + np.uint64(2**63), r"y has integers beyond"),
        (MASKED, Y, r"X has \d+ masked"),
        (X, np.ma.masked_array(Y.numpy(), Y.numpy() == 1), r"y has \d+ masked"),
        (X.to("meta"), Y, "X.*meta.*no numbers"),
        (X, Y.to("meta"), "y.*meta.*no numbers"),
        (X.to_sparse(), Y, r"X must be dense.*\.to_dense\(\)"),
        (X.to_sparse_csr(), Y, r"X must be dense.*sparse_csr"),
        (scipy.sparse.csr_array(X.numpy()), Y, r"X.*csr_array.*\.toarray\(\)"),
        (X, Y.to(torch.complex64), "y must be real.*complex64"),
        (X.numpy().astype(np.longdouble), Y, "X must hold numbers that torch has.*float128"),
        (torch.tensor(1.0), Y, r"X must have shape \(samples, 4\).*got \(\)"),
    ],
)
def test_arrays_that_would_be_misread_are_refused(x, y, words):
    with pytest.raises(DataError, match=words):
        full((4, 3), sweeps=1).fit(x, y)


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        (["a"] * 60, "lengths must be integers.*'a'"),
        ([None] * 60, "lengths must be integers.*None"),
        ([2**70] * 60, "lengths must be integers.*118"),
        (np.full(60, 1j), "lengths must be real"),
        (np.full(60, 2**64 - 1, np.uint64), "lengths has integers beyond"),
        (torch.ones(60), "lengths must be integers.*float32"),
        (1, "lengths must be a torch tensor"),
    ],
)
def test_lengths_that_are_none_are_refused(lengths, words):
    with pytest.raises(DataError, match=words):
        LiftedRNN(4, 5, 3).fit(X[:, None], Y, lengths=lengths)


@pytest.mark.parametrize("warm_start", [True, False])
def test_a_network_that_was_changed_is_told(warm_start):
    model = LiftedMLP((4, 5, 3), method=Minibatch(epochs=1), warm_start=warm_start).fit(X, Y)
    first, model.network = model.network, LiftedMLP((4, 6, 3)).network
    for ask in (lambda: model.predict(X), model.objective):
        with pytest.raises(NotFittedError, match="another network"):
            ask()
    if warm_start:
        with pytest.raises(NotFittedError, match="without warm_start"):
            model.fit(X, Y)
        model.network = first
    assert model.fit(X, Y).predict(X).shape == Y.shape


@pytest.mark.parametrize("method", [Minibatch(epochs=1), FullBatch(1), GaussNewton(1)], ids=repr)
def test_a_fit_takes_its_gradients_under_inference_mode_too(method):
    softsign = Activation.from_function(torch.nn.functional.softsign)  # its slope is autograd's
    outside = LiftedMLP((4, 5, 3), softsign, method=method).fit(X, Y)
    with torch.inference_mode():
        inside = LiftedMLP((4, 5, 3), softsign, method=method).fit(X.clone(), Y.clone())
        torch.testing.assert_close(softsign.slope(torch.ones(1)), torch.tensor([0.25]))
    for one, other in zip(inside.weights, outside.weights, strict=True):
        assert one.matrix.equal(other.matrix)
    inside.fit(X, Y)
