"""Settings: one default each, whichever way a network is declared, and rho where nobody says."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import pytest

from liftednet import LiftedClassifier, LiftedRegressor
from liftednet.activations import Identity, ReLU, Sigmoid, Softplus, Tanh
from liftednet.divergences import Joint
from liftednet.errors import DeclarationError
from liftednet.layers import dense
from liftednet.losses import BinaryCrossEntropy, CrossEntropy, SimplexCrossEntropy, SquaredError
from liftednet.models import FullBatch, GaussNewton, Lifted, LiftedMLP, LiftedRNN, Minibatch
from liftednet.models.methods.gauss_newton import rhos_of
from liftednet.models.settings import Settings
from liftednet.network import Network
from tests.models.networks import refuses, same_bits, trace_of
from tests.models.registry import BY_NAME, LABELS, ROWS, TARGETS, Graph

BUILT: dict[str, Callable[..., Lifted]] = {
    "chain": partial(LiftedMLP, (4, 5, 4, 3), (Tanh(), ReLU())),
    "without a bias": partial(LiftedMLP, (4, 5, 2), Softplus(), SquaredError(), bias=[False, True]),
    "output states": partial(LiftedMLP, (4, 5, 3), ReLU(), SimplexCrossEntropy()),
    "binary labels": partial(LiftedMLP, (4, 5, 2), Identity(), BinaryCrossEntropy()),
    "recurrent": partial(LiftedRNN, 2, 3, 3),
}


CASES = [
    (name, method)
    for name in BUILT
    for method in ("auto", FullBatch(2), Minibatch(epochs=3, batch_size=5), GaussNewton(2))
    if name != "output states" or isinstance(method, FullBatch | Minibatch)
    if name != "recurrent" or method != "auto"  # which are Gauss-Newton's steps, and many
]


@pytest.mark.parametrize(("name", "method"), CASES, ids=str)
def test_a_builder_and_a_graph_train_the_same(name: str, method: Any) -> None:
    graph: Graph = BY_NAME[name]
    how = {"method": method, "max_iter": 5 if method == "auto" else None}
    built = BUILT[name](**how).fit(graph.x, graph.y)
    declared = Lifted(graph.network(), **how).fit(graph.x, graph.y)
    assert type(built.checked()[1]) is type(declared.checked()[1])
    assert trace_of(built).objectives[1:] == trace_of(declared).objectives[1:]
    assert same_bits(built.weights, declared.weights)


@pytest.mark.parametrize("method", [FullBatch(1), Minibatch(1)], ids=str)
def test_a_warm_start_takes_the_settings_of_now(method: Any) -> None:
    model = LiftedMLP((4, 5, 3), ReLU(), method=method, warm_start=True).fit(ROWS, LABELS)
    model.divergence = "joint"
    (found,) = model.fit(ROWS, LABELS).structure.divergences.values()
    assert isinstance(found, Joint)


@pytest.mark.parametrize("how", [{"monotonic_cst": [1, 0, -1, 0]}, {"lipschitz": 2.0}], ids=str)
def test_a_shape_is_a_setting_of_chains(how: dict[str, Any]) -> None:
    graph = BY_NAME["without a bias"]
    sizes, loss = (4, 5, 2), SquaredError()
    built = LiftedMLP(sizes, loss=loss, max_iter=5, **how)
    declared = Lifted(LiftedMLP(sizes, loss=loss).network, max_iter=5, **how)
    assert same_bits(*(one.fit(graph.x, graph.y).weights for one in (built, declared)))
    refuses(DeclarationError, "another graph", Lifted, BY_NAME["two of each"].network(), **how)


ESTIMATORS = [
    (LiftedClassifier, LABELS, LiftedMLP((4, 5, 3), max_iter=5)),
    (LiftedRegressor, TARGETS, LiftedMLP((4, 5, 2), loss=SquaredError(), max_iter=5)),
]


@pytest.mark.parametrize(("kind", "targets", "builder"), ESTIMATORS)
def test_an_estimator_is_the_builder(kind, targets, builder) -> None:
    found = kind((5,), random_state=0, max_iter=5).fit(ROWS.numpy(), targets.numpy()).model_
    assert same_bits(found.weights, builder.fit(ROWS, targets).weights)


@pytest.mark.parametrize("builder", [LiftedMLP, LiftedRNN, Lifted])
def test_a_builder_shows_every_setting_with_the_one_default(builder: type[Lifted]) -> None:
    shown = inspect.signature(builder).parameters
    for setting in fields(Settings):
        if setting.name != "network":
            assert shown[setting.name].default is setting.default
            assert f"    {setting.name}: " in (builder.__doc__ or "")
    assert "settings" not in shown
    refuses(TypeError, "rate", LiftedMLP, (2, 2), rate=0.1)
    refuses(DeclarationError, r"LiftedMLP takes .* liftednet\.lift a torch", Lifted, (4, 5, 3))


FLAT = 0.25**2  # phi' of a sigmoid is at most 1/4


MEASURED = [
    (LiftedMLP((4, 5, 5, 3), Sigmoid()), [FLAT, FLAT, 1.0]),
    (LiftedMLP((4, 5, 5, 3), [Sigmoid(), Tanh()]), [FLAT, 1.0, 1.0]),
    (LiftedMLP((4, 5, 5, 3), ReLU()), [1.0, 1.0, 1.0]),
    (LiftedMLP((4, 5, 3), Sigmoid(), rho=2.0), [2.0, 2.0]),
    (LiftedMLP((4, 5, 3), Sigmoid(), rho=[2.0, 3.0]), [2.0, 3.0]),
    (LiftedRNN(4, 5, 3, activation=Sigmoid()), [3 * FLAT, 3.0]),
]


@pytest.mark.parametrize(("model", "expected"), MEASURED)
def test_rho_is_measured_by_what_a_layer_passes_on(model: Lifted, expected: list[float]) -> None:
    assert rhos_of(model.checked()[0]) == pytest.approx(expected)


def test_weights_that_are_shared_have_the_rho_of_the_steepest() -> None:
    network = Network()
    shared = dense(network.input(4), 4)
    flat = network.state(Sigmoid(), shared)
    steep = network.state(Tanh(), dense(flat, 4, weights=shared.weights))
    network.loss(CrossEntropy(), dense(steep, 3))
    assert rhos_of(Lifted(network).checked()[0]) == [1.0, 1.0]
