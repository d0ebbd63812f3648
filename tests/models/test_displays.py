"""Relevance of inputs against closed forms, and pictures of fits."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from liftednet import LiftedClassifier, LiftedRegressor, certify
from liftednet.errors import DataError, NotFittedError
from liftednet.models import displays
from liftednet.models.results import PathStep, Step, Trace
from tests.models.networks import refuses

pytest.importorskip("matplotlib").use("Agg")
from matplotlib.figure import Figure  # noqa: E402

relevance = displays.RelevanceDisplay.from_estimator
partial_dependence = displays.PartialDependenceDisplay.from_estimator
QUICK: dict[str, Any] = {"hidden_layer_sizes": (4,), "activation": "tanh", "max_iter": 20}
QUICK["random_state"] = 0


def linear(unit: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(200, 3)) * [1.0, 10.0, 1.0] + 5
    return x, unit * (x @ [2.0, 0.1, 0.0] + 0.1 * draw.normal(size=200))


def test_relevance_of_a_line_is_its_slope_times_the_deviation() -> None:
    unit = 1000.0
    x, y = linear(unit)
    model = LiftedRegressor(**QUICK).fit(x, y)
    wanted = unit * np.array([2.0, 0.1, 0.0]) * x.std(0)
    # 20 of 199 shifts, each a mean over 200 rows
    np.testing.assert_allclose(model.relevance_, wanted, rtol=0.1, atol=0.05 * unit)
    assert LiftedRegressor(**QUICK).fit(x, np.stack([y, -y], 1)).relevance_.shape == (3, 2)


def test_a_category_is_one_input_and_classes_are_in_probabilities() -> None:
    x, _ = linear()
    frame = pd.DataFrame({"a": x[:, 0], "kind": np.array(["p", "q", "r"])[np.arange(200) % 3]})
    y = 4.0 * (frame["kind"] == "p") + 0.1 * np.random.default_rng(1).normal(size=200)
    found = LiftedRegressor(**QUICK).fit(frame, y).relevance_
    np.testing.assert_allclose(found, [0.0, 4.0 * np.sqrt(2) / 3], atol=0.15)
    chances = LiftedClassifier(**QUICK).fit(frame, (frame["kind"] == "p").astype(int)).relevance_
    assert chances[0] < 0.05 and chances[1] == pytest.approx(np.sqrt(2) / 3, abs=0.08)


def test_pictures_follow_the_convention_of_scikit_learn() -> None:
    x, y = linear()
    model = LiftedRegressor(**QUICK).fit(x[:100], y[:100])
    axes = Figure().subplots()
    shown = relevance(model, ax=axes)
    assert shown.ax_ is axes and shown.figure_ is axes.figure
    assert shown.names == ("x1", "x2", "x3") and len(axes.patches) == 3
    held = displays.CoverageDisplay.from_estimator(model, x[100:], y[100:])
    assert (np.diff(held.shares) >= 0).all() and 0.8 < held.shares[-2] <= 1  # of 90 %
    refuses(DataError, "got LiftedClass", type(held).from_estimator, LiftedClassifier(), x, y)
    again = type(held).from_estimator(model, x[100:], y[100:, None])
    np.testing.assert_array_equal(again.shares, held.shares)
    refuses(DataError, "shape", type(held).from_estimator, model, x, y[:9])
    counts = np.random.default_rng(0).poisson(np.exp(x[:, 0] - 5)).astype(float)
    rates = LiftedRegressor(**QUICK, loss="poisson").fit(x[:100], counts[:100])
    many = type(held).from_estimator(rates, x[100:], counts[100:])
    assert 0.85 < many.shares[-2] <= 1  # answers at the ends of intervals are inside
    one = LiftedRegressor(**QUICK).fit(x[:, :1], y)
    curve = displays.FitDisplay.from_estimator(one, x[:, :1], y)
    np.testing.assert_allclose(curve.mean, one.predict(curve.inputs[0][:, None]))
    words = r"one or two inputs, and X has shape \(200, 3\)"
    refuses(DataError, words, type(curve).from_estimator, model, x, y)
    refuses(DataError, r"shape \(\)", type(curve).from_estimator, one, 1.0, y)
    refuses(DataError, "one output", type(curve).from_estimator, one, x[:, :1], y[:9])
    refuses(DataError, "got LiftedClass", type(curve).from_estimator, LiftedClassifier(), x, y)
    assert (curve.low < curve.mean).all() and (curve.mean < curve.high).all()
    two = LiftedRegressor(**QUICK).fit(x[:, :2], y)
    surface = displays.FitDisplay.from_estimator(two, x[:, :2], y)
    corner = np.array([[surface.inputs[0][3], surface.inputs[1][5]]])
    assert surface.mean[3, 5] == pytest.approx(float(two.predict(corner)[0]))
    assert surface.ax_.get_ylabel() == "x2"


def test_partial_dependence_is_the_mean_and_no_answer_leaves_its_range(monkeypatch) -> None:
    monkeypatch.setattr(displays, "_CELLS", 5)
    x, y = linear()
    model = LiftedRegressor(**QUICK).fit(x, y)
    found = partial_dependence(model, x, 1, ax=Figure().subplots())
    np.testing.assert_allclose(found.inputs, np.linspace(x[:, 1].min(), x[:, 1].max(), 6))
    at = x.copy()
    at[:, 1] = found.inputs[4]
    assert found.mean[4] == pytest.approx(model.predict(at).mean(), rel=1e-6)
    others = np.random.default_rng(1).uniform(x.min(0), x.max(0), (2000, 3))
    cell = np.clip(np.searchsorted(found.inputs, others[:, 1]) - 1, 0, len(found.low) - 1)
    answers = model.predict(others)
    assert (answers >= found.low[cell]).all() and (answers <= found.high[cell]).all()
    # The line's range is 2 spans of x1 and a cell of x2; a tanh network's proven one is near it.
    exact = 2 * np.ptp(x[:, 0]) + 0.1 * np.ptp(x[:, 1]) / len(found.low)
    assert (found.high - found.low < 3 * exact).all()


def test_partial_dependence_of_missing_entries_is_between_the_others(draw) -> None:
    X = pd.DataFrame(draw.normal(size=(60, 2)), columns=["a", "b"])
    X.loc[::7, "b"] = np.nan
    found = LiftedRegressor((5,), missing=True, random_state=0).fit(X, X["a"])
    drawn = partial_dependence(found, X, "a")
    assert drawn.inputs[[0, -1]].tolist() == [X["a"].min(), X["a"].max()]
    refuses(DataError, "lack the input 'b'", partial_dependence, found, X, "b")
    kinds = X.assign(b=np.where(X["a"] > 0, "up", "down"))
    found = LiftedRegressor((5,), random_state=0).fit(kinds, X["a"])
    refuses(DataError, "'b' name kinds", partial_dependence, found, kinds, "a")


def test_partial_dependence_of_a_class_is_of_its_probability(monkeypatch) -> None:
    monkeypatch.setattr(displays, "_CELLS", 3)
    x, y = linear()
    model = LiftedClassifier(**QUICK, monotonic_cst=[1, 0, 0]).fit(x, np.where(y > 11, "b", "a"))
    found = partial_dependence(model, x, 0)
    at = x.copy()
    at[:, 0] = found.inputs[2]
    assert found.mean[2] == pytest.approx(model.predict_proba(at)[:, 1].mean(), rel=1e-6)
    other = partial_dependence(model, x, 0, target="a")
    np.testing.assert_allclose(found.mean + other.mean, 1.0, atol=1e-12)
    np.testing.assert_allclose(found.low + other.high, 1.0, atol=1e-6)
    assert (np.diff(found.mean) >= 0).all() and found.ax_.get_ylabel() == "probability of b"
    one = LiftedClassifier(**QUICK, loss="binary-cross-entropy").fit(x, np.where(y > 11, "b", "a"))
    for target in ("a", "b"):  # of one score
        found = partial_dependence(one, x, 0, target=target)
        assert (found.low <= found.mean[1:]).all() and (found.mean[1:] <= found.high).all()
    for estimator, inputs, bad, words in (
        (model, x, {"feature": 3}, r"in \[0, 2\]"),
        (model, x, {"feature": "x9"}, "using strings"),
        (model, x, {"feature": 0, "target": "c"}, "one of a, b, got"),
        (model, x.astype(str)[:, :2] + "k", {"feature": 0}, "could not convert"),
        (LiftedRegressor(), x, {"feature": 0}, "not fitted"),
    ):
        refuses(DataError, words, partial_dependence, estimator, inputs, **bad)
    refuses(NotFittedError, "", relevance, LiftedRegressor())


def test_a_path_is_drawn_with_what_its_steps_have() -> None:
    steps = [
        PathStep(rho, 1.0, 0.0, width, evidence, error, None)  # type: ignore[arg-type]
        for rho, width, evidence, error in ((1.0, 1, -3.0, 0.25), (0.1, 4, -2.0, None))
    ]
    found = displays.PathDisplay.from_path(steps)
    assert found.error[0] == 0.5 and np.isnan(found.error[1])
    assert isinstance(found.figure_, Figure) and found.ax_.get_xscale() == "log"
    lines = [line for axes in found.figure_.axes for line in axes.lines]
    dotted = [np.asarray(line.get_xdata()) for line in lines if line.get_linestyle() == ":"]
    assert {float(at[0]) for at in dotted if len(at) == 2} == {0.1, 1.0}


def test_a_certificate_is_drawn_with_its_ranges() -> None:
    layer = torch.nn.Linear(2, 1)
    layer.weight.data = torch.tensor([[2.0, -3.0]])
    network = torch.nn.Sequential(layer, torch.nn.ReLU())
    axes = certify(network).plot(ax=Figure().subplots())
    ends = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches]
    np.testing.assert_allclose(ends, [(0, 2), (-3, 0)], atol=1e-12)  # ReLU's slope is 0 to 1
    refuses(DataError, "output must be one of 0 to 0, got 1", certify(network).plot, 1)


def test_a_trace_is_drawn_over_its_seconds() -> None:
    steps = [Step(n, "weights", 4.0 - n, 1.0, 0.0, 1, "ridge", float(n), 2.0) for n in range(3)]
    axes = Trace(5.0, steps).plot(Figure().subplots())
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), [(0, 4), (1, 3), (2, 2)])
    assert [list(x.lines[0].get_ydata()) for x in axes.figure.axes[1:]] == [[2.0] * 3]
    refuses(DataError, "no step to draw", Trace(5.0).plot)
