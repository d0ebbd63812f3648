"""One network declared in two ways, by a builder and as a graph, trains the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch

from liftednet.activations import ReLU, Sigmoid, Tanh
from liftednet.errors import DeclarationError
from liftednet.losses import BinaryCrossEntropy, SimplexCrossEntropy, SquaredError
from liftednet.models import (
    FullBatch,
    GaussNewton,
    Lifted,
    LiftedClassifier,
    LiftedMLP,
    LiftedRegressor,
    LiftedRNN,
    Minibatch,
)
from liftednet.models.settings import Settings
from liftednet.network import Network
from tests.models.registry import CLASSES, GRAPHS, Graph

BY_NAME = {graph.name: graph for graph in GRAPHS}
BUILT: dict[str, Callable[..., Lifted]] = {
    "chain": lambda **how: LiftedMLP((4, 5, 4, 3), (Tanh(), ReLU()), **how),
    "without a bias": lambda **how: LiftedMLP(
        (4, 5, 2), BY_NAME["without a bias"].network().states[0].activation, SquaredError(),
        bias=(False, True), **how
    ),
    "output states": lambda **how: LiftedMLP((4, 5, 3), ReLU(), SimplexCrossEntropy(), **how),
    "binary labels": lambda **how: LiftedMLP(
        (4, 5, 2), BY_NAME["binary labels"].network().states[0].activation, BinaryCrossEntropy(),
        **how
    ),
    "recurrent": lambda **how: LiftedRNN(2, 3, 3, **how),
}  # fmt: skip
METHODS = ("auto", FullBatch(2), "full", Minibatch(epochs=3, batch_size=5), GaussNewton(2))


def _same(one: Lifted, other: Lifted) -> bool:
    pairs = zip(one.weights, other.weights, strict=True)
    return all(a.stacked().equal(b.stacked()) for a, b in pairs)


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("name", BUILT)
def test_a_builder_and_a_graph_train_the_same(name: str, method: Any) -> None:
    graph: Graph = BY_NAME[name]
    if name == "output states" and isinstance(method, GaussNewton):
        pytest.skip("Gauss-Newton has no output states")
    built = BUILT[name](method=method).fit(graph.x, graph.y)
    declared = Lifted(graph.network(), method=method).fit(graph.x, graph.y)
    assert type(built.checked()[1]) is type(declared.checked()[1])
    assert built.trace is not None and declared.trace is not None
    assert built.trace.objectives[1:] == declared.trace.objectives[1:]
    assert _same(built, declared)


def test_a_deep_one_and_a_recurrent_one_of_both_directions_do_too() -> None:
    x, y = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 2
    deep = LiftedMLP((4, *[6] * 6, 2), Sigmoid())
    assert _same(deep.fit(x, y), Lifted(LiftedMLP((4, *[6] * 6, 2), Sigmoid()).network).fit(x, y))
    sequences = x.reshape(10, 3, 4)
    both = LiftedRNN(4, (3, 2), 2, bidirectional=True, learn_initial_state=True)
    again = Lifted(LiftedRNN(4, (3, 2), 2, bidirectional=True, learn_initial_state=True).network)
    assert _same(both.fit(sequences, y[:10]), again.fit(sequences, y[:10]))


@pytest.mark.parametrize("how", [{"monotonic_cst": [1, 0, -1, 0]}, {"lipschitz": 2.0}], ids=str)
def test_a_shape_is_a_setting_of_chains(how: dict[str, Any]) -> None:
    graph = BY_NAME["without a bias"]
    sizes, loss = (4, 5, 2), SquaredError()
    built = LiftedMLP(sizes, loss=loss, **how)
    declared = Lifted(LiftedMLP(sizes, loss=loss).network, **how)
    assert _same(built.fit(graph.x, graph.y), declared.fit(graph.x, graph.y))
    with pytest.raises(DeclarationError, match="another graph"):
        Lifted(BY_NAME["residual"].network(), **how)


def test_an_estimator_is_the_builder() -> None:
    x, y = BY_NAME["chain"].x, BY_NAME["chain"].y
    found = LiftedClassifier((5,), random_state=0).fit(x.numpy(), y.numpy()).model_
    assert _same(found, LiftedMLP((4, 5, 3)).fit(x, y))
    targets = BY_NAME["without a bias"].y
    found = LiftedRegressor((5,), random_state=0).fit(x.numpy(), targets.numpy()).model_
    assert _same(found, LiftedMLP((4, 5, 2), loss=SquaredError()).fit(x, targets))
    several = LiftedClassifier((5,), random_state=0).fit(x.numpy(), CLASSES.numpy()).model_
    assert _same(several, LiftedMLP((4, 5, 2), loss=BinaryCrossEntropy()).fit(x, CLASSES))


@pytest.mark.parametrize("builder", [LiftedMLP, LiftedRNN, Lifted])
def test_a_builder_shows_every_setting_with_the_one_default(builder: type[Lifted]) -> None:
    shown = inspect.signature(builder).parameters
    for setting in fields(Settings):
        if setting.name != "network":
            assert shown[setting.name].default is setting.default
            assert f"    {setting.name}: " in (builder.__doc__ or "")
    assert "settings" not in shown
    with pytest.raises(TypeError, match="rate"):
        LiftedMLP((2, 2), rate=0.1)


def test_a_network_is_asked_for() -> None:
    with pytest.raises(DeclarationError, match=r"Lifted takes a liftednet\.Network, got tuple"):
        Lifted((4, 5, 3))  # type: ignore[arg-type]
    assert isinstance(Lifted(BY_NAME["chain"].network()).network, Network)
