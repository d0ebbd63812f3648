"""Networks whose forward pass meets constraints; hidden layers with more units for a while."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes

from liftednet import DataError, LiftedClassifier, LiftedRegressor, Network, SolverError, to_torch
from liftednet.activations import ReLU, Tanh
from liftednet.constraints import Bounds, Budget, GroupMeans, Linear, Order, Values, violations
from liftednet.layers import concatenate, dense
from liftednet.layers.expression import value_of
from liftednet.losses import BinaryCrossEntropy, SquaredError
from liftednet.models import Lifted, LiftedMLP, Minibatch
from liftednet.models.constraints import Widths
from liftednet.penalties import L1, Nonnegative, SquaredFrobenius
from liftednet.samples import Weights

QUICK = Minibatch(epochs=20)
CANCER = [part[:120] for part in load_breast_cancer(return_X_y=True)]
SIZE = (CANCER[0][:, 0] > 14).astype(int)
DIABETES = [part[:100] for part in load_diabetes(return_X_y=True)]


def pairs(x, count: int):
    """Return pairs of whom the second is higher in three features."""
    higher = (x[:, None, [2, 3, 8]] < x[None][:, :, [2, 3, 8]]).all(-1)
    return np.random.default_rng(0).permutation(np.argwhere(higher))[:count]


def test_an_exported_classifier_has_equal_mean_scores() -> None:
    x, y = CANCER
    fair = GroupMeans(SIZE, 0.1)
    plain = LiftedMLP((30, 8, 1), loss=BinaryCrossEntropy(), dtype=torch.float64, method=QUICK)
    apart = fair.violation(plain.fit(x, y.astype(float)).scores(x))
    assert apart > 1.0
    model = LiftedMLP((30, 8, 1), loss=BinaryCrossEntropy(), dtype=torch.float64, method=QUICK)
    model.fit(x, y.astype(float), constraints=[fair])
    assert fair.violation(to_torch(model, logits=True)(torch.from_numpy(x))) <= 1e-9
    report = model.constraint_report()
    assert report.violations[0] <= 1e-9
    assert report.gap <= 1e-6
    assert report.residual <= 1e-8
    assert "violation" in str(report)
    assert model.trace
    assert model.trace.steps[-1].solver == "augmented-lagrangian"


def test_the_price_of_a_budget_is_known_where_the_bias_is_free() -> None:
    """Stationary in the bias: the price is the sum of what targets are above the outputs."""
    x, y = DIABETES
    model = LiftedMLP((10, 4, 1), loss=SquaredError(), dtype=torch.float64, method=QUICK)
    model.fit(x, y, constraints=[Budget(120.0)])
    price = float(model.constraint_report().prices[0])
    assert price == pytest.approx(len(y) * (y.mean() - 120) / y.var(), rel=1e-7)
    short = float(y.sum() - model.scores(x).sum()) / y.var()
    assert price == pytest.approx(short, rel=1e-7)


def test_order_is_held_at_less_loss_than_by_the_last_layer_alone() -> None:
    x, y = DIABETES
    order = Order(pairs(x, 40))
    held = LiftedMLP((10, 8, 1), loss=SquaredError(), dtype=torch.float64, method=QUICK)
    held.fit(x, y, constraints=[order])
    penalty = [SquaredFrobenius(1.0), SquaredFrobenius(1.0) + Nonnegative()]
    rough = LiftedMLP((10, 8, 1), loss=SquaredError(), dtype=torch.float64, penalty=penalty,
                      method=QUICK).fit(x, y, constraints=[order])  # fmt: skip
    assert max(order.violation(m.scores(x)) for m in (held, rough)) <= 1e-6
    assert bool((rough.weights[-1].matrix >= -1e-9).all())  # by CVXPY, with the constraint
    assert rough.constraint_report().solver == "reference"
    assert held.objective() < rough.objective()
    sparse = LiftedMLP((10, 8, 1), loss=SquaredError(), dtype=torch.float64, method=QUICK)
    sparse.penalty = L1(0.1)  # no weight with a smooth penalty: the last layer alone is held
    assert order.violation(sparse.fit(x, y, constraints=[order]).scores(x)) <= 1e-6
    exact = Values([3, 5], [100.0, 200.0])
    held.fit(x, y, constraints=[exact, Bounds(50.0, 300.0)])
    scores = held.scores(x)
    torch.testing.assert_close(scores[[3, 5], 0], torch.tensor([100.0, 200.0]).double())
    assert float(scores.min()) >= 50 - 1e-9
    assert float(scores.max()) <= 300 + 1e-9


def mass_model(skip: bool) -> Lifted:
    network = Network()
    x = network.input(4)
    h = network.state(ReLU(), dense(x, 8))
    network.loss(SquaredError(), dense(concatenate(h, x) if skip else h, 3))
    return Lifted(network, dtype=torch.float64, method=QUICK)


def test_mass_is_conserved_on_other_samples_too_where_it_is_affine_in_the_inputs() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(160, 4, generator=generator, dtype=torch.float64)
    total = 3 + 2 * x[:, 0]
    shares = torch.softmax(3 * torch.sin(3 * x[:, 1:]), 1)
    y = total[:, None] * shares + 0.1 * torch.randn(160, 3, generator=generator).double()
    train, test = slice(100), slice(100, None)
    constraints = [Linear([1.0, 1.0, 1.0], equal=total[train]), Bounds(lower=0.0)]
    model = mass_model(skip=True).fit(x[train], y[train], constraints=constraints)
    assert max(violations(constraints, model.scores(x[train]))) <= 1e-9
    torch.testing.assert_close(model.forward(x[test]).sum(1), total[test], atol=1e-9, rtol=0)
    with pytest.raises(SolverError, match="joined to the last layer's inputs"):
        mass_model(skip=False).fit(x[train], y[train], constraints=constraints)


def test_other_methods_and_weights_of_samples_are_held_too() -> None:
    x, y = CANCER
    fair, weights = GroupMeans(SIZE, 0.1), np.linspace(0, 1, len(x))
    for method in ("full", "gauss-newton"):
        model = LiftedMLP((30, 4, 1), loss=BinaryCrossEntropy(), method=method)
        model.dtype = torch.float64
        model.fit(x, y.astype(float), sample_weight=weights, constraints=[fair])
        assert model.constraint_report().violations[0] <= 1e-9
    model.fit(x, y.astype(float))
    with pytest.raises(Exception, match="fitted without constraints"):
        model.constraint_report()


def test_estimators_take_constraints() -> None:
    x, y = CANCER[0].astype(np.float32), CANCER[1]
    fair = GroupMeans(SIZE, 0.1)
    classifier = LiftedClassifier((8,), max_iter=20, random_state=0).fit(x, y, constraints=[fair])
    assert fair.violation(classifier.model_.scores(x)) <= 1e-4  # as float32 rounds
    x, y = DIABETES
    budget = Budget(120.0)
    regressor = LiftedRegressor((8,), max_iter=20, random_state=0).fit(x, y, constraints=[budget])
    assert float(np.mean(regressor.predict(x))) <= 120 + 1e-8
    with pytest.raises(DataError, match="is of 120 samples"):
        regressor.fit(x, y, constraints=[fair])


def test_an_interrupt_leaves_a_model_that_meets_them() -> None:
    x, y = CANCER
    fair = GroupMeans(SIZE, 0.1)

    def stop(step) -> None:
        if step.solver == "augmented-lagrangian":
            raise KeyboardInterrupt

    model = LiftedMLP((30, 8, 1), loss=BinaryCrossEntropy(), dtype=torch.float64, method=QUICK)
    model.fit(x, y.astype(float), constraints=[fair], on_step=stop)
    assert model.trace
    assert model.trace.ending.name == "INTERRUPTED"
    assert fair.violation(model.scores(x)) <= 1e-9


ROWS = torch.randn(30, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


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
        values = structure.passed({network.inputs[0]: ROWS, **known})
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
    y = ROWS[:, :1].square() + ROWS[:, 1:2]
    model = LiftedMLP((3, 6, 1), loss=SquaredError(), dtype=torch.float64, seed=3)
    model.method = Minibatch(epochs=5)
    reached = []

    def stop(step: Any) -> None:
        if step.solver == "augmented-lagrangian":
            reached.append([tuple(w.matrix.shape) for w in model.weights])
            raise KeyboardInterrupt

    model.fit(ROWS, y, constraints=[Budget(0.2)], on_step=stop)
    assert reached == [[(3, 6), (6, 1)]]
    model.fit(ROWS, y, constraints=[Budget(0.2)])
    assert [tuple(w.matrix.shape) for w in model.weights] == [(3, 6), (6, 1)]
    assert float(model.scores(ROWS).mean()) <= 0.2 + 1e-9


def behind_a_projection(method: Any = "auto", on_step: Any = None) -> Lifted:
    """Two flows that sum to one and are not negative, with a rho of one's own."""
    network = Network()
    h = network.state(ReLU(), dense(network.input(3), 6))
    limits = [Linear(torch.ones(2), equal=1.0), Bounds(lower=0.0)]
    network.loss(SquaredError(), dense(h, 2), within=limits)
    share = torch.sigmoid(3 * ROWS[:, 0] * ROWS[:, 1] + ROWS[:, 2])
    model = Lifted(network, method=method, rho=0.01, dtype=torch.float64, seed=3)
    return model.fit(ROWS, torch.stack([share, 1 - share], 1), on_step=on_step)


def test_a_network_behind_a_projection_ends_lower_and_within_its_limits() -> None:
    found, before = behind_a_projection(), behind_a_projection(Minibatch())
    assert found.trace is not None and before.trace is not None
    assert found.trace.steps[-1].solver == "augmented-lagrangian"
    assert before.trace.steps[-1].solver == "minibatch"  # what was asked for
    assert found.objective() < before.objective()
    assert [tuple(w.matrix.shape) for w in found.weights] == [(3, 6), (6, 2)]
    scores = found.scores(5 * ROWS.flip(0) + 1)
    torch.testing.assert_close(scores.sum(1), torch.ones(30).double(), atol=1e-12, rtol=0)
    assert float(scores.min()) >= -1e-12
