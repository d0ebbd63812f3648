"""Error bars of models and estimators: against closed forms, autograd, and drawn data."""

import math
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from liftednet import LiftedClassifier, LiftedRegressor, Network, lift, load, posterior, save
from liftednet.activations import Tanh
from liftednet.errors import DataError, DeclarationError, NotFittedError, SolverError
from liftednet.layers import dense
from liftednet.losses import SquaredError
from liftednet.models import GaussNewton, Lifted, LiftedMLP, LiftedRNN, error_bars
from liftednet.penalties import FixedZeros, Nonnegative
from tests.draws import normal
from tests.models.networks import refuses, told, warned

BY_EVIDENCE = GaussNewton(steps=200, evidence=True)


def waves(samples: int, seed: int = 0, noise: float = 0.2) -> tuple[Any, Any]:
    generator = np.random.default_rng(seed)
    x = generator.uniform(-3, 3, (samples, 1))
    return x, np.sin(2 * x[:, 0]) + noise * generator.normal(size=samples)


def test_ignorance_is_that_of_dense_jacobians() -> None:
    """Of a lifted torch network: J by autograd in torch's own parameters, H by its definition."""
    torch.manual_seed(0)
    x, y = (torch.from_numpy(part).float() for part in waves(40))
    network = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    model = lift(network, x[:2].double(), loss=SquaredError(), show=False, method=BY_EVIDENCE)
    found = posterior(model.fit(x, y)).predict(torch.linspace(-5, 5, 9)[:, None])
    model.write_()
    weights = {name: value.detach() for name, value in network.named_parameters()}

    def rows(inputs: Tensor) -> Tensor:
        parts = jacrev(lambda w: functional_call(network, w, (inputs.double(),))[:, 0])(weights)
        return torch.cat([part.flatten(1) for part in parts.values()], 1)

    rhos = [penalty.curvature / 2 for penalty in model.structure.penalties.values()]
    sizes = [part.numel() for part in weights.values()]  # W, b, W, b
    gram, pulls = rows(x).T @ rows(x), [2 * rhos[k // 2] for k in range(4)]
    weak = [pulls[0], min(pulls[1], 1e-3 * 40), pulls[2], min(pulls[3], 1e-3 * 40)]
    by_evidence, inverse = (  # biases, which no rho pulls, are as open as the data leave them
        torch.linalg.inv(gram + torch.tensor(each).repeat_interleave(torch.tensor(sizes)).diag())
        for each in (pulls, weak)
    )
    left = y - functional_call(network, weights, (x.double(),))[:, 0]
    noise = float(left.square().sum()) / (40 - float((gram @ by_evidence).trace()))
    new = rows(torch.linspace(-5, 5, 9)[:, None])
    assert model.standardization.moments == {}
    np.testing.assert_allclose(found.noise[:, 0], math.sqrt(noise), rtol=1e-6)
    wanted = (noise * (new @ inverse @ new.T).diagonal()).sqrt()
    np.testing.assert_allclose(found.ignorance[:, 0], wanted, rtol=1e-5)


def test_error_bars_are_in_units_of_y() -> None:
    x, y = waves(80)
    plain = LiftedRegressor((8,), "tanh", random_state=0)
    scaled = LiftedRegressor((8,), "tanh", random_state=0).fit(10 * x + 3, 1000 * y - 50)
    plain.fit(x, y)
    unseen = np.linspace(-4, 4, 11)[:, None]
    mean, std = plain.predict(unseen, return_std=True)
    np.testing.assert_allclose(mean, plain.predict(unseen))
    other, wider = scaled.predict(10 * unseen + 3, return_std=True)
    np.testing.assert_allclose(other, 1000 * mean - 50, rtol=1e-5, atol=1e-2)
    np.testing.assert_allclose(wider, 1000 * std, rtol=1e-4)
    assert scaled.log_evidence_ == pytest.approx(plain.log_evidence_ - 80 * math.log(1000))
    left = posterior(scaled).leave_one_out()
    torch.testing.assert_close(left, 1000 * posterior(plain).leave_one_out(), rtol=1e-3, atol=1e-2)


def test_copies_and_odd_weights_are_told_where_chance_does_not_make_them(draw) -> None:
    X, discrete = draw.normal(size=(40, 2)), draw.integers(0, 2, (40, 3)).astype(float)
    y = X.sum(1) + draw.normal(size=40)
    few: dict[str, Any] = {"hidden_layer_sizes": (4,), "max_iter": 2, "random_state": 0}
    heavy: dict[str, Any] = {"sample_weight": np.full(40, 1.5)}
    for rows, answers, options in ((np.repeat(X, 2, 0), np.repeat(y, 2), {}), (X, y, heavy)):
        words, fit = "40 different samples count as (80|60)", LiftedRegressor(**few).fit
        warned(words, fit, rows, answers, **options)
    warned("40 samples count as 1 by their weights", fit, X, y, sample_weight=np.full(40, 1 / 40))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*samples count")
        LiftedRegressor(**few).fit(X, y, sample_weight=draw.uniform(0.8, 1.2, 40))
        LiftedClassifier(**few).fit(discrete, draw.integers(0, 2, 40))
        LiftedClassifier(**few).fit(np.repeat(np.eye(2), 20, 0), np.repeat([0, 1], 20))
        LiftedRegressor(rho=0.1, **few).fit(np.repeat(X, 2, 0), np.repeat(y, 2))


@pytest.mark.parametrize(("rows", "times"), [(6, 10), (20, 5)])
def test_copies_of_few_rows_are_told(rows: int, times: int, draw) -> None:
    X = np.repeat(draw.normal(size=(rows, 2)), times, 0)
    warned(f"{rows} different samples", LiftedRegressor(random_state=0).fit, X, X.sum(1) ** 2)


@pytest.mark.parametrize("settings", [{}, {"method": "minibatch", "standardize": False}])
def test_error_bars_are_of_the_rows_as_they_were(settings: dict[str, Any]) -> None:
    x, y = waves(60)
    model = LiftedRegressor((5,), max_iter=3, random_state=0, **settings).fit(x, y)
    again, given = LiftedRegressor((5,), max_iter=3, random_state=0, **settings), x.copy()
    again.fit(given, y)
    given *= 100.0
    for one, other in zip(*(m.predict(x, return_std=True) for m in (model, again)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_probabilities_of_samples_with_weights_are_those_of_copies(draw) -> None:
    x, counts = draw.normal(size=(100, 3)), draw.integers(1, 4, 100)
    labels = x[:, 0] + 0.5 * draw.normal(size=100) > 0
    one, other = LiftedClassifier(random_state=0), LiftedClassifier(random_state=0)
    one.fit(x, labels, sample_weight=counts)
    other.fit(np.repeat(x, counts, 0), np.repeat(labels, counts))
    np.testing.assert_allclose(one.predict_proba(x), other.predict_proba(x), atol=1e-6)
    assert posterior(one).laplace.share == posterior(other).laplace.share


def test_a_class_that_weighs_nothing_is_not_predicted() -> None:
    x, labels = np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) % 2
    model = LiftedClassifier(random_state=0).fit(x, labels, sample_weight=1.0 - labels)
    assert (model.predict(x) == 0).all()


def test_two_outputs_have_a_noise_each() -> None:
    generator = np.random.default_rng(3)
    x = generator.uniform(-2, 2, (200, 2))
    y = np.stack([np.sin(2 * x[:, 0]), 10 * x[:, 1]], 1)
    y += generator.normal(size=(200, 2)) * [0.05, 5.0]
    model = LiftedRegressor((10,), "tanh", random_state=0).fit(x, y)
    np.testing.assert_allclose(posterior(model).predict(x).noise[0], [0.05, 5.0], rtol=0.2)
    assert model.predict(x, return_std=True)[1].shape == (200, 2)
    assert model.sample_y(x, 3).shape == (200, 2, 3)
    clean = np.sqrt(np.mean((model.predict(x)[:, 0] - np.sin(2 * x[:, 0])) ** 2))
    assert clean < 0.05  # as well as the noise of this output allows, not that of the other


def test_a_regression_between_ends_and_a_graph_with_a_skip_have_error_bars() -> None:
    x, y = waves(60)
    rising = LiftedRegressor((6,), "tanh", monotonic_cst=[1], random_state=0).fit(x, x[:, 0] + y)
    assert np.isfinite(rising.predict(x, return_std=True)[1]).all()
    network = Network()
    inputs = network.input(1)
    hidden = network.state(Tanh(), dense(inputs, 6))
    network.loss(SquaredError(), dense(hidden, 1) + dense(inputs, 1))
    model = Lifted(network, method=BY_EVIDENCE).fit(*map(torch.from_numpy, (x, y)))
    found = posterior(model).predict(torch.from_numpy(x))
    np.testing.assert_allclose(found.mean, model.predict(torch.from_numpy(x)), rtol=1e-6)
    assert 0.1 < float(found.noise[0]) < 0.3


@pytest.mark.parametrize("steps", [slice(None), -1], ids=["every", "the last"])
def test_a_recurrent_network_has_error_bars_at_its_steps(steps: Any) -> None:
    x, noise = normal(2, 12, 3, 1)
    y, method = (x.cumsum(1) + 0.1 * noise)[:, steps], GaussNewton(steps=10, evidence=True)
    model = LiftedRNN(1, 2, 1, Tanh(), loss=SquaredError(), method=method).fit(x, y)
    found = posterior(model).predict(x)
    assert found.std.shape == y.shape
    torch.testing.assert_close(found.mean, model.predict(x))
    left = posterior(model).leave_one_out()
    assert bool((left.square().sum() > (y - found.mean).square().sum()).all())


def test_probabilities_of_classes_that_lie_apart_are_not_flattened() -> None:
    X, y = load_iris(return_X_y=True)
    kept, unseen, right, answers = train_test_split(X, y, stratify=y, random_state=0)
    model = LiftedClassifier((10,), "tanh", method=BY_EVIDENCE, random_state=0).fit(kept, right)
    chances = model.predict_proba(unseen)
    np.testing.assert_allclose(chances.sum(1), 1)
    np.testing.assert_array_equal(model.predict(unseen), chances.argmax(1))
    plain = model.model_.forward(unseen).numpy()
    assert log_loss(answers, chances) < log_loss(answers, plain) + 0.02
    assert posterior(model).laplace.share < 1
    assert model.log_evidence_ < 0
    refuses(DataError, "call predict_proba", posterior(model).predict, unseen)
    refuses(DataError, "no residuals", posterior(model).leave_one_out)
    drawn = posterior(model).sample(unseen, 5)
    torch.testing.assert_close(drawn.sum(-1), torch.ones(5, len(unseen), dtype=torch.float64))


def test_functions_and_answers_are_drawn() -> None:
    x, y = waves(60)
    model = LiftedRegressor((8,), "tanh", random_state=0).fit(x, y)
    found, unseen = posterior(model), np.linspace(-3, 3, 50)[:, None]
    drawn = model.sample_y(unseen, 400, random_state=1)
    np.testing.assert_array_equal(drawn, model.sample_y(unseen, 400, random_state=1))
    mean, std = model.predict(unseen, return_std=True)
    assert drawn.shape == (50, 400)
    np.testing.assert_allclose(drawn.std(1), std, rtol=5 / math.sqrt(800))
    np.testing.assert_array_less(abs(drawn.mean(1) - mean), 5 * std / 20)
    functions = found.sample(unseen, 400, noise=False)[..., 0]
    together = np.corrcoef(functions[:, 20], functions[:, 21])[0, 1]
    assert together > 0.9  # one function, not a number for each row


def test_odd_weights_of_samples_with_several_outputs_have_finite_error_bars(draw) -> None:
    """However their sums round: no residual lies beyond a delta that is infinite."""
    for seed in range(8):
        x = draw.standard_normal((60, 3))
        y = x[:, :2].cumsum(1) + 0.3 * draw.standard_normal((60, 2))
        model = LiftedRegressor((5,), "tanh", max_iter=20, random_state=seed)
        model.fit(x, y, sample_weight=draw.uniform(0.5, 1.5, 60))
        deviation = model.predict(x, return_std=True)[1]
        assert np.isfinite(deviation).all() and (deviation < y.std(0)).all()


@pytest.mark.parametrize("units", [6, 60])  # fewer and more weights than answers
def test_a_saved_model_keeps_its_error_bars(tmp_path: Any, units: int) -> None:
    x, y = (torch.from_numpy(part).float() for part in waves(60))
    model = LiftedMLP((1, units, 1), Tanh(), SquaredError(), method=BY_EVIDENCE)
    model.fit(30 * x - 4, 100 * y)
    again = load(save(model, tmp_path / "model.safetensors"))
    found, wanted = (posterior(one) for one in (again, model))
    unseen = torch.linspace(-100, 100, 7)[:, None]
    torch.testing.assert_close(found.predict(unseen).std, wanted.predict(unseen).std)
    assert torch.equal(again.forward(unseen), model.forward(unseen))
    assert found.log_evidence == wanted.log_evidence
    torch.testing.assert_close(again.weights[0].matrix, model.weights[0].matrix)
    refuses(NotFittedError, "no data", lambda: found.leave_one_out())
    assert again.fit(x, y).is_fitted  # which has error bars of its own
    assert not torch.equal(posterior(again).predict(unseen).std, wanted.predict(unseen).std)


@pytest.mark.parametrize("limit", [None, "_MOST_WORK", "MOST_WEIGHTS"])
def test_intervals_hold_after_minibatches_too(limit: str | None, monkeypatch) -> None:
    x, y = waves(1500)
    if limit is not None:  # then they are of the last layer alone
        monkeypatch.setattr(error_bars, limit, 0)
    model = LiftedRegressor((20,), "tanh", method="minibatch", random_state=0).fit(x[:500], y[:500])
    low, high = model.predict_interval(x[500:])
    # of a thousand rows .9 +- .01, and of intervals whose noise is of 500 rows
    assert 0.86 < np.mean((low < y[500:]) & (y[500:] < high)) < 0.94
    if limit is None:
        assert np.isfinite(model.log_evidence_)
    else:
        refuses(DataError, "last layer alone", getattr, model, "log_evidence_")


def test_a_file_without_error_bars_says_so(tmp_path: Any, monkeypatch) -> None:
    x, y = map(torch.from_numpy, waves(60))
    model = LiftedMLP((1, 6, 1), Tanh(), SquaredError(), method=BY_EVIDENCE).fit(x, y)
    monkeypatch.setattr(error_bars, "_MOST_BYTES", 100)
    again = load(save(model, tmp_path / "model.safetensors"))
    refuses(NotFittedError, "weights were given, loaded", lambda: posterior(again))
    x[0] = torch.nan  # such fits have no error bars that a file could keep
    model = LiftedMLP((1, 6, 1), Tanh(), SquaredError(), method=BY_EVIDENCE, missing=True).fit(x, y)
    again = load(save(model, tmp_path / "model.safetensors"))
    torch.testing.assert_close(again.forward(x[1:]), model.forward(x[1:]))


def test_weights_without_rho_have_the_error_bars_of_least_squares_and_no_evidence(draw) -> None:
    x = draw.normal(size=(40, 3))
    y, new = x @ [1.0, 0.0, 0.5] + 0.3 * draw.normal(size=40), draw.normal(size=(4, 3))
    options: dict[str, Any] = {"bias": False, "standardize": False, "method": GaussNewton(50)}
    model = LiftedMLP((3, 1), loss=SquaredError(), penalty=FixedZeros(torch.zeros(3, 1)), **options)
    found = posterior(model.fit(torch.from_numpy(x), torch.from_numpy(y)))
    inverse = np.linalg.inv(x.T @ x)
    noise = np.square(y - x @ inverse @ x.T @ y).sum() / 37
    std = np.sqrt(noise * (1 + np.einsum("ni,ij,nj->n", new, inverse, new)))
    np.testing.assert_allclose(found.predict(torch.from_numpy(new)).std[:, 0], std, rtol=1e-6)
    held = LiftedMLP((3, 1), loss=SquaredError(), penalty=Nonnegative(), **options)
    held.fit(torch.from_numpy(x), torch.from_numpy(y - x[:, 1]))  # whose second rests at 0
    for one in (found, posterior(held)):
        refuses(DataError, "weights without rho have no density", getattr, one, "log_evidence")


def test_the_evidence_of_sequences_of_several_lengths_is_in_units_of_y(generator) -> None:
    """Those of 10 y are 10 to the answers that count less likely."""
    x, lengths = torch.randn(20, 6, 2, generator=generator).double(), torch.tensor([6, 2, 3, 4] * 5)
    y = x.cumsum(1)[..., :1].tanh() + 0.1 * torch.randn(20, 6, 1, generator=generator)
    how: dict[str, Any] = {"loss": SquaredError(), "method": BY_EVIDENCE}
    one, ten = (
        LiftedRNN(2, 3, 1, Tanh(), **how).fit(x, factor * y, lengths=lengths) for factor in (1, 10)
    )
    wanted = posterior(one).log_evidence - int(lengths.sum()) * math.log(10)
    assert posterior(ten).log_evidence == pytest.approx(wanted, abs=1e-3)
    assert posterior(one).predict(x).std.shape == y.shape


WITHOUT_ERROR_BARS = [
    ({"loss": "quantile:0.9"}, r"Quantile\(0.9\) is no .* which is loss=None"),
    ({"missing": True}, "complete X before"),
]


@pytest.mark.parametrize(("options", "words"), WITHOUT_ERROR_BARS)
def test_fits_without_error_bars_say_what_to_set(options: Any, words: str) -> None:
    x, y = waves(30)
    model = LiftedRegressor((4,), "tanh", random_state=0, max_iter=3, **options).fit(x, y)
    refuses(DeclarationError, words, model.predict, x, return_std=True)
    refuses(DeclarationError, words, model.predict_interval, x)


def test_other_fits_to_the_same_data_widen_what_is_not_known(tmp_path: Any) -> None:
    """By one factor, 1 + sum (f - g)^2 / sum s^2 over rows, s what the one fit does not know."""
    x, y = waves(40)
    kept, other = (
        LiftedMLP((1, 4, 1), Tanh(), SquaredError(), method=GaussNewton(evidence=True), seed=seed)
        .fit(x, y[:, None])
        for seed in (0, 1)
    )  # fmt: skip
    alone = posterior(kept).predict(x)
    apart = (kept.predict(x) - other.predict(x)).double().square().sum()
    error_bars.widen(kept, [kept, other])
    wide = posterior(kept).predict(x)
    factor = (1 + apart / torch.as_tensor(alone.ignorance).double().square().sum()) ** 0.5
    ratio = torch.as_tensor(wide.ignorance / alone.ignorance).double()
    torch.testing.assert_close(ratio, factor.expand(40, 1), rtol=1e-5, atol=0.0)
    torch.testing.assert_close(wide.noise, alone.noise)
    again = load(save(kept, tmp_path / "wide.safetensors"))
    torch.testing.assert_close(posterior(again).predict(x).std, wide.std)


def test_odd_rows_have_error_bars_or_a_sentence(tmp_path: Any) -> None:
    """Few rows, light rows, rows far away, and kinds that training has not seen."""
    x, y = waves(40)
    for rows in (1, 2):
        few = LiftedRegressor(random_state=0).fit(x[:rows], y[:rows])
        assert np.isfinite(few.predict(x)).all()
        refuses(SolverError, f"^{rows} rows tell no noise", few.predict_interval, x)
        save(few, tmp_path / "few.safetensors")
    copies = LiftedRegressor(random_state=0).fit(x[:2], y[:2], sample_weight=[50, 50])
    refuses(SolverError, r"^2 rows tell no noise", lambda: copies.predict_interval(x))
    light = LiftedRegressor((4,), "tanh", random_state=0).fit(x, y, sample_weight=[0.05] * 40)
    assert (light.predict(x, return_std=True)[1] > 0).all() and math.isfinite(light.log_evidence_)
    odd = np.arange(40) % 2
    table = pd.DataFrame({"a": x[:, 0], "kind": pd.Categorical(np.where(odd, "u", "v"))})
    model = LiftedRegressor((4,), "tanh", random_state=0, max_iter=30).fit(table, y + odd)
    new = pd.DataFrame({"a": [0.0, 0.0, 1e6], "kind": ["w", None, "u"]})
    mean, std = model.predict(new, return_std=True)
    found = posterior(model)  # takes the frame, as the estimator does
    told, drawn = found.predict(new), found.sample(new, 3, noise=False)
    noise = told.noise[:, 0].numpy()
    np.testing.assert_allclose(told.mean[:, 0], mean)
    assert drawn.shape == (3, 3, 1)
    labels = LiftedClassifier((4,), max_iter=3, random_state=0).fit(table, y > 0)
    assert posterior(labels).predict_proba(new).shape == (3, 2)
    assert np.isfinite(mean).all() and (std > noise).all() and np.isfinite(std).all()


def test_what_cannot_be_used_is_refused() -> None:
    x, y = waves(30)
    refuses(NotFittedError, "call fit first", LiftedRegressor().predict, x, return_std=True)
    refuses(DataError, "got ndarray", posterior, x)
    model = LiftedRegressor((4,), "tanh", random_state=0, max_iter=3).fit(x, y)
    refuses(DataError, "strictly between 0 and 1, got 90", lambda: model.predict_interval(x, 90))
    refuses(DataError, "positive integer, got 0", lambda: model.sample_y(x, 0))
    refuses(DataError, "gives no probabilities", lambda: posterior(model).predict_proba(x))
    refuses(DataError, "features", lambda: model.predict(np.zeros((3, 2)), return_std=True))


def wide(seed: int) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(508, 20))
    return x, x[:, 0] + 0.5 * random.normal(size=508)


@pytest.mark.filterwarnings("ignore::liftednet.FitWarning")
def test_intervals_of_fewer_rows_than_columns_hold_and_those_of_no_freedom_are_told() -> None:
    """Weights follow every answer, so that |y - u|^2 and N - gamma are both rounding."""
    inside, steps = [], 0
    for seed in range(3):
        x, y = wide(seed)
        model = LiftedRegressor(random_state=0).fit(x[:8], y[:8])
        steps += model.n_iter_
        low, high = model.predict_interval(x[8:])
        inside.append(((low <= y[8:]) & (y[8:] <= high)).mean())
    assert np.mean(inside) > 0.7 and min(inside) > 0.4  # of 90 %; at most .18 before
    assert steps < 450  # 596 where an evidence without noise was news
    x, y = wide(5)  # of some draws the evidence pulls weights off the plane
    plane = LiftedRegressor(random_state=0).fit(x[:4, :3], y[:4])  # through every answer
    warned("can follow all of the 4 rows", plane.predict_interval, x[:, :3])


def test_few_rows_that_are_met_are_no_certainty() -> None:
    """Of two outputs two answers are free, and labels are met by chance: 1e-8 was all they said."""
    draw = np.random.default_rng(1)
    x = draw.normal(size=(3, 30))
    two = np.c_[x[:, 0], np.sin(3 * x[:, 0])] + 0.1 * draw.normal(size=(3, 2))
    for inputs, y in ((x, two), (np.random.default_rng(2).normal(size=(6, 3)), np.arange(6) % 2)):
        model = LiftedRegressor(random_state=0).fit(inputs, y)
        warned(f"can follow all of the {len(y)} rows", model.predict, inputs, return_std=True)


def test_densities_take_the_answers_that_a_fit_does_and_no_others(draw) -> None:
    x = draw.normal(size=(60, 2))
    y = x[:, 0] + 0.3 * draw.normal(size=60)
    bars = posterior(LiftedRegressor((3,), random_state=0, max_iter=5).fit(x, y))
    refuses(DataError, "must be a torch.Generator", lambda: bars.sample(x, 2, 0))  # type: ignore[arg-type]
    found = bars.predict(x)
    column = found.log_density(torch.from_numpy(y)[:, None])
    assert column.shape == (60, 1)
    for same in (y, y[:, None], pd.Series(y), list(y), torch.from_numpy(y)):
        torch.testing.assert_close(found.log_density(same), column)
    refuses(DataError, r"shape \(60, 1\), got \(3, 1\)", lambda: found.log_density(y[:3]))
    refuses(DataError, "y must be finite", lambda: found.log_density(y * np.nan))
    y.flags.writeable = False  # of which torch would warn
    assert told(found.log_density, y) == []
    torch.testing.assert_close(found.log_density(y), column)


@pytest.mark.parametrize("settings", [{}, {"loss": "poisson", "hidden_layer_sizes": ()}])
def test_rows_whose_answers_overflow_are_refused(settings: dict[str, Any], draw) -> None:
    x = draw.normal(size=(100, 2))
    y = np.exp(1.5 * x[:, 0] + 0.3 * draw.normal(size=100))  # of a power, or counts
    model = LiftedRegressor(random_state=0, **settings).fit(x, np.round(y) if settings else y)
    assert all(np.isfinite(part).all() for part in model.predict_interval(x))
    far = np.r_[x[:2], [[1e5, 0.0]]]
    refuses(DataError, "row 2 of X", model.predict_interval, far)
    refuses(DataError, "row 2 of X", model.predict, far, return_std=True)
