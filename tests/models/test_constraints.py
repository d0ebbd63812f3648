"""Networks whose forward pass meets constraints."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes

from liftednet import LiftedClassifier, LiftedSequenceClassifier, Network, load, save, to_torch
from liftednet import constraints as limits
from liftednet.activations import ReLU, Tanh
from liftednet.errors import DataError, DeclarationError, FitWarning, NotFittedError, SolverError
from liftednet.layers import concatenate, dense
from liftednet.losses import BinaryCrossEntropy, Loss, SquaredError
from liftednet.models import GaussNewton, Lifted, LiftedMLP, LiftedRNN, Minibatch
from liftednet.models.constraints import HeldScores
from liftednet.models.error_bars import has_evidence
from liftednet.penalties import L1, Nonnegative, SquaredFrobenius
from liftednet.samples import Weights
from tests.draws import normal
from tests.models.networks import refuses, trace_of

QUICK = Minibatch(epochs=20)
CANCER = [part[:120] for part in load_breast_cancer(return_X_y=True)]
FAIR = limits.GroupMeans((CANCER[0][:, 0] > 14).astype(int), 0.1)
DIABETES = [part[:100] for part in load_diabetes(return_X_y=True)]


def model_of(loss: Loss, *sizes: int, **options: Any) -> LiftedMLP:
    return LiftedMLP(sizes, loss=loss, **{"dtype": torch.float64, "method": QUICK, **options})


def of_cancer(*given: Any, **options: Any) -> LiftedMLP:
    """Return a network for the two labels of tumors, fitted under what is given."""
    x, y = CANCER
    model = model_of(BinaryCrossEntropy(), 30, 8, 1, **options)
    return model.fit(x, y.astype(float), constraints=given)


def pairs(x, count: int):
    """Return pairs of whom the second is higher in three features."""
    higher = (x[:, None, [2, 3, 8]] < x[None][:, :, [2, 3, 8]]).all(-1)
    return np.random.default_rng(0).permutation(np.argwhere(higher))[:count]


def test_an_exported_classifier_has_equal_mean_scores() -> None:
    assert FAIR.violation(of_cancer().scores(CANCER[0])) > 1.0
    model = of_cancer(FAIR)
    assert FAIR.violation(to_torch(model, logits=True)(torch.from_numpy(CANCER[0]))) <= 1e-9
    report = model.constraint_report()
    assert report.violations[0] <= 1e-9
    assert report.gap <= 1e-6
    assert report.residual <= 1e-8
    assert "violation" in str(report)
    assert trace_of(model).steps[-1].solver == "augmented-lagrangian"


@pytest.mark.parametrize("unit", [1.0, 77.0])
def test_the_price_of_a_budget_is_known_where_the_bias_is_free(unit: float) -> None:
    """Stationary in the bias: the price is the sum of what targets are above the outputs."""
    x, y = DIABETES
    y = y / unit
    model = model_of(SquaredError(), 10, 4, 1).fit(x, y, constraints=[limits.Budget(120 / unit)])
    price = float(model.constraint_report().prices[0])
    assert price == pytest.approx(len(y) * (y.mean() - 120 / unit), rel=1e-7)
    assert price == pytest.approx(float(y.sum() - model.scores(x).sum()), rel=1e-7)


def test_order_is_held_at_less_loss_than_by_the_last_layer_alone() -> None:
    x, y = DIABETES
    order = limits.Order(pairs(x, 40))
    held, rough = (
        model_of(SquaredError(), 10, 8, 1, penalty=one).fit(x, y, constraints=[order])
        for one in (None, [SquaredFrobenius(1.0), SquaredFrobenius(1.0) + Nonnegative()])
    )
    assert max(order.violation(m.scores(x)) for m in (held, rough)) <= 1e-6
    assert bool((rough.weights[-1].matrix >= -1e-9).all())  # by CVXPY, with the constraint
    assert rough.constraint_report().solver == "reference"
    assert held.objective() < rough.objective()
    # No weight with a smooth penalty: the last layer alone is held.
    sparse = model_of(SquaredError(), 10, 8, 1, penalty=L1(0.1))
    assert order.violation(sparse.fit(x, y, constraints=[order]).scores(x)) <= 1e-6
    held.fit(x, y, constraints=[limits.Values([3, 5], [100.0, 200.0]), limits.Bounds(50.0, 300.0)])
    scores = held.scores(x)
    torch.testing.assert_close(scores[[3, 5], 0], torch.tensor([100.0, 200.0]).double())
    assert float(scores.min()) >= 50 - 1e-9
    assert float(scores.max()) <= 300 + 1e-9
    given = {"constraints": [order], "on_step": lambda _: pytest.fail("it trains first")}
    bent = LiftedMLP((10, 4, 1), loss="mse", convex=True)
    refuses(DeclarationError, "with convex=True, weights", bent.fit, x, y, **given)


def mass_model(skip: bool) -> Lifted:
    network = Network()
    x = network.input(4)
    h = network.state(ReLU(), dense(x, 8))
    network.loss(SquaredError(), dense(concatenate(h, x) if skip else h, 3))
    return Lifted(network, dtype=torch.float64, method=QUICK)


def test_mass_is_conserved_on_other_samples_where_it_is_affine_in_the_inputs(generator) -> None:
    x = torch.rand(160, 4, generator=generator, dtype=torch.float64)
    total = 3 + 2 * x[:, 0]
    shares = torch.softmax(3 * torch.sin(3 * x[:, 1:]), 1)
    y = total[:, None] * shares + 0.1 * torch.randn(160, 3, generator=generator).double()
    train, test = slice(100), slice(100, None)
    constraints = [limits.Linear([1.0, 1.0, 1.0], equal=total[train]), limits.Bounds(lower=0.0)]
    model = mass_model(skip=True).fit(x[train], y[train], constraints=constraints)
    assert max(limits.violations(constraints, model.scores(x[train]))) <= 1e-9
    torch.testing.assert_close(model.forward(x[test]).sum(1), total[test], atol=1e-9, rtol=0)
    words, apart = "joined to the last layer's inputs", mass_model(skip=False)
    refuses(SolverError, words, apart.fit, x[train], y[train], constraints=constraints)


def test_other_methods_and_weights_of_samples_are_held_too(tmp_path) -> None:
    x, y = CANCER[0], CANCER[1].astype(float)
    for method in ("full", "gauss-newton"):
        model = model_of(BinaryCrossEntropy(), 30, 4, 1, method=method)
        model.fit(x, y, sample_weight=np.linspace(0, 1, len(x)), constraints=[FAIR])
        assert model.constraint_report().violations[0] <= 1e-9
    loaded = load(save(model, tmp_path / "model"))
    refuses(NotFittedError, "from a file, which keeps no report", loaded.constraint_report)
    refuses(NotFittedError, "fitted without constraints", model.fit(x, y).constraint_report)


def test_a_constant_that_signs_leave_is_held(generator) -> None:
    """Its last layer sees next to nothing, and sums over samples are rounding alone."""
    x = 4 * torch.rand(40, 2, generator=generator, dtype=torch.float64) - 2
    y, method = x.sum(1, keepdim=True), GaussNewton(30)
    model = LiftedMLP((2, 8, 1), Tanh(), "mse", rho=0.1, monotonic_cst=[-1, -1], method=method)
    with pytest.warns(FitWarning, match="no better than a constant"):
        model.fit(x, y, constraints=[limits.Bounds(-50.0, 50.0)])
    assert float(model.predict(x).abs().max()) < 0.2


def test_a_classifier_holds_constraints_on_the_size_that_the_evidence_chooses() -> None:
    x, y = CANCER
    model = LiftedClassifier(random_state=0).fit(x, y, constraints=[FAIR])
    assert isinstance(model.model_, LiftedMLP)
    assert model.model_.skip and FAIR.violation(model.model_.scores(x)) <= 1e-8
    some = np.concatenate([np.flatnonzero(y == 1)[:80], np.flatnonzero(y == 0)[:10]])
    with pytest.warns(FitWarning, match="no better than a constant .* Loosen its constraints"):
        LiftedClassifier(random_state=0).fit(
            x[some, :2], y[some], constraints=[limits.Rate(at_most=0)]
        )
    assert not has_evidence(model.model_)  # error bars are those of a fit without constraints
    np.testing.assert_array_equal(model.predict(x), model.model_.scores(x).argmax(1))


def test_steps_of_sequences_rise_and_sum_as_asked_and_have_prices(generator) -> None:
    x = torch.rand(20, 5, 2, generator=generator, dtype=torch.float64)
    y = x[:, :, :1].cumsum(1) + 0.5 * normal(20, 5, 1, seed=generator)
    lengths, most = torch.tensor([5, 3, 4, 5] * 5), torch.linspace(3, 6, 20)[:, None]
    there = torch.arange(5) < lengths[:, None]
    model = LiftedRNN(2, 6, 1, activation="tanh", loss=SquaredError(), max_iter=10)
    free = model.fit(x, y, lengths=lengths).scores(x, lengths=lengths)[..., 0]
    assert (free.diff()[there[:, 1:]].min() < 0) and ((free * there).sum(1) > most[:, 0]).any()
    inside = x[..., 1][there] > 0.5
    asked = [limits.Rising(), limits.Total(upper=most), limits.GroupMeans(inside.long(), 0.1)]
    u = model.fit(x, y, lengths=lengths, constraints=asked).scores(x, lengths=lengths)[..., 0]
    assert u.diff()[there[:, 1:]].min() > -1e-9
    assert ((u * there).sum(1) - most[:, 0]).max() < 1e-9
    assert abs(u[there][inside].mean() - u[there].mean()) < 0.1 + 1e-9
    report = model.constraint_report()
    assert max(report.violations) < 1e-9
    assert report.gap < 1e-6
    assert report.prices[1].shape == (20, 1)
    assert (report.prices[1] > 1e-6).any()
    assert report.loss == pytest.approx(float((u - y[..., 0])[there].square().mean() / 2))


def test_labels_of_sequences_and_of_steps_meet_rates(draw: np.random.Generator) -> None:
    x, lengths = draw.uniform(size=(60, 5, 2)), np.array([5, 3, 4] * 20)
    group, there = np.arange(60) % 2, np.arange(5) < lengths[:, None]
    last = (x[np.arange(60), lengths - 1, 0] + 0.3 * group > 0.6).astype(int)
    model = LiftedSequenceClassifier((5,), max_iter=5, random_state=0)
    model.fit(x, last, lengths=lengths, constraints=[limits.GroupRates(group, 0.05)])
    found = model.predict(x, lengths=lengths)
    assert abs(found[group == 0].mean() - found[group == 1].mean()) <= 0.05
    names = np.array(["no", "yes"])[(x[..., 0] > 0.4).astype(int)]
    model.fit(x, names, lengths=lengths, constraints=[limits.Rate(at_most=0.4, label="yes")])
    assert (model.predict(x, lengths=lengths)[there] == "yes").mean() <= 0.4
    words, rows = "speaks of the steps of sequences", model_of(SquaredError(), 2, 4, 1)
    refuses(DataError, words, model.fit, x, last, lengths=lengths, constraints=[limits.Rising()])
    refuses(DataError, words, rows.fit, x[:, 0], last * 1.0, constraints=[limits.Total(1.0)])


@pytest.mark.parametrize("solver", ["minibatch", "augmented-lagrangian"])
def test_an_interrupt_leaves_a_model_that_meets_them(solver: str) -> None:
    def stop(step) -> None:
        if step.solver == solver:
            raise KeyboardInterrupt

    x, y = CANCER
    model = model_of(BinaryCrossEntropy(), 30, 8, 1)
    model.fit(x, y.astype(float), constraints=[FAIR], on_step=stop)
    assert trace_of(model).ending.name == "INTERRUPTED"
    assert trace_of(model).steps[-1].solver == solver
    assert FAIR.violation(model.scores(x)) <= 1e-9


def test_scores_that_two_layers_add_up_are_held_as_those_of_one() -> None:
    """With one rho the sum of two layers is one layer on both inputs side by side."""
    x, y = DIABETES[0], DIABETES[1] / 100
    networks = [Network() for _ in range(2)]
    for network, apart in zip(networks, (True, False), strict=True):
        inputs = network.input(10)
        h = network.state(Tanh(), dense(inputs, 3))
        two = dense(h, 1) + dense(inputs, 1, bias=False)
        network.loss(SquaredError(), two if apart else dense(concatenate(h, inputs), 1))
    how: dict[str, Any] = {"dtype": torch.float64, "rho": 0.5, "standardize": False}
    free, same = (Lifted(one, method=QUICK, **how).fit(x, y) for one in networks)
    first, units, linear = free.weights
    joined = Weights(torch.cat([units.matrix, linear.matrix]), units.bias)
    problems = []
    for model, weights in ((free, free.weights), (same, (first, joined))):
        blocks = model._blocks_at(model._known.structure, model._on_data(), weights)
        held = HeldScores(model.network.terms[0], (limits.Budget(1.0),), model.standardization)
        found, gap = held.fitted(blocks)
        held.place(blocks, found.value)
        problems.append((found.objective, float(found.duals[0]), blocks.weights[1].matrix))
        assert gap < 1e-6
    assert problems[0][0] == pytest.approx(problems[1][0], rel=1e-8)
    assert problems[0][1] == pytest.approx(problems[1][1], rel=1e-6)
    torch.testing.assert_close(problems[0][2], problems[1][2][:3], rtol=0, atol=1e-6)
