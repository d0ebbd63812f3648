"""Networks whose last layer projects: limits that hold at every input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.base import clone

from liftednet import (
    DataError,
    DeclarationError,
    LiftedRegressor,
    Network,
    load,
    save,
    to_torch,
)
from liftednet.activations import ReLU
from liftednet.constraints import Bounds, Budget, GroupMeans, Linear
from liftednet.layers import dense
from liftednet.losses import CrossEntropy, SquaredError
from liftednet.models import FullBatch, Lifted, Minibatch

GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(size=(120, 4))
INFLOW = 200 + 300 * X[:, 0]
SHARES = np.exp(3 * np.sin(3 * X[:, 1:]))
Y = INFLOW[:, None] * SHARES / SHARES.sum(1, keepdims=True)
Y = Y + 30 * GENERATOR.normal(size=Y.shape)
BALANCE = Linear(np.ones(3), equal=200, inputs=[-300, 0, 0, 0])
OTHERS = GENERATOR.uniform(size=(300, 4))


def network(*within) -> Network:
    graph = Network()
    hidden = graph.state(ReLU(), dense(graph.input(4), 8))
    graph.loss(SquaredError(), dense(hidden, 3), within=within)
    return graph


def balanced(x, found) -> float:
    """Return by how much sums of three flows are off, or one is negative."""
    return max(float(np.abs(found.sum(1) - 200 - 300 * x[:, 0]).max()), -float(found.min()))


@pytest.mark.parametrize("method", ["minibatch", "gauss-newton"])
def test_what_is_declared_holds_at_other_inputs_of_the_exported_network(method) -> None:
    free = Lifted(network(), method=method).fit(X[:60], Y[:60])
    assert balanced(OTHERS, free.forward(OTHERS).numpy()) > 1
    model = Lifted(network(BALANCE, Bounds(lower=0)), method=method).fit(X[:60], Y[:60])
    found = model.forward(OTHERS)
    assert balanced(OTHERS, found.numpy()) < 1e-8
    exported = to_torch(model)(torch.from_numpy(OTHERS))
    assert torch.allclose(exported, found, rtol=0, atol=1e-9)


@pytest.mark.filterwarnings("ignore:.*units of layer 1")
def test_training_goes_through_the_projection() -> None:
    """Its objective is that of projected answers, and less than a free network's, projected."""
    held = network(BALANCE, Bounds(lower=0))
    free, model = (
        Lifted(graph, method="gauss-newton", standardize=False).fit(X, Y)
        for graph in (network(), held)
    )

    def objective(weights, answers) -> float:
        squares = sum(float(layer.matrix.square().sum()) for layer in weights)
        return float(((answers.numpy() - Y) ** 2).sum()) / 2 + squares

    assert model.objective() == pytest.approx(objective(model.weights, model.forward(X)), rel=1e-9)
    after = Lifted(held, standardize=False).with_weights(free.weights).forward(X)
    assert model.objective() < objective(free.weights, after)


def test_a_saved_network_is_within_the_same_limits(tmp_path) -> None:
    model = Lifted(network(BALANCE), method=Minibatch(epochs=2)).fit(X, Y)
    path = save(model, tmp_path / "model.safetensors")
    again = load(path, network=network(BALANCE))
    assert torch.equal(again.forward(OTHERS), model.forward(OTHERS))
    with pytest.raises(DataError, match="not the one that was saved"):
        load(path, network=network(Linear(np.ones(3), equal=1, inputs=[-300, 0, 0, 0])))


def test_a_regressor_and_its_file_are_within_them_at_any_input(tmp_path) -> None:
    limits = [Linear(np.ones(3), equal=1), Bounds(lower=0)]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 4))
    regressor = LiftedRegressor((10,), within=limits, max_iter=5, random_state=0)
    regressor.fit(x, rng.dirichlet(np.ones(3), size=80))
    found = clone(regressor).fit(x, rng.dirichlet(np.ones(3), size=80)).predict(30 * x)
    np.testing.assert_allclose(found.sum(1), 1.0, atol=1e-6)
    assert found.min() > -1e-6
    path = save(regressor.model_, tmp_path / "model.safetensors")
    with pytest.raises(DataError, match="within"):
        load(path)
    again = load(path, within=limits)
    np.testing.assert_array_equal(again.predict(30 * x), regressor.predict(30 * x))


def test_limits_that_no_answer_meets_at_an_input_are_told() -> None:
    model = Lifted(network(BALANCE, Bounds(lower=0)), method=Minibatch(epochs=2)).fit(X, Y)
    with pytest.raises(DataError, match="sample 1"):
        model.forward(np.array([[0.5, 0, 0, 0], [-1.0, 0, 0, 0]]))


@pytest.mark.parametrize(
    ("within", "said"),
    [
        ([GroupMeans([0, 1])], "each sample by itself"),
        ([Budget(1.0)], "each sample by itself"),
        ([Bounds(lower=[[0.0] * 3] * 2)], "shape"),
        ([Bounds(lower=1.0), Linear(np.ones(3), upper=2.0)], "contradict"),
        ([Linear(np.ones(3), equal=1, inputs=[1, 0])], "inputs"),
        ([Linear(np.ones(2), equal=1)], "2 outputs"),
    ],
)
def test_what_cannot_be_held_is_refused(within, said) -> None:
    with pytest.raises(DataError, match=said):
        network(*within)


def test_where_it_cannot_stand() -> None:
    graph = Network()
    with pytest.raises(DeclarationError, match="SquaredError"):
        graph.loss(CrossEntropy(), dense(graph.input(2), 2), within=[Bounds(lower=0)])
    holes = Network()
    scores = dense(holes.input(4, missing=True), 3)
    with pytest.raises(DeclarationError, match="missing"):
        holes.loss(SquaredError(), scores, within=[BALANCE])
    with pytest.raises(DeclarationError, match="not affine"):
        Lifted(network(Bounds(lower=0)), method=FullBatch())
    with pytest.raises(DataError, match="within="):
        Lifted(network()).fit(X, Y, constraints=[BALANCE])
