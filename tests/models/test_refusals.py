"""Bad input: refused before any work, with what was given and what is needed."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.pipeline import make_pipeline
from torch.utils.data import TensorDataset

from liftednet import LiftedError, LiftedRegressor, activations, losses, save, to_torch
from liftednet.errors import DataError, NotFittedError
from liftednet.models import LiftedMLP, LiftedRNN
from liftednet.problems import Weights
from tests.models.networks import full, labeled

X, Y = labeled()


def _with(tensor: torch.Tensor, value: float) -> torch.Tensor:
    spoiled = tensor.clone()
    spoiled[2, 1] = value
    return spoiled


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (X[:, :3], Y, [r"\(samples, 4\)", r"\(30, 3\)"]),
        (X[0], Y, [r"\(4,\)"]),
        (X, Y[:20], ["30", r"\(20,\)"]),
        (X, Y[:, None].repeat(1, 2), ["3", r"\(30, 2\)"]),
        (_with(X, float("nan")), Y, ["NaN", r"\(2, 1\)", "Say missing=True where NaN"]),
        (_with(X, float("inf")), Y, ["infinite", r"\(2, 1\)"]),
        (X[:0], Y[:0], ["empty", r"\(0, 4\)"]),
        (X, Y + 1, ["0", "2", "3"]),
        (X, torch.zeros_like(Y), ["two classes", "every label is 0"]),
        (X.half(), Y, ["float16"]),
        (X.long(), Y, ["int64"]),
        (X.tolist(), Y, ["list"]),
        (np.array([["a"] * 4]), Y, ["X"]),
        (X, Y.double() + 0.5, ["y"]),
    ],
)
def test_data_are_refused_before_any_work(x, y, words):
    model = full((4, 5, 3))
    with pytest.raises(DataError) as caught:
        model.fit(x, y)
    for word in words:
        caught.match(word)
    assert model.trace is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lam": 0.0}, ["lam", "positive", "0.0"]),
        ({"lam": -1.0}, ["lam", "-1.0"]),
        ({"lam": float("nan")}, ["lam", "nan"]),
        ({"lam": [1.0, 1.0]}, ["lam", "1"]),
        ({"rho": 0.0}, ["rho", "positive"]),
        ({"rho": [0.1]}, ["rho", "2"]),
        ({"sweeps": 0}, ["sweeps", "positive integer"]),
        ({"tolerance": 0.0}, ["tolerance"]),
        ({"dtype": torch.float16}, ["float16"]),
        ({"dtype": torch.int64}, ["int64"]),
        ({"start": "zeros"}, ["zeros", "kaiming"]),
        ({"start": (Weights(torch.zeros(4, 5), torch.zeros(5)),)}, ["2 layers", "1"]),
        (
            {
                "start": (
                    Weights(torch.zeros(4, 6), torch.zeros(6)),
                    Weights(torch.zeros(6, 3), torch.zeros(3)),
                )
            },
            [r"\(4, 5\)", r"\(4, 6\)"],
        ),
        ({"divergence": "loose"}, ["tight", "joint", "loose"]),
        ({"activations": torch.relu}, ["Activation"]),
        ({"activations": [activations.ReLU()] * 3}, ["1", "3"]),
        ({"activations": activations.Sign(), "divergence": "joint"}, ["Lipschitz"]),
        ({"activations": activations.Sign()}, ["Sign.*layer 1", 'method="minibatch"']),
        ({"solver": "simplex"}, ["simplex", "reference"]),
    ],
)
def test_options_are_refused_at_the_door(options, words):
    with pytest.raises(LiftedError) as caught:
        full((4, 5, 3), **options)
    for word in words:
        caught.match(word)


@pytest.mark.parametrize("sizes", [(4,), (), (4, 0, 3), (4, -1), (4, 2.5, 3), (True, 3)])
def test_sizes_are_refused(sizes):
    with pytest.raises(DataError, match="sizes"):
        full(sizes)


def test_outputs_that_overflow_are_refused():
    model = full((4, 3)).with_weights([Weights(torch.full((4, 3), 1e10), torch.zeros(3)).to(X)])
    with pytest.raises(DataError, match=r"overflows torch\.float64.*Scale the inputs"):
        model.forward(1e300 * X)


@pytest.mark.parametrize("method", ["gauss-newton", "full", "minibatch"])
@pytest.mark.parametrize("scale", [1e20, 1e160, 1e300])
def test_data_beyond_all_scales_never_end_in_numbers_that_are_none(method, scale):
    """A fit of them says so, or is finite."""
    model = LiftedMLP((4, 5, 3), method=method)
    try:
        model.fit(scale * X, Y)
    except LiftedError as error:
        assert re.search("scale|Scale", str(error))
    else:
        assert model.trace is not None
        assert np.isfinite(model.trace.steps[-1].objective)


REAL = torch.linspace(-1, 1, 30, dtype=torch.float64)
STEPS = torch.zeros(30, 6, 3, dtype=torch.float64)
MISTAKES: dict[str, tuple[Any, ...]] = {
    "numbers under the default loss": (LiftedMLP, (4, 3, 3), X, X[:, :3], r"SquaredError\(\)"),
    "labels as floats": (LiftedMLP, (4, 3, 3), X, Y.double(), "make labels integers"),
    "labels with an axis": (LiftedMLP, (4, 3, 3), X, Y[:, None], r"give y\[:, 0\]"),
    "one-hot integers": (LiftedMLP, (4, 3, 3), X, torch.eye(3).long()[Y], r"y\.argmax\(1\)"),
    "two classes of one output": (LiftedMLP, (4, 3, 1), X, Y % 2, r"BinaryCrossEntropy\(\)"),
    "a dataset": (LiftedMLP, (4, 3, 3), TensorDataset(X, Y), Y, "DataLoader"),
    "names": (LiftedMLP, (4, 3, 3), X, np.array(list("abc") * 10), r"numpy\.unique"),
    "rows in a list": (LiftedMLP, (4, 3, 3), list(X), Y, "one array, got 30 in a list: stack"),
    "sequences in a list": (LiftedRNN, (3, 4, 2), list(STEPS), Y % 2, "and give lengths="),
    "steps without an axis of outputs": (
        partial(LiftedRNN, loss=losses.SquaredError()), (3, 4, 1), STEPS, REAL.expand(6, 30).T,
        r"give \(samples, steps, 1\), as y\[\.\.\., None\]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_an_everyday_mistake_is_told_what_to_write(case):
    kind, sizes, x, y, words = MISTAKES[case]
    model = kind(*((sizes,) if kind is LiftedMLP else sizes))
    with pytest.raises(DataError, match=words):
        model.fit(x, y)


def test_an_estimator_is_the_network_inside_it():
    estimator = LiftedRegressor((3,), max_iter=1, random_state=0)
    for door in (to_torch, lambda x: save(x, "never")):
        with pytest.raises(NotFittedError, match="LiftedRegressor has no network yet"):
            door(estimator)
    estimator.fit(np.column_stack([REAL] * 4), REAL.numpy())
    with pytest.raises(NotFittedError, match=r"give the estimator in it, as pipeline\[-1\]"):
        to_torch(make_pipeline(estimator).fit(np.column_stack([REAL] * 4), REAL.numpy()))
    x = torch.randn(5, 4, dtype=torch.float64)
    assert torch.equal(
        to_torch(estimator).double()(x), to_torch(estimator.model_).float().double()(x)
    )


@pytest.mark.filterwarnings("ignore:.*:liftednet.errors.FitWarning")
def test_one_feature_needs_no_axis_of_its_own():
    y = REAL.square()
    found = [
        LiftedMLP((1, 5, 1), loss=losses.SquaredError()).fit(x, y).predict(x)
        for x in (REAL, REAL[:, None])
    ]
    assert torch.equal(*found)
    assert found[0].shape == (30, 1)
