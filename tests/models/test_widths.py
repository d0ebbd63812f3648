"""Hidden layers with more units for a while: the same scores, and the units that do most."""

from __future__ import annotations

from typing import Any

import torch

from liftednet import Network
from liftednet.activations import ReLU, Tanh
from liftednet.constraints import Bounds, Budget, Linear
from liftednet.layers import concatenate, dense
from liftednet.layers.expression import value_of
from liftednet.losses import SquaredError
from liftednet.models import Lifted, LiftedMLP, Minibatch
from liftednet.models.constraints import Widths
from liftednet.penalties import L1, SquaredFrobenius
from liftednet.samples import Weights

X = torch.randn(30, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def skipping(penalty=None) -> Network:
    """Two hidden layers, of which the last layer sees both, and the inputs between."""
    network = Network()
    x = network.input(3)
    first = network.state(ReLU(), dense(x, 4))
    second = network.state(Tanh(), dense(first, 5, penalty=penalty))
    network.loss(SquaredError(), dense(concatenate(first, x, second), 2))
    return network


def widths(network: Network):
    structure = Lifted(network, dtype=torch.float64).checked()[0]
    generator = torch.Generator().manual_seed(1)
    weights = {}
    for p in structure.parameters:
        shape = p.shape[0] + 1, p.shape[1]
        weights[p] = torch.randn(*shape, generator=generator, dtype=torch.float64)
        weights[p][-1] = 1.0  # no unit is dead

    def passed(stacked):
        known = {p: Weights(w[:-1], w[-1]) for p, w in stacked.items()}
        values = structure.passed({network.inputs[0]: X, **known})
        return values, value_of(network.terms[0].argument, values)

    return Widths(structure), weights, passed, generator


def test_more_units_leave_the_scores_as_they_are_and_fewer_bring_the_weights_back() -> None:
    held, weights, passed, generator = widths(skipping())
    wide = held.more(weights, 3.0, generator)
    assert [w.shape for w in wide.values()] == [(4, 12), (13, 15), (12 + 3 + 15 + 1, 2)]
    values, scores = passed(wide)
    torch.testing.assert_close(scores, passed(weights)[1])
    back = held.fewer(wide, values, 1.0)  # what no layer sees does nothing
    for before, after in zip(weights.values(), back.values(), strict=True):
        torch.testing.assert_close(after, before)


def test_units_that_do_least_are_left_out() -> None:
    held, weights, passed, _ = widths(skipping())
    first, second, last = weights.values()
    second[1], last[1] = 1e-9, 1e-9  # unit 1 of the first layer, of which nothing is seen
    first[:-1, 2], first[-1, 2] = 0.0, 5.0  # unit 2, which is constant
    values, _ = passed(weights)
    left = list(held.fewer(weights, values, 0.5).values())
    torch.testing.assert_close(left[0], first[:, [0, 3]])
    assert [w.shape for w in left] == [(4, 2), (3, 2), (2 + 3 + 2 + 1, 2)]


def test_layers_with_other_penalties_keep_their_units() -> None:
    held, weights, _, generator = widths(skipping(L1(0.1)))
    assert not held
    assert all(held.more(weights, 3.0, generator)[p] is w for p, w in weights.items())
    assert widths(skipping(SquaredFrobenius(0.1)))[0]
    assert not widths(skipping(SquaredFrobenius(0.1, torch.zeros(4, 5))))[0]


def test_a_fit_under_constraints_ends_with_the_networks_own_units() -> None:
    y = X[:, :1].square() + X[:, 1:2]
    model = LiftedMLP((3, 6, 1), loss=SquaredError(), dtype=torch.float64, seed=3)
    model.method = Minibatch(epochs=5)
    reached = []

    def stop(step: Any) -> None:
        if step.solver == "augmented-lagrangian":
            reached.append([tuple(w.matrix.shape) for w in model.weights])
            raise KeyboardInterrupt

    model.fit(X, y, constraints=[Budget(0.2)], on_step=stop)
    assert reached == [[(3, 6), (6, 1)]]
    model.fit(X, y, constraints=[Budget(0.2)])
    assert [tuple(w.matrix.shape) for w in model.weights] == [(3, 6), (6, 1)]
    assert float(model.scores(X).mean()) <= 0.2 + 1e-9


def behind_a_projection(method: Any = "auto", on_step: Any = None) -> Lifted:
    """Two flows that sum to one and are not negative, with a rho of one's own."""
    network = Network()
    h = network.state(ReLU(), dense(network.input(3), 6))
    limits = [Linear(torch.ones(2), equal=1.0), Bounds(lower=0.0)]
    network.loss(SquaredError(), dense(h, 2), within=limits)
    share = torch.sigmoid(3 * X[:, 0] * X[:, 1] + X[:, 2])
    model = Lifted(network, method=method, rho=0.01, dtype=torch.float64, seed=3)
    return model.fit(X, torch.stack([share, 1 - share], 1), on_step=on_step)


def test_a_network_behind_a_projection_ends_lower_and_within_its_limits() -> None:
    found, before = behind_a_projection(), behind_a_projection(Minibatch())
    assert found.trace is not None and before.trace is not None
    assert found.trace.steps[-1].solver == "augmented-lagrangian"
    assert before.trace.steps[-1].solver == "minibatch"  # what was asked for
    assert found.objective() < before.objective()
    assert [tuple(w.matrix.shape) for w in found.weights] == [(3, 6), (6, 2)]
    scores = found.scores(5 * X.flip(0) + 1)
    torch.testing.assert_close(scores.sum(1), torch.ones(30).double(), atol=1e-12, rtol=0)
    assert float(scores.min()) >= -1e-12


def test_an_interrupt_with_more_units_leaves_the_networks_own() -> None:
    def stop(step: Any) -> None:
        if step.solver == "augmented-lagrangian":
            raise KeyboardInterrupt

    model = behind_a_projection(on_step=stop)
    assert model.interrupted
    assert [tuple(w.matrix.shape) for w in model.weights] == [(3, 6), (6, 2)]
