"""The method that is chosen: by network, loss, penalties and size, and by no other option."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import make_friedman1
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

from liftednet import LiftedClassifier, LiftedRegressor, certify, load, save
from liftednet.activations import ReLU, Tanh
from liftednet.command import app
from liftednet.errors import DataError
from liftednet.losses import CrossEntropy, Loss, Quantile, SquaredError
from liftednet.models import FullBatch, GaussNewton, LiftedMLP, LiftedRNN, Minibatch
from liftednet.models.choice import Choice, DataShape, choose, shape_of
from liftednet.models.methods.gauss_newton import rhos_of
from liftednet.models.results import Ending
from liftednet.penalties import L1, Nonnegative
from liftednet.problems import Weights
from tests.draws import normal
from tests.models.networks import refuses, trace_of, warned

X, Y = make_friedman1(400, noise=1.0, random_state=3)
X, Y, UNSEEN, EXPECTED = X[:200], Y[:200], X[200:], Y[200:]  # more rows than are merged
SMALL: dict[str, Any] = {"hidden_layer_sizes": (10,), "random_state": 0}


def chosen(samples: int, loss: Loss | None = None, unseen: bool = False, **options: Any) -> Choice:
    sizes = options.pop("sizes", (10, 100, 1))
    model = LiftedMLP(sizes, ReLU(), loss or SquaredError(), **options)
    return choose(model, model.checked()[0], DataShape(samples, unseen=unseen))


@pytest.fixture(scope="module")
def plain() -> LiftedRegressor:
    return LiftedRegressor(**SMALL).fit(X, Y)


def test_options_that_say_nothing_and_weights_of_one_change_nothing(plain) -> None:
    options: dict[str, Any] = {"batch_size": 20, "missing": True, "divergence": "tight"}
    options |= {"lipschitz": 1e9, "n_iter_no_change": 3, "warm_start": True}
    found = LiftedRegressor(**SMALL, **options).fit(X, Y, sample_weight=np.ones(len(X)))
    assert trace_of(found.model_).method == trace_of(plain.model_).method
    np.testing.assert_allclose(found.predict(UNSEEN), plain.predict(UNSEEN), rtol=1e-6)


@pytest.mark.parametrize("method", ["minibatch", "full", GaussNewton(), GaussNewton(evidence=True)])
def test_early_stopping_keeps_the_best_of_every_method(method) -> None:
    noise = np.random.default_rng(0).normal(size=200)
    options: dict[str, Any] = {"early_stopping": True, "validation_fraction": 0.4}
    options |= {"method": method, "n_iter_no_change": 2, "max_iter": 40, "rho": 1e-3}
    found = LiftedRegressor(**SMALL, **options).fit(X, noise)
    trace = trace_of(found.model_)
    seen = [step for step in trace.steps if step.validation is not None]
    held = [step.validation or 0.0 for step in seen]
    best = seen[held.index(min(held))].number  # of an epoch, a sweep or a step
    assert trace.ending is Ending.STOPPED and seen[-1].number == best + 2
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))[:80].numpy()
    errors = np.mean((found.predict(X[order]) - noise[order]) ** 2) / 2
    scale = np.var(noise)  # that of training, in which the loss is told
    assert errors / scale == pytest.approx(min(held), rel=1e-4)


@pytest.mark.parametrize("method", ["full", GaussNewton()])
def test_where_training_starts_is_kept_where_nothing_is_better(method, draw) -> None:
    """Of 24 rows and 20 weights the least squares err more on other rows than what made them."""
    X, truth = draw.normal(size=(48, 20)), draw.normal(size=(20, 1))
    start = [Weights(torch.from_numpy(truth), torch.zeros(1, dtype=torch.float64))]
    model = LiftedMLP(
        (20, 1), loss=SquaredError(), standardize=False, rho=1e-6, early_stopping=True,
        validation_fraction=0.5, method=method, start=start,
    )  # fmt: skip
    model.fit(X, X @ truth + draw.normal(size=(48, 1)))
    np.testing.assert_array_equal(model.weights[0].matrix, truth)


def test_a_bound_that_binds_is_held_at_every_step() -> None:
    found = LiftedRegressor(**SMALL, lipschitz=8.0, max_iter=5).fit(X, Y)
    assert isinstance(trace_of(found.model_).method, Minibatch)
    assert "do not meet lipschitz=8" in trace_of(found.model_).reason
    assert certify(found.model_).lipschitz <= 8.0 * (1 + 1e-6)
    free = LiftedRegressor(**SMALL, lipschitz=1e9, max_iter=3).fit(X, Y)
    assert "meet lipschitz=1e+09 by themselves" in trace_of(free.model_).reason
    seen: list[int] = []
    free.model_.fit(X, Y[:, None], on_step=lambda step: seen.append(step.number))
    assert seen == list(range(trace_of(free.model_).n_iter))


def test_a_bound_that_a_network_meets_by_itself_costs_nothing_in_any_units(draw) -> None:
    """An income and a share, whose weights have norms far apart: the certificate knows of both."""
    x = np.c_[draw.normal(3e4, 1e4, 200), draw.uniform(0, 1, 200)]
    y = x[:, 0] / 1e4 - 1.5 * x[:, 1]
    held = LiftedRegressor((5,), random_state=0, lipschitz=4.0).fit(x, y)
    assert held.score(x, y) > 0.99 and certify(held).lipschitz <= 4.0  # 1.5 is the least


REASONS = [
    ({}, GaussNewton, "300 answers and 1,201 weights are few enough"),
    ({"rho": 2.0}, GaussNewton, "to the minimum of the rho or the penalty that is given"),
    ({"penalty": Nonnegative()}, GaussNewton, "is given"),
    ({"penalty": L1(0.1)}, Minibatch, "not L1"),
    ({"loss": Quantile()}, Minibatch, "Quantile is no likelihood of numbers"),
    ({"unseen": True}, Minibatch, "missing"),
    ({"divergence": "joint"}, Minibatch, "divergence='tight'"),
    ({"batch_size": 7}, GaussNewton, "batch_size=7 is for minibatches"),
    ({"method": "full"}, FullBatch, "asked for"),
    ({"sizes": (300, 2), "loss": CrossEntropy(), "rho": 1.0}, FullBatch, "one convex fit"),
    ({"sizes": (300, 2), "loss": CrossEntropy()}, Minibatch, "no likelihood"),
]


@pytest.mark.parametrize(("options", "method", "words"), REASONS)
def test_the_reason_is_said_in_words(options, method, words) -> None:
    found = chosen(300, **options)
    assert isinstance(found.method, method) and words in found.reason
    assert f"{found.method!r}: " in str(found)


def test_steps_become_fewer_before_they_cease() -> None:
    steps = [chosen(samples).method for samples in (100, 1000, 3000, 6000, 20_000)]
    counts = [method.steps for method in steps if isinstance(method, GaussNewton)]
    assert counts == sorted(counts, reverse=True) and counts[0] == 50 and 5 <= counts[-1] < 15
    assert isinstance(steps[-1], Minibatch) and len(counts) == 4
    assert "would take long" in chosen(20_000).reason
    given = chosen(3000, max_iter=70).method
    assert isinstance(given, GaussNewton) and given.steps == 70


def test_holes_are_looked_for() -> None:
    model = LiftedMLP((10, 5, 1), loss=SquaredError(), missing=True)
    with_hole = X.copy()
    with_hole[3, 4] = np.nan
    assert shape_of(model, X, Y) == DataShape(200, 10)
    assert shape_of(model, torch.from_numpy(with_hole), Y) == DataShape(200, 10, unseen=True)
    loader = DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y[:, None])))
    assert shape_of(model, loader, None) == DataShape(0, loader=True)
    assert isinstance(trace_of(model.fit(with_hole, Y[:, None])).method, Minibatch)


def test_it_stands_in_what_is_printed_and_in_files(plain, tmp_path) -> None:
    model = plain.model_
    words = f"fitted by {trace_of(model).method!r}: {trace_of(model).reason}"
    rhos = ", ".join(f"{rho:.3g}" for rho in rhos_of(model.structure))
    assert repr(model).endswith(f"{words}; rho in the end {rhos})")
    assert repr(load(save(model, tmp_path / "model.safetensors"))).endswith(f"{words})")
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "model.safetensors")]).stdout
    assert f"by {trace_of(model).method!r}: {trace_of(model).reason}" in shown
    assert repr(LiftedMLP((2, 2))).endswith("not fitted)")
    recurrent = LiftedRNN(2, 3, 2, method=GaussNewton(2))
    recurrent.fit(normal(6, 5, 2), torch.ones(6, 5).long().triu())
    assert trace_of(recurrent).reason == "asked for"
    recurrent.rho = -1  # of the next fit, which will refuse it
    assert repr(recurrent).endswith("asked for)")


def test_a_loss_of_two_labels_takes_no_more() -> None:
    model = LiftedClassifier((4,), loss="binary-cross-entropy", random_state=0)
    refuses(DataError, "BinaryCrossEntropy is for two labels", model.fit, X, np.arange(200) % 3)
    found = model.fit(X, Y > 14)
    assert found.predict_proba(X).shape == (200, 2) and found.score(X, Y > 14) > 0.7


def test_large_numbers_end_in_words() -> None:
    x, kind = X[:60].astype(np.float32), LiftedRegressor
    words = r"y reaches 2.*e\+31, whose square overflows torch.float32"
    large = (Y[:60] * 1e30).astype(np.float32)
    found = warned(words, kind((4,), Tanh(), random_state=0).fit, x, large)
    assert found.score(x, large) > 0.5
    refuses(DataError, "overflow float64", kind((4,)).fit, X, Y * 1e200)
    refuses(DataError, "its square vanishes in float64", kind((4,)).fit, X, Y * 1e-200)
    found = warned(r"y is 3\.0 on every row", kind((4,), random_state=0).fit, x, np.full(60, 3.0))
    np.testing.assert_allclose(found.predict(x), 3.0, rtol=1e-6)
