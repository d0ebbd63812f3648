"""Noise that is not one number for all rows: Huber's, that which follows X, and of counts.

Against integrals, SciPy's laws, scikit-learn's regressions and drawn data.
"""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import logsumexp
from scipy.stats import nbinom, norm, poisson
from sklearn.linear_model import HuberRegressor, PoissonRegressor

from liftednet import LiftedRegressor, load, posterior, save
from liftednet.errors import DataError
from liftednet.losses import Huber, Loss, Poisson
from liftednet.models import GaussNewton, LiftedMLP
from liftednet.noise import Noise
from liftednet.predictions import CountPrediction
from tests.models.networks import refuses, warned

BY_EVIDENCE = GaussNewton(steps=200, evidence=True)


def with_outliers(samples: int, seed: int, far: float = 100.0) -> tuple[Any, Any, Any]:
    """Return inputs, targets of which a tenth has noise that is so many times as large, and f."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(-2, 2, (samples, 2))
    f = np.sin(1.5 * x[:, 0]) + x[:, 1]
    noise = np.where(generator.random(samples) < 0.1, far, 1.0) * 0.3
    return x, f + noise * generator.normal(size=samples), f


def around(noise: Noise) -> Any:
    """Return the density of the noise alone, from its definition."""
    s, d, b, share = float(noise.size), noise.delta, noise.length, noise.share
    inside = norm.cdf(d, scale=s**0.5) - norm.cdf(-d, scale=s**0.5)

    def density(r: float) -> float:
        if abs(r) > d:
            return float(share / (2 * b) * np.exp(-(abs(r) - d) / b))
        return float((1 - share) * norm.pdf(r, scale=s**0.5) / inside)

    return density


@pytest.mark.parametrize("width", [1e-3, 0.4, 5.0])
def test_densities_and_quantiles_are_those_of_an_integral(width: float) -> None:
    noise = Noise(torch.tensor([1.5]).double(), 1.2, 0.15, 2.5)
    alone, wide = around(noise), torch.tensor([[width]]).double()
    far = {"points": [-1.2, 1.2], "limit": 200}
    variance = quad(lambda r: r**2 * alone(r), -120, 120, **far)[0]
    assert float(noise.variance) == pytest.approx(variance, rel=1e-6)
    for r in (0.3, 4.0):
        at = {"points": sorted([-1.2, 1.2, r - 8 * width, r, r + 8 * width]), "limit": 200}
        right = quad(lambda z, r=r: alone(z) * norm.pdf(r - z, scale=width), -60, 60, **at)[0]
        found = noise.log_density(torch.tensor([[r]]).double(), wide)
        assert float(found.exp()) == pytest.approx(right, rel=1e-5)
    end = float(noise.quantile(0.95, wide))
    # The chance of z + N(0, width^2) below the end; trapezoids of a bend are off by 1e-4.
    below = quad(lambda z: alone(z) * norm.cdf((end - z) / width), -120, 120, **far)[0]
    assert below == pytest.approx(0.95, abs=3e-4)
    assert float(noise.quantile(0.05, wide)) == pytest.approx(-end)
    # 20,000 draws: four standard errors of a share of a tenth are .008.
    draws = noise.draw(torch.zeros(20_000, 1).double(), torch.Generator().manual_seed(0))
    ends = noise.quantile(0.95, 0 * wide)
    assert float((draws.abs() > ends).double().mean()) == pytest.approx(0.1, abs=0.009)


def linear_fit(loss: Loss, rho: float, x: Any, y: Any) -> np.ndarray:
    """Return the answers of a network without hidden layers at its minimum."""
    method = GaussNewton(steps=300, tolerance=1e-10)
    model = LiftedMLP((2, 1), loss=loss, rho=rho, standardize=False, method=method)
    return np.asarray(model.fit(x, y[:, None]).predict(x)[:, 0])


def test_a_linear_network_is_scikit_learns_huber_regression() -> None:
    """Its minimum of n s + s sum H(r / s) + alpha |w|^2 has our loss with delta = epsilon s."""
    x, y, _ = with_outliers(120, 0, far=10.0)
    other = HuberRegressor(alpha=1.0, max_iter=1000, tol=1e-9).fit(x, y)
    ours = linear_fit(Huber(1.35 * other.scale_), 1.0 * other.scale_ / 2, x, y)
    np.testing.assert_allclose(ours, other.predict(x), atol=1e-4 * np.abs(y).max())


def test_a_delta_that_is_nothing_beside_an_output_is_told() -> None:
    x, y, _ = with_outliers(60, 0)
    model = LiftedRegressor((), loss="huber:1.0", random_state=0, max_iter=2)
    warned("column 1 is .*: nearly all errors are absolute", model.fit, x, np.c_[y, 1e4 * y])


def test_intervals_hold_and_outliers_move_no_answer(tmp_path: Any) -> None:
    x, y, _ = with_outliers(200, 0)
    new, answers, f = with_outliers(2000, 1)
    model = LiftedRegressor(loss="huber:0.45", random_state=0).fit(x, y)
    assert np.sqrt(np.mean((model.predict(new) - f) ** 2)) < 0.15
    low, high = model.predict_interval(new)
    # Seven standard errors of a share of 2,000 answers are .05.
    assert ((low <= answers) & (answers <= high)).mean() == pytest.approx(0.9, abs=0.05)
    squares = LiftedRegressor((4,), "tanh", random_state=0).fit(x, y)
    bars = (posterior(one).predict(new) for one in (model, squares))
    told = [float(found.log_density(answers).mean()) for found in bars]
    assert told[0] > told[1] + 1
    assert model.log_evidence_ > squares.log_evidence_ + 100
    mean, std = model.predict(new[:5], return_std=True)
    drawn_ones = model.sample_y(new[:5], 10_000)
    np.testing.assert_allclose(np.median(drawn_ones, 1), mean, atol=0.1)
    np.testing.assert_allclose(drawn_ones.std(1), std, rtol=0.2)  # of tails
    again = load(save(model, tmp_path / "model.safetensors"))
    np.testing.assert_allclose(again.predict_interval(new), (low, high))


def test_units_of_the_targets_do_not_matter() -> None:
    x, y, _ = with_outliers(100, 2)
    new = with_outliers(50, 3)[0]
    how: dict[str, Any] = {"random_state": 0, "max_iter": 20}
    one, other = (
        LiftedRegressor((4,), "tanh", loss=Huber(0.45 * unit), **how).fit(x, unit * y + unit)
        for unit in (1.0, 1024.0)
    )
    ends = np.array(other.predict_interval(new)) / 1024
    np.testing.assert_allclose(ends, one.predict_interval(new), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("level", [0.1, 0.95])
def test_a_quantile_has_its_share_of_the_answers(level: float, draw) -> None:
    """Exactly, where training rounds the kink of the loss over a tenth of their deviation."""
    x = draw.normal(size=(400, 3))
    y = x[:, 0] - 2 * x[:, 1] + 0.3 * draw.normal(size=400)
    model = LiftedRegressor((4,), "tanh", loss=f"quantile:{level}", random_state=0)
    model.fit(x[:200], y[:200])
    assert (y[:200] <= model.predict(x[:200]) + 1e-4).mean() == pytest.approx(level, abs=0.011)
    counts = draw.integers(0, 4, 200)
    model.fit(x[:200], y[:200], sample_weight=counts)
    below = y[:200] <= model.predict(x[:200]) + 1e-4
    assert (counts @ below) / counts.sum() == pytest.approx(level, abs=0.02)


def with_noise(samples: int, seed: int) -> tuple[Any, Any, Any]:
    generator = np.random.default_rng(seed)
    x = generator.uniform(-2, 2, (samples, 2))
    noise = 0.15 * np.exp(0.8 * x[:, 0])
    return x, x[:, 1] + np.sin(x[:, 0]) + noise * generator.normal(size=samples), noise


def test_intervals_hold_where_the_noise_is_small_and_where_it_is_large(tmp_path: Any) -> None:
    """Thirds by the true noise: one noise holds all of the least third and too few of the other."""
    x, y, _ = with_noise(400, 0)
    new, answers, noise = with_noise(3000, 1)
    small, large = np.quantile(noise, (1 / 3, 2 / 3))
    shares, density = {}, {}
    for option in (None, "varying"):
        model = LiftedRegressor(activation="tanh", noise=option, random_state=0).fit(x, y)
        low, high = model.predict_interval(new)
        inside = (low <= answers) & (answers <= high)
        shares[option] = inside[noise <= small].mean(), inside[noise >= large].mean()
        found = posterior(model).predict(new)
        density[option] = float(found.log_density(answers).mean())
    assert shares[None][0] > 0.97 and shares[None][1] < 0.82
    off = {option: max(abs(share - 0.9) for share in each) for option, each in shares.items()}
    assert off["varying"] < off[None] / 2
    assert density["varying"] > density[None] + 0.3
    assert np.corrcoef(np.log(found.noise[:, 0]), np.log(noise))[0, 1] > 0.9
    # 4,000 draws: four standard errors of their deviation are a twentieth of it.
    spread = model.sample_y(new[:5], 4000).std(1)
    np.testing.assert_allclose(spread, model.predict(new[:5], return_std=True)[1], rtol=0.05)
    again = load(save(model, tmp_path / "model.safetensors"))
    far = np.r_[new, [[-1e6, 0.0], [1e6, 0.0]]]  # where the logarithm of a precision is large
    np.testing.assert_allclose(again.predict_interval(far), model.predict_interval(far))
    np.testing.assert_allclose(model.predict_interval(far)[0][:-2], model.predict_interval(new)[0])
    refuses(DataError, "a noise that varies", getattr, again, "log_evidence_")
    assert not hasattr(again, "log_evidence_")


@pytest.mark.filterwarnings("ignore:.*different samples count as")
def test_whole_weights_are_copies() -> None:
    x, y, _ = with_noise(100, 2)
    counts = np.random.default_rng(0).integers(0, 3, 100)
    model = LiftedRegressor(activation="tanh", noise="varying", random_state=0)
    weighed = model.fit(x, y, sample_weight=counts).predict(x, return_std=True)
    copied = model.fit(x.repeat(counts, 0), y.repeat(counts)).predict(x, return_std=True)
    np.testing.assert_allclose(weighed, copied, rtol=1e-4, atol=1e-5)


NOT_WITH_VARYING = [
    ({"noise": "vary"}, "follows X; got 'vary'"),
    ({"loss": "poisson"}, "is of squares"),
    ({"early_stopping": True}, "without early_stopping"),
    ({"method": "minibatch"}, "goes without settings"),
]


@pytest.mark.parametrize(("options", "words"), NOT_WITH_VARYING)
def test_what_a_varying_noise_does_not_go_with_is_refused(options: Any, words: str) -> None:
    x, y, _ = with_noise(30, 0)
    refuses(DataError, words, lambda: LiftedRegressor(**{"noise": "varying", **options}).fit(x, y))
    refuses(DataError, "one output", lambda: LiftedRegressor(noise="varying").fit(x, np.c_[y, y]))


def counted(samples: int, seed: int, rate: float = 3.0) -> tuple[Any, Any, Any]:
    generator = np.random.default_rng(seed)
    x = generator.uniform(-1, 1, (samples, 2))
    rates = rate * np.exp(x[:, 0] - x[:, 1] / 2)
    return x, generator.poisson(rates).astype(float), rates


def test_the_evidence_of_counts_is_that_of_an_integral(draw) -> None:
    """One weight of a Poisson regression: its likelihood and prior, integrated."""
    x = torch.from_numpy(draw.uniform(-1, 1, (60, 1)))
    y = torch.from_numpy(draw.poisson(x.exp()).astype(float))
    options: dict[str, Any] = {"bias": False, "standardize": False, "method": BY_EVIDENCE}
    model = LiftedMLP((1, 1), loss=Poisson(), **options).fit(x, y)
    (penalty,) = model.structure.penalties.values()
    weights = np.linspace(-4, 4, 1_001)

    def logarithm(rho: float) -> float:
        likelihood = poisson.logpmf(y.numpy(), np.exp(x.numpy() * weights)).sum(0)
        prior = np.log(rho / np.pi) / 2 - rho * weights**2
        return float(logsumexp(likelihood + prior) + np.log(weights[1] - weights[0]))

    rho = penalty.curvature / 2
    assert posterior(model).log_evidence == pytest.approx(logarithm(rho), abs=0.02)
    best = max(np.geomspace(rho / 100, 100 * rho, 81), key=logarithm)
    assert best / 1.5 < rho < 1.5 * best


def test_a_linear_network_is_scikit_learns_poisson_regression() -> None:
    """sum of D + rho |w|^2 is N times the mean of D + (alpha / 2) |w|^2, alpha = 2 rho / N."""
    x, y, _ = counted(80, 1)
    other = PoissonRegressor(alpha=8.0 / 80, tol=1e-10, max_iter=1000).fit(x, y)
    np.testing.assert_allclose(linear_fit(Poisson(), 4.0, x, y), other.predict(x), rtol=1e-5)


@pytest.mark.parametrize(
    ("center", "width", "off"),
    [(0.7, 0.6, 1e-6), (7.0, 0.6, 0.06), (9.0, 0.3, 0.06), (2.0, 3.0, 0.06)],
)
def test_counts_around_a_rate_are_those_of_an_integral(center, width, off) -> None:
    """Of large rates every count is told by many, of which the rule has a few."""
    mean, std = torch.tensor([[[center]], [[width]]]).double()
    law = CountPrediction.around(mean, std, torch.ones(1))
    z = np.linspace(-9, 9, 20_001)
    shares, rates = norm.pdf(z) * (z[1] - z[0]), np.exp(center + width * z)
    counts = np.unique(np.exp(center + width * np.linspace(-2, 2, 30)).round())
    right = [np.log(poisson.pmf(k, rates) @ shares) for k in counts]
    found = law.log_density(counts[:, None])[:, 0]
    np.testing.assert_allclose(found, right, atol=off)
    for level in (0.05, 0.5, 0.95):
        count = float(law.quantile(level))
        passed = [poisson.cdf(k, rates) @ shares for k in (count - 1, count)]
        assert passed[0] - off / 10 < level < passed[1] + off / 10


def test_intervals_hold_counts_as_often_as_those_of_the_true_rates_and_these_too() -> None:
    """What an interval of 90 % holds of rates of one fit has a deviation of .1 to .15."""
    inside, right, held = [], [], []
    for seed in range(5):
        x, y, _ = counted(100, seed)
        new, answers, rates = counted(1000, 100 + seed)
        model = LiftedRegressor((4,), "tanh", loss="poisson", random_state=0).fit(x, y)
        low, high = model.predict_interval(new)
        inside.append(((low <= answers) & (answers <= high)).mean())
        low, high = poisson.ppf(0.05, rates), poisson.ppf(0.95, rates)
        right.append(((low <= answers) & (answers <= high)).mean())
        assert np.abs(np.log(model.predict(new) / rates)).mean() < 0.25
        drawn = posterior(model).sample(torch.from_numpy(new), 400, noise=False)[..., 0]
        low, high = np.quantile(drawn.numpy(), (0.05, 0.95), axis=0)
        held.append(((low <= rates) & (rates <= high)).mean())
    assert np.mean(inside) == pytest.approx(np.mean(right), abs=0.02)
    assert np.mean(held) > 0.8


def test_counts_are_drawn_around_their_means(tmp_path: Any) -> None:
    x, y, _ = counted(60, 2)
    model = LiftedRegressor((3,), "tanh", loss="poisson", random_state=0).fit(x, y)
    mean, std = model.predict(x[:5], return_std=True)
    np.testing.assert_allclose(mean, model.predict(x[:5]))
    drawn = model.sample_y(x[:5], 4000)
    assert (drawn == drawn.round()).all()
    # Sums of 4,000 draws: four standard errors of the variance are a tenth of it.
    np.testing.assert_allclose(drawn.std(1), std, rtol=0.1)
    again = load(save(model, tmp_path / "model.safetensors"))
    np.testing.assert_array_equal(again.predict_interval(x), model.predict_interval(x))
    left = posterior(model).leave_one_out()[:, 0].numpy()
    assert (left**2).sum() > ((y - model.predict(x)) ** 2).sum()


@pytest.mark.parametrize("mean", [3.0, 300.0])
def test_counts_that_vary_more_than_poissons_are_taken_as_such(mean: float) -> None:
    """Gamma rates of shape 2: log-linear, so that no network does better than the regression."""
    random = np.random.default_rng(3)
    x = random.normal(size=(2100, 3))
    y = random.poisson(mean * np.exp(0.5 * x[:, 0]) * random.gamma(2, 0.5, 2100)).astype(float)
    train, new = slice(100), slice(100, None)
    model = LiftedRegressor(loss="poisson", random_state=0).fit(x[train], y[train])
    other = PoissonRegressor(alpha=1e-3).fit(x[train], y[train]).predict(x[new])
    lost = np.square(y[new] - model.predict(x[new])).mean()
    assert lost < 1.15 * np.square(y[new] - other).mean()
    low, high = model.predict_interval(x[new])
    assert 0.8 < ((low <= y[new]) & (y[new] <= high)).mean() < 0.98
    found = posterior(model)
    fitted = model.predict(x[train])
    pearson = np.sum((y[train] - fitted) ** 2 / fitted)
    assert found.laplace.noise[0] == found.laplace.scale == pytest.approx(pearson / 90, rel=0.12)
    refuses(DataError, "numbers of 0 or more, got -", model.fit, x, -y)


@pytest.mark.parametrize("longest", [0.1, 10.0])
def test_rates_over_times_are_not_dispersed(longest: float) -> None:
    random = np.random.default_rng(4)
    x, times = random.normal(size=(200, 2)), random.uniform(longest / 5, longest, 200)
    counts = random.poisson(20 * np.exp(0.5 * x[:, 0]) * times)
    model = LiftedRegressor(loss="poisson", random_state=0)
    found = posterior(model.fit(x, counts / times, sample_weight=times))
    assert found.laplace.scale == float(found.laplace.noise[0]) == 1
    assert np.abs(np.log(model.predict(x) / (20 * np.exp(0.5 * x[:, 0])))).mean() < 0.2


def test_counts_of_several_variances_are_negative_binomials(generator) -> None:
    rates, s = 7.0, torch.tensor([1.0, 3.5]).double()
    sure = torch.full((1, 2), np.log(rates), dtype=torch.float64)
    law = CountPrediction.around(sure, 0 * sure, s)
    y = torch.arange(40).double()[:, None].expand(-1, 2)
    laws = poisson(rates), nbinom(rates / 2.5, 1 / 3.5)
    right = np.stack([one.logpmf(np.arange(40)) for one in laws], 1)
    np.testing.assert_allclose(law.log_density(y), right, rtol=1e-9)
    for level in (0.05, 0.5, 0.95):
        assert law.quantile(level)[0].tolist() == [one.ppf(level) for one in laws]
    np.testing.assert_allclose(law.std[0], np.sqrt(rates * s.numpy()))
    drawn = Poisson().drawn(sure.expand(40_000, -1), Noise(s), generator)
    # four standard errors of a variance are .03 and .05 of it
    np.testing.assert_allclose(drawn.var(0), rates * s.numpy(), rtol=0.06)
    np.testing.assert_allclose(drawn.mean(0), [rates, rates], rtol=0.02)
