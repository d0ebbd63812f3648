"""Shapes that are held in training."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import Tensor

from liftednet import LiftedClassifier, LiftedRegressor, Network, certify, load, penalties, save
from liftednet.activations import MaxPooling, ReLU, Tanh
from liftednet.errors import DataError, DeclarationError
from liftednet.layers import dense
from liftednet.losses import SquaredError
from liftednet.models import FullBatch, Lifted, LiftedMLP, Minibatch, input_convex
from liftednet.models.settings import Penalties
from liftednet.penalties import Penalty
from tests.models.networks import refuses

X = torch.rand(240, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1, 10, 100.0])
Y = (X[:, :1] * X[:, 1:2]).sqrt() - X[:, 2:] / 50


def test_a_score_that_is_monotone_is_as_good_and_stays_so_in_a_file(tmp_path):
    inputs, target = load_diabetes(return_X_y=True)
    x, rest = inputs[:300].astype("float32"), inputs[300:].astype("float32")
    y, expected = target[:300].astype("float32"), target[300:]
    free, score = (
        LiftedRegressor((15,), random_state=0, monotonic_cst=asked, max_iter=20).fit(x, y)
        for asked in (None, [0, 0, 1, 1, 0, 0, 0, 0, 1, 0])
    )
    assert score.score(rest, expected) >= free.score(rest, expected) - 0.01
    assert certify(score.model_).increasing == (2, 3, 8)
    assert certify(free.model_).increasing == ()
    again = load(save(score.model_, tmp_path / "score.safetensors"))
    assert certify(again.fit(x, y[:, None])).increasing == (2, 3, 8)
    refuses(DataError, "each of 10 inputs", LiftedRegressor((5,), monotonic_cst=[1]).fit, x, y)


INTERACTIONS = [
    ([{0}, {1, 2}], [(0, 1), (0, 2)]), ("no_interactions", [(0, 1), (0, 2), (1, 2)]),
    ([[0, 2], [1, 2]], [(0, 1)]), ([{"b", "c"}], [(0, 1), (0, 2)]), ("pairwise", []),
]  # fmt: skip


@pytest.mark.parametrize(("allowed", "apart"), INTERACTIONS)
def test_inputs_interact_as_allowed_at_every_input(allowed: Any, apart: Any) -> None:
    frame = pd.DataFrame(X.double().numpy(), columns=["a", "b", "c"])
    model = LiftedRegressor((8, 8), "tanh", interaction_cst=allowed, random_state=0, max_iter=8)
    model.fit(frame, Y[:, 0].numpy())

    def off(i: int, j: int) -> Tensor:  # what vanishes where f = g(x without i) + h(x without j)
        def at(*inputs: int) -> Tensor:
            points = X.double().clone()
            points[:, inputs] += points.std(0)[list(inputs)]
            return torch.as_tensor(model.model_.scores(points))

        return (at(i, j) - at(i) - at(j) + at()).abs().max()

    for pair in [(0, 1), (0, 2), (1, 2)]:
        assert (off(*pair) < 1e-10) == (pair in apart)
    assert off(0, 1) > 1e-3 or (0, 1) in apart


FILES: list[tuple[dict[str, Any], dict[str, Any]]] = [  # a shape, and how it is kept
    ({"convex": True}, {"convex": True}),
    ({"convex": {"a": 1, "b": -1}}, {"convex": (1, -1, 0)}),
    (
        {"interaction_cst": [{"b", "c"}], "monotonic_cst": {"a": 1}},
        {"interaction_cst": (("b", "c"),), "monotonic_cst": (1, 0, 0)},
    ),
    ({"lipschitz": 2.0}, {"lipschitz": 2.0}),
]


@pytest.mark.parametrize(("shape", "kept"), FILES)
def test_a_file_keeps_shapes_of_sets_and_of_names(shape: Any, kept: Any, tmp_path: Path) -> None:
    x, y = pd.DataFrame(X.double().numpy(), columns=["a", "b", "c"]), (X**2).sum(1).numpy()
    model = LiftedRegressor((12, 6), **shape, max_iter=5, random_state=0).fit(x, y)
    again, facts = load(save(model, tmp_path / "shape.lnet")), certify(model)
    assert {name: getattr(again, name) for name in kept} == kept
    assert str(certify(again)) == str(facts)
    assert np.array_equal(again.predict(x), model.predict(x))
    again.fit(x, y)
    assert np.array_equal(again.predict(x), model.predict(x))
    assert facts.convex.all() == (shape.get("convex") is True)
    assert facts.lipschitz <= shape.get("lipschitz", np.inf)


def test_an_estimator_bends_in_single_inputs_as_asked_and_is_as_good(draw) -> None:
    frame = pd.DataFrame(draw.random((900, 4)), columns=["dose", "age", "time", "size"])
    x = frame.to_numpy()
    truth = 3 * (x[:, 0] - 0.5) ** 2 * (1 + x[:, 3]) + np.sqrt(x[:, 1]) + np.sin(6 * x[:, 2])
    y = truth + 0.1 * draw.normal(size=900)
    asked: dict[str, Any] = {"convex": {"dose": 1, "age": -1}, "monotonic_cst": {"age": 1}}
    off = []
    for shape in (dict[str, Any](), asked):
        model = LiftedRegressor(random_state=0, max_iter=30, **shape).fit(frame[:300], y[:300])
        off.append(float(np.mean((model.predict(frame[300:]) - truth[300:]) ** 2)))
    assert off[1] < 1.1 * off[0]
    facts = certify(model)
    assert facts.convex_in[0].tolist() == [True, False, False, False]
    assert facts.concave_in[0, 1] and facts.increasing == (1,)
    assert "output 0 is convex in 1 of 4 inputs: dose" in str(facts)


def test_losses_with_states_of_their_own_have_shapes_without_settings(draw) -> None:
    x = draw.uniform(-1, 1, (120, 2))
    y = x[:, 0] ** 2 + x[:, 1] + 0.1 * draw.normal(size=120)
    asked: dict[str, Any] = {"convex": [1, 0], "monotonic_cst": [0, 1]}
    fitted = LiftedRegressor(loss="huber:0.2", random_state=0, max_iter=20, **asked).fit(x, y)
    facts = certify(fitted)
    assert bool(facts.convex_in[0, 0]) and 1 in facts.increasing


def test_the_probability_of_the_second_class_is_monotone():
    x = pd.DataFrame({"a": X[:, 0], "b": X[:, 1]})
    labels = ["yes" if one > two / 10 else "no" for one, two in zip(x.a, x.b, strict=True)]
    for hidden in ((8, 4), None):
        given: dict[str, Any] = {"monotonic_cst": {"a": 1, "b": -1}, "random_state": 0}
        found = LiftedClassifier(hidden, max_iter=20, **given)
        assert found.fit(x, labels).score(x, labels) > 0.95
        facts = certify(found.model_)
        assert bool((facts.lowest[1, 0] >= 0) & (facts.highest[1, 1] <= 0))
        exact = found.model_.forward(X[:, :2]).numpy()  # means over weights would not be monotone
        assert np.array_equal(found.predict_proba(x), exact)


def test_signs_are_held_at_every_step_of_full_batches():
    method = FullBatch(sweeps=2)  # which goes ahead between sweeps
    model = LiftedMLP((3, 6, 6, 1), loss=SquaredError(), monotonic_cst=[1, 0, -1], method=method)
    seen = []

    def told(step):
        pairs = zip(model.structure.parameters, model._known.weights, strict=True)
        seen.append(max(model.structure.penalties[p].violation(w.matrix) for p, w in pairs))

    model.fit(X, Y, on_step=told)
    assert len(seen) > 5 and max(seen) == 0


def regression(**shape):
    return LiftedMLP((3, 4, 1), loss=SquaredError(), **shape)


def bent_graph() -> Network:
    """Return a chain with a penalty of its own, which keeps nothing convex."""
    network = Network()
    hidden = network.state(ReLU(), dense(network.input(3), 4, penalty=penalties.L1(0.1)))
    network.loss(SquaredError(), dense(hidden, 1))
    return network


IMPOSSIBLE = [
    (lambda: regression(monotonic_cst=[1, 0]), "each of 3 inputs"),
    (lambda: regression(monotonic_cst=[[1, 0, 0]]), "each of 3 inputs"),
    (lambda: regression(interaction_cst="all"), "no_interactions"),
    (lambda: regression(interaction_cst=[{3}]), "0 to 2"),
    (lambda: LiftedMLP((3, 2, 1), interaction_cst="pairwise"), "3 groups .* 2 units"),
    (lambda: regression(convex=True, monotonic_cst=[1, 0, 0]), "another graph"),
    (lambda: regression(convex=True, skip=True), "leave them out"),
    (lambda: regression(monotonic_cst=[1, 0, 2]), "1, -1 or 0"),
    (lambda: regression(convex=[1, 0, 2]), "convex needs 1, -1 or 0 for each of 3 inputs"),
    (lambda: regression(convex=[1, -1, 0], activations=Tanh()), "one of ELU"),
    (
        lambda: LiftedMLP((3, 2, 1), loss=SquaredError(), convex=[1, -1, 0]),
        "3 kinds of units, and a hidden layer has 2: give it 3",
    ),
    (lambda: Lifted(regression().network, convex=True), "input_convex"),
    (lambda: Lifted(bent_graph(), convex=True), "input_convex"),
    (lambda: LiftedMLP((3, 4, 3), monotonic_cst=[1, 0, 0]), "3 classes"),
    (
        lambda: regression(activations=MaxPooling(), monotonic_cst=[1, 0, 0]),
        "chains of dense layers",
    ),
    (lambda: input_convex((3, 4, 1), Tanh()), "one of ELU"),
    (lambda: input_convex((3, 1)), "hidden"),
    (lambda: regression(lipschitz=1.0, method="gauss-newton"), "Gauss-Newton"),
]


@pytest.mark.parametrize(("make", "message"), IMPOSSIBLE)
def test_a_shape_that_cannot_be_held_is_refused(make, message):
    refuses((DataError, DeclarationError), message, make)


CONSTRAINTS = [
    penalties.Nonnegative(), penalties.Orthogonal(), penalties.ColumnNorm(1.0),
    penalties.SpectralNorm(1.0),
    penalties.FixedZeros(torch.eye(20)) + penalties.Signs(torch.ones(1, 1)),
]  # fmt: skip


@pytest.mark.parametrize("penalty", CONSTRAINTS, ids=lambda penalty: type(penalty).__name__)
def test_constraints_train_from_the_default_start(penalty: Penalty):
    """Three layers learn the digits of `load_digits` under every constraint, held to rounding."""
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
    ridge = penalties.SquaredFrobenius(0.1)
    given: Penalties = [ridge, *[ridge + penalty if penalty.convex else penalty] * 2, ridge]
    model = LiftedMLP((64, 20, 20, 20, 10), penalty=given, method=Minibatch(epochs=15))
    model.fit(x[:1200], y[:1200])
    assert all(penalty.violation(layer.matrix) < 2e-6 for layer in model.weights[1:3])
    assert float((model.predict(x[1200:]) == y[1200:]).float().mean()) > 0.8


def steep() -> tuple[Tensor, Tensor]:
    """Return features of unlike scales, and a target as steep as 30."""
    rows = X[:60] * torch.tensor([1.0, 1.0, 0.005]) + 4
    return rows, 20 * (3 * rows[:, :1]).sin() + rows[:, 1:2]


def steepest(model: Lifted, rows: Tensor) -> float:
    """Return the largest quotient over pairs of rows."""
    scores = model.scores(rows)
    return float((torch.cdist(scores, scores) / torch.cdist(rows, rows).clamp(min=1e-3)).max())


@pytest.mark.parametrize("method", [Minibatch(epochs=20), FullBatch(2)])
def test_the_bound_is_held_on_raw_data_and_certified(method: Minibatch | FullBatch) -> None:
    rows, target = steep()
    sizes = (3, 12, 12, 1)
    free = LiftedMLP(sizes, loss=SquaredError(), method=method).fit(rows, target)
    assert certify(free).lipschitz > 4
    held = LiftedMLP(sizes, loss=SquaredError(), method=method, lipschitz=4.0).fit(rows, target)
    assert certify(held).lipschitz <= 4.0
    assert 0.5 < steepest(held, rows) <= 4.0 + 1e-4


def test_the_scores_of_a_classifier_are_no_steeper_than_asked() -> None:
    rows, target = steep()
    classifier = LiftedClassifier((8,), lipschitz=0.5, random_state=0, max_iter=5)
    classifier.fit(rows.numpy(), target[:, 0].numpy() > float(target.mean()))
    assert steepest(classifier.model_, rows) <= 0.5 + 1e-4
