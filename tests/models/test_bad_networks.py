"""Networks that cannot be: refused before anything changes, with what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import pytest
import torch

from liftednet import Network
from liftednet.activations import MaxPooling, ReLU, Sigmoid, Tanh
from liftednet.errors import DataError, DeclarationError, LiftedError
from liftednet.layers import Layer, apply, concatenate, delay, dense, reverse
from liftednet.losses import CrossEntropy, SimplexCrossEntropy, SquaredError
from liftednet.models import FullBatch, GaussNewton, Lifted, LiftedMLP
from liftednet.penalties import L1, Declared, Nonnegative, SpectralNorm, SquaredFrobenius
from tests.models.networks import labeled

X, Y = labeled()


def _cycle() -> Network:
    network = Network()
    x = network.input(4)
    h = network.state(ReLU(), units=3, sequence=False)
    g = network.state(ReLU(), dense(h, 3))
    h.of(dense(concatenate(g, x), 3))
    network.loss(CrossEntropy(), dense(g, 3))
    return network


def _both_ways() -> Network:
    network = Network()
    x = network.input(4, sequence=True)
    h = network.state(ReLU(), units=4)
    h.of(dense(concatenate(delay(h), reverse(delay(h)), x), 4))
    network.loss(CrossEntropy(), dense(h, 3))
    return network


def _without_a_loss() -> Network:
    network = Network()
    network.state(ReLU(), dense(network.input(4), 3))
    return network


def _without_pre_activations() -> Network:
    network = Network()
    x = network.input(4)
    h = network.state(ReLU(), units=4, sequence=False)
    network.loss(CrossEntropy(), dense(h + x, 3))
    return network


def _foreign() -> Network:
    other = Network()
    h = other.state(ReLU(), dense(other.input(4), 4))
    network = Network()
    network.loss(CrossEntropy(), dense(network.input(4) + h, 3))
    return network


def _output_states_below() -> Network:
    network = Network()
    network.loss(SimplexCrossEntropy(), dense(network.input(4), 3))
    network.loss(CrossEntropy(), dense(network.states[0], 3))
    return network


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (_cycle, ["states 1", "states 2", "without a delay"]),
        (_both_ways, ["states 1", "Reverse", "delays"]),
        (_without_a_loss, ["an input and a loss"]),
        (_without_pre_activations, ["states 1", "no pre-activations"]),
        (_foreign, ["another network"]),
        (_output_states_below, ["states 1", "loss of its own"]),
    ],
)
def test_graphs_that_cannot_be_are_refused_at_the_door(network, words):
    with pytest.raises(DeclarationError) as caught:
        Lifted(network())
    for word in words:
        caught.match(word)


def _square(network: Network) -> Any:
    h = network.state(ReLU(), dense(network.input(4), 3))
    return h * h


def _through_weights(network: Network) -> Any:
    h = network.state(ReLU(), dense(network.input(4), 3))
    gate = dense(h, 3)
    return gate * (1 - gate)


def _weights_twice(network: Network) -> Any:
    x = network.input(4)
    first = dense(x, 4)
    return dense(first, 4, weights=first.weights)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (_square, ["Product", "states 1", "state of its own"]),
        (_through_weights, ["Product", "state of its own"]),
    ],
)
def test_a_variable_in_both_factors_of_a_product_is_refused(build, words):
    with pytest.raises(DeclarationError) as caught:
        build(Network())
    for word in words:
        caught.match(word)


def test_weights_that_stand_twice_in_one_path_are_refused_before_a_fit():
    network = Network()
    with pytest.raises(DeclarationError, match="weights"):
        network.loss(CrossEntropy(), dense(_weights_twice(network), 3))
        Lifted(network)


@dataclass(frozen=True)
class _Bent(Layer):
    """x^2, which is no layer."""

    def shape(self, *shapes):
        return shapes[0]

    def value(self, arguments, weights):
        return arguments[0] ** 2


def test_a_layer_that_is_not_affine_is_refused_at_the_door():
    network = Network()
    h = network.state(Tanh(), dense(network.input(4), 3))
    network.state(ReLU(), apply(_Bent(), h))
    network.loss(CrossEntropy(), dense(network.states[1], 3))
    with pytest.raises(DeclarationError, match=r"_Bent.*not affine"):
        Lifted(network)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda n, x, s: n.state(ReLU(), units=3, sequence=False).of(dense(x, 4)),
         ["states 1", r"\(3,\)", r"\(4,\)"]),
        (lambda n, x, s: n.state(ReLU(), units=3).of(dense(x, 3)), ["states 1", "sequence"]),
        (lambda n, x, s: n.state(MaxPooling(2), dense(x, 3)), ["MaxPooling", "maximum"]),
        (lambda n, x, s: n.maximum(dense(x, 3), dense(x, 4)), [r"\(3,\)", r"\(4,\)"]),
        (lambda n, x, s: n.maximum(), ["maximum needs"]),
        (lambda n, x, s: n.state(ReLU(), dense(x, 3), lam=0.0), ["lam", "positive"]),
        (lambda n, x, s: n.state(ReLU(), dense(x, 3), bounds=(1.0, 0.0)), ["bound"]),
        (lambda n, x, s: n.state(torch.relu, dense(x, 3)), ["Activation"]),
        (lambda n, x, s: n.state(ReLU(), 3), ["pre-activations|expression"]),
        (lambda n, x, s: n.loss("squares", dense(x, 3)), ["loss"]),
        (lambda n, x, s: n.loss(CrossEntropy(), dense(x, 3), weight=-1.0), ["weight"]),
        (lambda n, x, s: n.loss(SimplexCrossEntropy(), dense(x, 3), activation=Sigmoid()),
         ["Sigmoid"]),
        (lambda n, x, s: n.input(0), ["sizes"]),
    ],
)  # fmt: skip
def test_declarations_that_do_not_fit_are_refused_on_the_spot(build, words):
    network = Network()
    x, sequence = network.input(4), network.input(4, sequence=True)
    with pytest.raises(LiftedError) as caught:
        build(network, x, sequence)
    for word in words:
        caught.match(word)
    assert not network.terms


def _model(**options: Any) -> Callable[[], LiftedMLP]:
    return lambda: LiftedMLP((4, 5, 3), **options)


def _infeasible() -> Declared:
    return Declared(lambda w: cp.sum_squares(w), lambda w: [w >= 1, w <= 0])


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (_model(penalty=L1(0.1), method=GaussNewton()), ["gauss-newton", "L1"]),
        (_model(penalty=SquaredFrobenius(0.1) + SpectralNorm(), method="gauss-newton"),
         ["gauss-newton", "SpectralNorm"]),
        (_model(penalty=[L1(0.1)]), ["penalty", "2", "1"]),
        (_model(penalty="l1"), ["penalty", "l1"]),
        (_model(penalty=_infeasible()), ["infeasible|no weights|feasible"]),
        (_model(penalty=_infeasible(), method="full"), ["infeasible|no weights|feasible"]),
    ],
)  # fmt: skip
def test_penalties_that_cannot_be_held_are_refused_at_the_door(model, words):
    with pytest.raises(LiftedError) as caught:
        model()
    for word in words:
        caught.match(word)


def test_a_setting_that_does_not_fit_is_refused_at_the_next_fit_and_changes_nothing():
    model = LiftedMLP((4, 5, 3), method="full", dtype=torch.float64).fit(X, Y)
    before = model.objective()
    for name, value in (
        ("penalty", [L1(0.1)]), ("method", "all"), ("lam", -1.0), ("divergence", "loose"),
        ("solver", "magic"), ("penalty", _infeasible()),
    ):  # fmt: skip
        kept = getattr(model, name)
        setattr(model, name, value)
        with pytest.raises(LiftedError):
            model.fit(X, Y)
        setattr(model, name, kept)
        assert model.objective() == before


def test_data_for_several_inputs_are_named():
    network = Network()
    x, z = network.input(4), network.input(2)
    network.loss(CrossEntropy(), dense(concatenate(x, z), 3))
    network.loss(SquaredError(), dense(z, 1))
    model = Lifted(network, method="full")
    both, targets = (X, X[:, :2]), (Y, X[:, :1])
    for given, wanted, words in (
        (X, targets, ["X", "input 1, input 2"]),
        ((X, X[:, :3]), targets, [r"\(samples, 2\)", r"\(30, 3\)"]),
        ((X, X[:5, :2]), targets, ["30", "5"]),
        (both, Y, ["y", "y 1, y 2"]),
        (both, (Y, X[:, :2]), [r"\(30, 2\)"]),
    ):
        with pytest.raises(DataError) as caught:
            model.fit(given, wanted)
        for word in words:
            caught.match(word)
        assert not model.is_fitted


def test_a_warm_start_is_brought_to_a_new_constraint():
    x, y = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3
    model = LiftedMLP((4, 5, 3), method=FullBatch(5), warm_start=True).fit(x, y)
    model.penalty = Nonnegative(1e-3)
    assert min(float(layer.matrix.min()) for layer in model.fit(x, y).weights) >= 0


def test_shared_weights_take_no_second_penalty():
    x = Network().input(4)
    with pytest.raises(DeclarationError, match="shared"):
        dense(x, 4, weights=dense(x, 4).weights, penalty=Nonnegative())
