"""Estimators: scikit-learn's own checks, and what they do not look at."""

import copy
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError as NotFittedInSklearn
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils import estimator_checks
from sklearn.utils.class_weight import compute_sample_weight

from liftednet import LiftedClassifier, LiftedRegressor, LiftedSequenceClassifier
from liftednet.constraints import GroupMeans
from liftednet.errors import DataError, DeclarationError, LiftedError
from liftednet.models import FullBatch, LiftedMLP
from liftednet.models.methods import minibatch
from liftednet.penalties import L1
from tests.models.networks import refuses

X, LABELS = load_iris(return_X_y=True)
X = StandardScaler().fit_transform(X)
NAMES = load_iris().target_names[LABELS]
QUICK: dict[str, Any] = {"hidden_layer_sizes": (8,), "random_state": 0}


# All of scikit-learn's checks of one estimator; of the other, what is of regressions or of fits.
checks_of = estimator_checks.estimator_checks_generator
CHECKS = [*checks_of(LiftedClassifier(10, max_iter=5))]
OF_BOTH = {check.func.__name__ for _, check in CHECKS}
OF_BOTH -= {"check_fit_idempotent", "check_methods_subset_invariance", "check_estimators_pickle"}
CHECKS += [
    (regressor, check)
    for regressor, check in checks_of(LiftedRegressor(10, max_iter=5))
    if check.func.__name__ not in OF_BOTH
]


@pytest.mark.parametrize(("estimator", "check"), CHECKS)
def test_all_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.parametrize("estimator", [LiftedClassifier, LiftedRegressor])
def test_weights_are_repetitions_at_the_defaults(estimator, monkeypatch):
    """On 15 samples of 30 features, of which 500 steps make much of any rounding."""
    monkeypatch.setattr(minibatch, "_STEPS", 500)
    estimator_checks.check_sample_weight_equivalence_on_dense_data(estimator.__name__, estimator())


@pytest.mark.parametrize("estimator", [LiftedClassifier, LiftedRegressor, LiftedSequenceClassifier])
def test_every_setting_is_kept_as_it_is(estimator):
    given = {name: object() for name in estimator().get_params()}
    made = estimator(**given)
    assert all(getattr(made, name) is value for name, value in given.items())
    copied = clone(estimator(penalty=L1(0.1), activation="tanh")).get_params()
    assert copied["penalty"] == L1(0.1) and copied["activation"] == "tanh"


def test_one_output_and_several_are_regressed():
    settings: dict[str, Any] = {**QUICK, "method": "gauss-newton", "rho": 1e-3, "max_iter": 20}
    curves = np.stack([np.sin(X[:, 0]), X[:, 1] ** 2], axis=1)
    found = LiftedRegressor(**settings, activation="tanh").fit(X, curves)
    assert found.predict(X).shape == curves.shape
    assert found.score(X, curves) > 0.99
    assert found.fit(X, curves[:, :1]).predict(X).shape == (150, 1)
    assert found.fit(X, curves[:, 0]).predict(X).shape == (150,)


@pytest.mark.parametrize("kind", [LiftedClassifier, LiftedSequenceClassifier])
@pytest.mark.parametrize("weights", [{"setosa": 1, "versicolor": 2, "virginica": 0.5}, "balanced"])
def test_weights_of_classes_are_weights_of_samples(kind, weights):
    model, few = kind(**QUICK, max_iter=3), slice(30, 150)  # not as many of each
    x, y = (X if kind is LiftedClassifier else X[..., None])[few], NAMES[few]
    by_sample = clone(model).fit(x, y, sample_weight=compute_sample_weight(weights, y))
    by_class = clone(model).set_params(class_weight=weights).fit(x, y)
    found = by_class.predict_proba(x)
    assert np.array_equal(found, by_sample.predict_proba(x))
    assert not np.allclose(found, model.fit(x, y).predict_proba(x))
    counts = np.where(y == "setosa", 3, np.arange(len(y)) % 2)
    balanced = by_class.fit(x, y, sample_weight=counts).predict_proba(x)
    copies = np.repeat(y, counts), np.repeat(np.arange(len(y)), counts)
    each = compute_sample_weight(weights, copies[0])[np.unique(copies[1], return_index=True)[1]]
    again = np.zeros(len(y))
    again[counts > 0] = each * counts[counts > 0]
    np.testing.assert_allclose(balanced, model.fit(x, y, sample_weight=again).predict_proba(x))
    for wrong in (-counts, counts[:9], 0 * counts):
        refuses(DataError, "sample weights", by_class.fit, x, y, sample_weight=wrong)
    if kind is LiftedSequenceClassifier:
        refuses(DataError, "labels of steps", by_class.fit, x, np.repeat(y[:, None], 4, 1))


@pytest.mark.parametrize("method", ["full", "gauss-newton", "minibatch", FullBatch(tolerance=1e-9)])
def test_max_iter_is_the_number_of_rounds_of_every_method(method):
    found = LiftedClassifier(**QUICK, method=method, max_iter=3).fit(X, LABELS)
    assert found.n_iter_ == len(found.loss_curve_) == 3


def test_a_warm_start_goes_on():
    found = LiftedClassifier(**QUICK, max_iter=20, warm_start=True).fit(X, NAMES)
    first, model = found.loss_curve_, found.model_
    found.set_params(rho=2e-3).fit(X, NAMES)
    assert found.model_ is model and model.rho == 2e-3
    assert found.loss_curve_[0] < first[0]
    refuses(DataError, "set warm_start=F", found.set_params(hidden_layer_sizes=(9,)).fit, X, NAMES)
    refuses(DataError, "the classes were", found.set_params(hidden_layer_sizes=(8,)).fit, X, LABELS)


BAD_SETTINGS = [
    ({"activation": "wave"}, DataError, "there is no activation 'wave'"),
    ({"activation": 3}, DeclarationError, "needs an activation"),
    ({"lam": -1.0}, DataError, "lam must be positive"),
    ({"method": "magic"}, DeclarationError, "method must be one of"),
    ({"max_iter": 0}, DataError, "max_iter"),
    ({"hidden_layer_sizes": (0,)}, DataError, "hidden_layer_sizes must be positive"),
    ({"hidden_layer_sizes": "8"}, DataError, "positive integers"),
    ({"class_weight": "heavy"}, DataError, "balanced"),
    ({"random_state": "luck"}, DataError, "luck"),
    ({"random_state": -1}, DataError, "random_state"),
    ({"verbose": "loud"}, DataError, "verbose.*loud"),
    ({"method": "full", "batch_size": 5}, DataError, "batch_size is for method='minibatch'"),
    ({"loss": "mse"}, DataError, "loss='mse'.*LiftedRegressor"),
    ({"validation_fraction": 2.0, "early_stopping": True}, DataError, "strictly between"),
]


@pytest.mark.parametrize(("settings", "error", "message"), BAD_SETTINGS)
def test_settings_are_refused_at_fit(settings, error, message):
    estimator = LiftedClassifier().set_params(**settings)
    refuses(error, message, lambda: estimator.fit(X, NAMES))
    assert not hasattr(estimator, "model_")


def sequences(samples: int = 60, steps: int = 6) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bits, the label of every sequence, and the label of every step: the bit before."""
    bits = np.random.default_rng(0).integers(2, size=(samples, steps))
    words = np.array(["no", "yes"])
    delayed = np.pad(bits[:, :-1], ((0, 0), (1, 0)))
    return bits[:, :, None].astype(float), words[bits[:, -2]], words[delayed]


RECURRENT = LiftedSequenceClassifier(
    (6,), "tanh", method="gauss-newton", divergence="tight", max_iter=30, random_state=0
)


def test_sequences_are_labeled():
    x, y, _ = sequences()
    found = clone(RECURRENT).fit(x, y)
    assert found.score(x, y) == 1.0
    assert found.predict(x).shape == (60,) and found.predict_proba(x).shape == (60, 2)
    assert found.classes_.tolist() == ["no", "yes"] and found.n_features_in_ == 1
    assert 1 <= found.n_iter_ == len(found.loss_curve_) <= 30
    assert np.array_equal(copy.deepcopy(found).predict(x), found.predict(x))
    weights = np.arange(60.0)
    right = found.predict(x[:, ::-1]) == y
    assert found.score(x[:, ::-1], y, weights) == pytest.approx(np.average(right, weights=weights))
    for other in (y[:, None], y[:1]):  # which numpy would hold against each other
        refuses(DataError, "a label for each prediction", found.score, x, other)
    refuses(DataError, "must not be negative", found.score, x, y, -weights)


@pytest.mark.parametrize("kind", [LiftedClassifier, LiftedSequenceClassifier])
def test_a_fit_that_is_refused_leaves_the_last_one_as_it_was(kind) -> None:
    rows = X[:100] if kind is LiftedClassifier else X[:100, :, None]
    found = kind((4,), max_iter=3, random_state=0).fit(rows, NAMES[:100])
    before = found.predict(rows)
    refuses(DataError, "negative", found.fit, rows, LABELS[:100] + 1, sample_weight=-np.ones(100))
    kept = dict(vars(found.set_params(warm_start=True)))
    refuses(DataError, "ask for another", found.fit, np.repeat(rows, 2, -1), NAMES[:100])
    assert vars(found) == kept and (found.predict(rows) == before).all()


def test_sequences_are_searched_and_what_was_not_seen_is_known():
    x, y, _ = sequences()
    search = GridSearchCV(RECURRENT, {"rho": [1e-2, 1e2]}, cv=2, error_score="raise")
    assert search.fit(x, y).best_score_ > 0.9
    words = "X has 2 features, but LiftedSequenceClassifier"
    refuses(DataError, words, search.best_estimator_.predict, np.zeros((3, 6, 2)))
    refuses(LiftedError, "call fit", clone(RECURRENT).predict, x)


def test_steps_are_labeled_and_what_lies_beyond_an_end_does_not_count():
    x, _, y = sequences()
    lengths = np.random.default_rng(1).integers(3, 7, size=60)
    beyond = np.arange(6) >= lengths[:, None]
    other = np.where(np.arange(60) % 2, 1e6, np.nan)[:, None, None]
    x, y = np.where(beyond[:, :, None], other, x), np.where(beyond, "none", y)
    found = clone(RECURRENT).fit(x, y, lengths=lengths)
    assert found.classes_.tolist() == ["no", "yes"]
    assert found.predict(x, lengths).shape == (60, 6)
    assert found.score(x, y, lengths=lengths) == 1.0
    unseen = np.where(beyond[..., None], x, np.nan)
    refuses(DataError, "NaN.*in row 0", found.fit, unseen, y, lengths=lengths)
    refuses(DataError, "holds text", found.fit, np.full(x.shape, "a"), y, lengths=lengths)
    ragged = [[[1.0, 2.0], [3.0]]] * 60
    refuses(DataError, "inhomogeneous", found.fit, ragged, y[:, 0], lengths=lengths)


def test_tensors_are_taken_as_arrays_whether_or_not_they_have_gradients() -> None:
    rows, y = torch.tensor(X[:40, :2], requires_grad=True), torch.arange(40) % 2
    weights = rows[:, 0] ** 2 + 1
    sequences: Any = LiftedSequenceClassifier((3,), max_iter=2, random_state=0)
    models: Any = (LiftedClassifier(**QUICK, max_iter=3), rows), (sequences, rows[:, :, None])
    for model, given in models:
        found = clone(model).fit(given, y, sample_weight=weights).predict_proba(given)
        plain = given.detach().numpy()
        wanted = clone(model).fit(plain, y.numpy(), sample_weight=weights.detach().numpy())
        assert (found == wanted.predict_proba(plain)).all()
        np.testing.assert_allclose(np.exp(wanted.predict_log_proba(plain)), found)


FLAT = np.zeros((4, 3, 1))  # four sequences of three steps
TEXT, HOLE = X.astype(object), X[:, 0].copy()
TEXT[3, 1], HOLE[7] = "red", np.nan
ODD = pd.DataFrame({"kind": ["u", None] * 5, "size": [1.0] * 9 + [np.inf]})
DAYS = pd.DataFrame({"a": [1.0, 2.0] * 5, "b": [True, False] * 5})
DAYS["day"] = pd.date_range("2024-01-01", periods=10)


BAD_DATA = [
    (RECURRENT, FLAT[..., 0], np.zeros(4), r"\(samples, steps, features\).* X\[\.\.\., None\]"),
    (RECURRENT, FLAT, np.zeros(3), "a label for each of 4 sequences"),
    (RECURRENT, FLAT, np.zeros((4, 2)), "each of their 3 steps"),
    (RECURRENT, FLAT + np.inf, [0, 1, 0, 1], "infinity"),
    (RECURRENT, FLAT, [0.5, 1.5, 2.5, 3.5], "continuous"),
    (RECURRENT, FLAT, [1, 1, 1, 1], "two classes"),
    (RECURRENT, [FLAT[0], FLAT[1, 1:]], [0, 1], "padded at their ends, and as lengths="),
    (LiftedClassifier(), X, np.eye(3, dtype=int)[LABELS] > 0, "MultiOutputClassifier"),
    (LiftedRegressor(), X[:3] * np.nan, [1, 2, 3],
     r"row 0, column 0 \(nan\)\. Say missing=True .* seen\.$"),
    (LiftedRegressor(), TEXT, HOLE, r"X holds text, first in row 3, column 1 \(red\): pass a"),
    (LiftedRegressor(), X, NAMES, r"y holds text, first in row 0 .* LiftedClassifier"),
    (LiftedRegressor(), X, HOLE, r"y contains NaN\. The first is in row 7 \(nan\)\.$"),
    (LiftedRegressor(), ODD, np.arange(10.0), r"row 9, column size \(inf\)"),
    (LiftedRegressor(monotonic_cst={"age": 1}), ODD[:9], np.arange(9.0),
     r"'age', which is no column of X: there are kind, size\."),
    (LiftedRegressor(monotonic_cst={"kind": 1}), ODD[:9], np.arange(9.0),
     "'kind' names kinds, which have no order"),
    (LiftedRegressor(), pd.DataFrame({"name": [f"row {n}" for n in range(150)]}), X[:, 0],
     "'name' of X has 150 kinds in 150 rows"),
    (LiftedRegressor(), pd.DataFrame({"rooms": [1, None, 3, "?", "?"] * 30}), X[:, 0],
     r"'rooms' .* numbers beside text, '\?' in row 3"),
    (LiftedRegressor(), pd.DataFrame({"rooms": [[1.0, 2.0]] * 150}), X[:, 0],
     "'rooms' of X has a list in row 0"),
    (LiftedClassifier(), DAYS, [0, 1] * 5, "that hold dates: 'day'"),
    (LiftedRegressor(), DAYS[["a"]], DAYS["day"], "y holds dates"),
    (LiftedRegressor(), DAYS[["day"]].to_numpy(), DAYS["a"], "X holds dates"),
    (LiftedRegressor(), DAYS[["day"]].astype(object), DAYS["a"], "that hold dates: 'day'"),
    (LiftedRegressor(), DAYS[["day"]].apply(lambda x: x.dt.to_period("M")), range(10),
     "that hold dates: 'day'"),
    (LiftedClassifier(), DAYS[["a"]], pd.Series([*"uuuuvvvv", "u", None], dtype="string"),
     "no label in row 9"),
    (LiftedClassifier(), X[:9], ["u", pd.NA, None] * 3, "no label in row 1"),
    (LiftedRegressor(), ODD[["size", "size"]][:9], range(9), "two columns of the name 'size'"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "x", "y", "message"), BAD_DATA)
def test_what_cannot_be_used_is_named_with_its_place(model, x, y, message):
    refuses(DataError, message, clone(model).fit, x, y)


def test_errors_are_those_of_both_libraries():
    refuses(NotFittedInSklearn, "", LiftedMLP((4, 3)).predict, torch.from_numpy(X))
    for error in (DataError, TypeError, ValueError):
        refuses(error, "parse", LiftedClassifier().fit, csr_array(X), LABELS)
    words = r"^LiftedRegressor\.fit has no constraint: it takes X, y"
    refuses(TypeError, words, LiftedRegressor().fit, X, X[:, 0], constraint=[])


def test_columns_of_integers_with_gaps_and_of_booleans_hold_numbers():
    numbers = DAYS[["a", "b"]].astype({"a": "Int64"}).astype({"b": object})
    assert LiftedClassifier(**QUICK).fit(numbers, DAYS["b"]).predict(numbers).shape == (10,)


@pytest.fixture(scope="module")
def of_kinds() -> tuple[Any, Any, LiftedRegressor]:
    """Return a frame of a number, three kinds of a category and two of a string, and a fit."""
    draw = np.random.default_rng(0)
    three, two = draw.integers(0, 3, 120), draw.integers(0, 2, 120)
    frame = pd.DataFrame({"size": draw.normal(size=120)})
    frame["color"] = pd.Categorical(np.array(["red", "green", "blue"])[three])
    frame["kind"] = np.array(["old", "new"], dtype=object)[two]
    y = frame["size"] + np.array([0.0, 3.0, -3.0])[three] + 2.0 * two + 0.1 * draw.normal(size=120)
    return frame, y.to_numpy(), LiftedRegressor(**QUICK, activation="tanh").fit(frame, y.to_numpy())


def test_categories_and_strings_are_as_columns_of_zeros_and_ones(of_kinds):
    frame, y, found = of_kinds
    assert found.n_features_in_ == 3 and list(found.feature_names_in_) == ["size", "color", "kind"]
    color, kind = frame["color"].astype(str).to_numpy(), frame["kind"].to_numpy()
    by_hand = np.column_stack([
        frame["size"], *(color == x for x in ("blue", "green", "red")), (kind == "old") - 0.5
    ])  # fmt: skip
    wanted = clone(found).fit(by_hand, y)
    np.testing.assert_allclose(found.predict(frame), wanted.predict(by_hand))
    assert found.score(frame, y) > 0.99
    plain = found.predict(frame.assign(color=color).astype({"kind": "category"}))
    np.testing.assert_array_equal(plain, found.predict(frame))
    labels = np.where(kind == "old", "a", "b")
    assert LiftedClassifier(**QUICK, activation="tanh").fit(frame, labels).score(frame, labels) == 1
    again = LiftedRegressor((4,), monotonic_cst={"size": 1}, random_state=0).fit(frame, y)
    steps = again.predict(frame.assign(size=1.0)) - again.predict(frame.assign(size=0.0))
    assert (steps >= -1e-6).all()


def test_kinds_that_training_has_not_seen_lie_between_those_it_has(of_kinds):
    frame, y, found = of_kinds
    new = frame.assign(color="violet")
    each = [found.predict(frame.assign(color=x)) for x in ("red", "green", "blue")]
    assert (np.min(each, 0) < found.predict(new)).all()
    assert (found.predict(new) < np.max(each, 0)).all()
    with_gaps = frame.assign(kind=frame["kind"].where(frame["size"] > -1))
    assert np.isfinite(LiftedRegressor((4,), max_iter=5).fit(with_gaps, y).predict(with_gaps)).all()


def test_kinds_are_the_same_in_whatever_type_they_come() -> None:
    """Of a column of whole numbers one that is missing makes floats, in training as later."""
    size, room = np.linspace(-1, 1, 90), np.arange(90) % 3
    rooms = pd.Series(room).astype("category")
    holes = pd.Series(np.where(np.arange(90) == 0, np.nan, room)).astype("category")
    words = np.array([None, "a", "b"], dtype=object)[room]
    flags = pd.Series(room == 1)
    for kinds, alike in (
        (rooms, [holes, room.astype(float), room.astype(str)]),
        (holes, [rooms, room]),
        (words, [pd.Series(words, dtype="string"), pd.Categorical(words)]),
        (flags.astype("category"), [flags, (room == 1).astype(int), flags.astype("boolean")]),
        (pd.Categorical(10**16 * room), [1e16 * room]),
    ):
        frame = pd.DataFrame({"size": size, "kind": kinds})
        y = size + 10 * (room == 1)
        found = LiftedRegressor((4,), method="gauss-newton", random_state=0).fit(frame, y)
        expected = found.predict(frame)[1:]
        for other in alike:
            same = found.predict(pd.DataFrame({"size": size, "kind": other}))[1:]
            np.testing.assert_array_equal(same, expected)
        for word in ("7", "a.0", "1.5", "0_1"):
            unseen = found.predict(frame.assign(kind=pd.Categorical([word] * 90)))[1:]
            assert np.abs(unseen - expected).max() > 1.0


def test_codes_are_other_kinds_than_their_numbers() -> None:
    """Of a file that has digits alone pandas makes numbers; of text each spelling counts."""
    size, room = np.linspace(-1, 1, 90), np.arange(90) % 3
    code = np.array(["1", "01", "A"])[room]
    fit = LiftedRegressor((4,), method="gauss-newton", random_state=0).fit
    found = fit(pd.DataFrame({"size": size, "code": code}), 10.0 * (room - 1))

    def of(kind: Any) -> float:
        return float(found.predict(pd.DataFrame({"size": [0.0], "code": [kind]}))[0])

    for kind, wanted in (("1", -10), (1, -10), (1.0, -10), ("01", 0), ("A", 10)):
        assert of(kind) == pytest.approx(wanted, abs=0.5)
    assert of("001") == of("1.0") == of("B")
    large = [f"{2**53 + n:018d}" for n in range(3)]
    found = fit(pd.DataFrame({"size": size, "code": np.array(large)[room]}), 10.0 * (room - 1))
    assert [round(of(2**53 + n)) for n in range(3)] == [-10, 0, 10]


def test_kinds_that_cannot_be_used_are_refused(of_kinds):
    frame, _, found = of_kinds
    words = "'color', 'kind' name kinds: give a data frame"
    refuses(DataError, words, found.predict, np.zeros((3, 3)))
    refuses(DataError, "feature names", found.predict, frame[["kind", "size", "color"]])
    infinite = frame.assign(size=np.where(np.arange(120) == 4, np.inf, frame["size"]))
    refuses(DataError, r"infinity.*in row 4, column size \(inf\)", found.predict, infinite)


def test_columns_and_metadata_go_through_pipelines(draw: np.random.Generator) -> None:
    X = pd.DataFrame({"size": draw.normal(size=60), "town": draw.choice(["Ulm", "Kiel"], 60)})
    y, group = X["size"] + (X["town"] == "Ulm"), (X["town"] == "Ulm").to_numpy().astype(int)
    columns = make_column_transformer(
        (StandardScaler(), ["size"]), (OneHotEncoder(sparse_output=False), ["town"])
    )
    with sklearn.config_context(enable_metadata_routing=True):
        last = LiftedRegressor((3,), max_iter=5, random_state=0).set_fit_request(constraints=True)
        model = make_pipeline(columns, last).set_output(transform="pandas")
        model.fit(X, y, constraints=[GroupMeans(group, within=0.1)])
    assert list(model[-1].feature_names_in_) == [
        "standardscaler__size", "onehotencoder__town_Kiel", "onehotencoder__town_Ulm",
    ]  # fmt: skip
    found = model.predict(X)
    means = np.array([found[group == each].mean() for each in (0, 1)])
    assert abs(means - found.mean()).max() <= 0.1 + 1e-6  # free, they are 1 apart
    assert "LiftedRegressor" in model._repr_html_()
