"""Sizes of small networks that the data choose."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.datasets import make_friedman1
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.metrics import log_loss

from liftednet import LiftedClassifier, LiftedRegressor
from liftednet.errors import DataError
from liftednet.models import LiftedMLP, by_evidence
from liftednet.models.by_evidence import Size
from tests.models.networks import refuses, trace_of


def linear(samples: int, noise: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(samples, 4))
    return x, x @ [1.0, -2.0, 0.5, 0.0] + noise * draw.normal(size=samples)


def sizes(model: LiftedRegressor) -> tuple[int, ...]:
    assert isinstance(model.model_, LiftedMLP)
    return model.model_.sizes


def test_linear_data_get_few_units_and_the_answers_of_a_ridge_regression() -> None:
    x, y = linear(120, 0.5)
    new, _ = linear(500, 0.0, seed=1)
    model = LiftedRegressor(random_state=0).fit(x, y)
    assert sizes(model)[1] <= 16  # of 4, 16, 48 and 144
    away = model.predict(new) - Ridge(1.0).fit(x, y).predict(new)
    # both are within the uncertainty of five coefficients, sqrt(5 / 120) .5 = .1, of the truth
    assert np.sqrt(np.mean(away**2)) < 0.1


def test_data_with_interactions_get_more_units_and_beat_a_linear_model() -> None:
    x, y = make_friedman1(500, noise=1.0, random_state=0)
    model = LiftedRegressor(random_state=0).fit(x[:300], y[:300])
    told = f"{sizes(model)[1]} units of"
    assert told in trace_of(model.model_).reason and told in repr(model.model_)
    ours, ridge = model.score(x[300:], y[300:]), Ridge().fit(x[:300], y[:300])
    assert ours > ridge.score(x[300:], y[300:]) + 0.1  # .95 of at most .96, and .74


def test_sizes_that_would_take_long_are_told_and_not_tried(monkeypatch, draw) -> None:
    x = draw.uniform(-2, 2, (200, 2))
    y = np.sin(3 * x[:, 0]) * np.cos(2 * x[:, 1]) + 0.1 * draw.normal(size=200)
    monkeypatch.setattr(by_evidence, "_MOST_OF_MORE", 5e6)  # of 195^2 395 with 48 units
    model = LiftedRegressor(activation="tanh", random_state=0).fit(x, y)
    assert sizes(model)[1] == 16 and "48 would take longer" in repr(model.model_)
    monkeypatch.setattr(by_evidence, "_MOST_WORK", 5e6)
    assert not Size(10, 1, True).serves(1000)  # 59^2 1059 of 4 units, which so many rows outgrow
    monkeypatch.undo()
    assert Size(10, 1, True).serves(1000) and Size(20, 1, True).serves(20_000)
    assert Size(60, 1, True).serves(20_000) and not Size(60, 1, True, 48).serves(2_000)
    assert Size(60, 2, False).serves(8_000) and not Size(60, 3, False).serves(6_250)
    assert Size(300, 1, True).serves(100)  # 16 units have more weights than any network may


def test_the_evidence_of_the_linear_part_is_the_density_of_the_targets() -> None:
    """With no units left y is N(0, s I + X Q Q' X') in closed form; the constant has no prior."""
    x, y = linear(60, 0.5)
    refuses(NotFittedError, "fit", getattr, LiftedRegressor(), "log_evidence_")
    small = LiftedRegressor(random_state=0).fit(x, y)
    centered = (y - y.mean()) / y.std()
    z = (x - x.mean(0)) / x.std(0)
    best = max(
        multivariate_normal(cov=s * np.eye(60) + a * z @ z.T).logpdf(centered)
        for s in np.geomspace(0.01, 1, 15) for a in np.geomspace(0.01, 10, 15)
    )  # fmt: skip
    # Laplace's approximation has a unit and a constant more, each worth a few nats
    assert small.log_evidence_ == pytest.approx(best - 60 * np.log(y.std()), abs=8)


@pytest.mark.filterwarnings("ignore::liftednet.FitWarning")
def test_labels_that_are_noise_are_not_met_with_certainty() -> None:
    """Of 470 draws five were, without a word, as this: the evidence of certainty was as large."""
    random = np.random.default_rng(284)
    n, d = int(random.choice([80, 150, 300])), int(random.choice([4, 6, 10, 20]))
    x, labels = random.standard_normal((n, d)), random.integers(0, 2, n)
    model = LiftedClassifier(random_state=0).fit(x, labels)
    new = random.standard_normal((1000, d))
    assert log_loss(random.integers(0, 2, 1000), model.predict_proba(new)) < 0.8


def test_a_setting_of_ones_own_has_the_size_that_it_had() -> None:
    x, y = linear(60, 0.5)
    for settings in ({"rho": 0.1}, {"method": "minibatch"}, {"interaction_cst": "pairwise"}):
        model = LiftedRegressor(random_state=0, max_iter=1, **settings).fit(x, y)
        assert sizes(model) == (4, 100, 1)
    assert sizes(LiftedRegressor((7,), random_state=0, max_iter=1).fit(x, y)) == (4, 7, 1)


@pytest.mark.parametrize("kind", [LiftedRegressor, LiftedClassifier])
@pytest.mark.parametrize("after", [1, 30])
def test_an_interrupt_ends_all_fits_and_the_best_so_far_is_kept(monkeypatch, kind, after) -> None:
    x, y = linear(60, 0.5)
    fit, steps = LiftedMLP.fit, iter(range(1, after + 1))

    def interrupted(model, *arguments, on_step=None, **options):
        def follow(step):
            if next(steps) == after:  # and a step more would end the test
                raise KeyboardInterrupt
            on_step(step)

        return fit(model, *arguments, on_step=follow, **options)

    monkeypatch.setattr(LiftedMLP, "fit", interrupted)
    model = kind(random_state=0).fit(x, y if kind is LiftedRegressor else y > 0)
    assert model.model_.interrupted and "training was interrupted" in repr(model.model_)
    assert np.isfinite(model.score(x, y if kind is LiftedRegressor else y > 0))


def test_a_warm_start_goes_on_with_the_size_that_was_chosen() -> None:
    x, y = make_friedman1(150, noise=1.0, random_state=0)
    model = LiftedRegressor(random_state=0, max_iter=10, warm_start=True).fit(x, y)
    chosen, before, spread = sizes(model), model.score(x, y), model.model_._known.spread
    assert sizes(model.fit(x, y)) == chosen
    assert model.model_._known.spread == spread > 1  # of several fits, which are not made again
    assert model.score(x, y) > before - 0.05  # the evidence may give some of the fit back


def test_targets_without_noise_are_met() -> None:
    x, y = (np.repeat(part, 2, 0) for part in linear(30, 0.0))  # rows that leave no noise at all
    for targets in (y, np.full(60, 3.0)):
        mean, std = LiftedRegressor(random_state=0).fit(x, targets).predict(x, return_std=True)
        np.testing.assert_allclose(mean, targets, atol=1e-6)
        assert np.isfinite(std).all() and (std < 1e-6).all()


def test_smooth_functions_are_met_to_many_digits_without_a_setting(draw) -> None:
    x, new = (draw.uniform(-1, 1, (80, 1)) for _ in range(2))

    def bend(z: np.ndarray) -> np.ndarray:
        return np.asarray(np.exp(z[:, 0]) * np.sin(4 * z[:, 0]))

    model = LiftedRegressor(random_state=0).fit(x, bend(x))
    mean, std = model.predict(new, return_std=True)
    assert len(sizes(model)) == 4  # two hidden layers
    assert np.sqrt(np.mean((mean - bend(new)) ** 2)) < 1e-3 * np.std(bend(new))
    assert (std < 1e-3).all() and (abs(mean - bend(new)) < 10 * std).mean() > 0.9


def test_noise_is_refused_where_it_cannot_be_zero() -> None:
    x, y = linear(30, 0.0)
    without, twice = LiftedRegressor(noise=0.0).fit, (np.r_[x, x[3:4]], np.r_[y, y[3] + 0.1])
    refuses(DataError, "rows 3 and 30 have the same X", without, *twice)
    refuses(DataError, r"noise is None to find it, 0\.0 of", LiftedRegressor(noise=0.1).fit, x, y)
    for settings in ({"rho": 0.1}, {"loss": "huber"}, {"hidden_layer_sizes": (7,)}):
        refuses(DataError, "without", LiftedRegressor(noise=0.0, **settings).fit, x, y)
    both = LiftedRegressor(noise=0.0, random_state=0).fit(np.r_[x, x], np.r_[y, y])
    np.testing.assert_allclose(both.predict(x), y, atol=1e-6)
