"""Counts: Poisson regression by the evidence, against integrals, scikit-learn and drawn data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import logsumexp
from scipy.stats import nbinom, norm, poisson
from sklearn.linear_model import PoissonRegressor

from liftednet import LiftedRegressor, load, posterior, save
from liftednet.errors import DataError
from liftednet.losses import Poisson
from liftednet.models import GaussNewton, LiftedMLP
from liftednet.noise import Noise
from liftednet.predictions import CountPrediction

BY_EVIDENCE = GaussNewton(steps=200, evidence=True)


def counted(samples: int, seed: int, rate: float = 3.0) -> tuple[Any, Any, Any]:
    generator = np.random.default_rng(seed)
    x = generator.uniform(-1, 1, (samples, 2))
    rates = rate * np.exp(x[:, 0] - x[:, 1] / 2)
    return x, generator.poisson(rates).astype(float), rates


def test_the_evidence_of_counts_is_that_of_an_integral() -> None:
    """One weight of a Poisson regression: its likelihood and prior, integrated."""
    generator = np.random.default_rng(0)
    x = torch.from_numpy(generator.uniform(-1, 1, (60, 1)))
    y = torch.from_numpy(generator.poisson(x.exp()).astype(float))
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
    method = GaussNewton(steps=200, tolerance=1e-10)
    model = LiftedMLP((2, 1), loss=Poisson(), rho=4.0, standardize=False, method=method)
    model.fit(torch.from_numpy(x), torch.from_numpy(y)[:, None])
    other = PoissonRegressor(alpha=8.0 / 80, tol=1e-10, max_iter=1000).fit(x, y)
    ours = model.predict(torch.from_numpy(x))[:, 0]
    np.testing.assert_allclose(ours, other.predict(x), rtol=1e-5)


def test_counts_around_a_rate_are_those_of_an_integral() -> None:
    center, width = 0.7, 0.6
    law = CountPrediction.around(
        torch.tensor([[center]]).double(), torch.tensor([[width]]).double(), torch.ones(1)
    )
    right = [
        quad(lambda u, k=k: poisson.pmf(k, np.exp(u)) * norm.pdf(u, center, width), -4, 5)[0]
        for k in range(30)
    ]
    found = law.log_density(torch.arange(30).double()[:, None]).exp()[:, 0]
    np.testing.assert_allclose(found, right, atol=1e-6)
    passed = np.cumsum(right)
    for level in (0.05, 0.5, 0.95):
        assert float(law.quantile(level)) == np.searchsorted(passed, level)


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
    save(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict_interval(x), model.predict_interval(x))
    left = posterior(model).leave_one_out()[:, 0].numpy()
    assert (left**2).sum() > ((y - model.predict(x)) ** 2).sum()


@pytest.mark.parametrize("mean", [3.0, 300.0])
def test_counts_that_vary_more_than_poissons_are_taken_as_such(mean: float) -> None:
    """Gamma rates of shape 2: log-linear, so that no network does better than the regression."""
    random = np.random.default_rng(3)
    x = random.normal(size=(2100, 3))
    rates = mean * np.exp(0.5 * x[:, 0])
    y = random.poisson(rates * random.gamma(2, 0.5, 2100)).astype(float)
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
    with pytest.raises(DataError, match="numbers of 0 or more, got -"):
        LiftedRegressor(loss="poisson").fit(x, -y)


@pytest.mark.parametrize("longest", [0.1, 10.0])
def test_rates_over_times_are_not_dispersed(longest: float) -> None:
    random = np.random.default_rng(4)
    x, times = random.normal(size=(200, 2)), random.uniform(longest / 5, longest, 200)
    counts = random.poisson(20 * np.exp(0.5 * x[:, 0]) * times)
    model = LiftedRegressor(loss="poisson", random_state=0)
    found = posterior(model.fit(x, counts / times, sample_weight=times))
    assert found.laplace.scale == float(found.laplace.noise[0]) == 1
    assert np.abs(np.log(model.predict(x) / (20 * np.exp(0.5 * x[:, 0])))).mean() < 0.2


def test_counts_of_several_variances_are_negative_binomials() -> None:
    rates, s = 7.0, torch.tensor([1.0, 3.5]).double()
    sure = torch.full((1, 2), np.log(rates), dtype=torch.float64)
    law = CountPrediction.around(sure, 0 * sure, s)
    y = torch.arange(40).double()[:, None].expand(-1, 2)
    shape = rates / 2.5
    right = np.c_[
        poisson.logpmf(np.arange(40), rates), nbinom.logpmf(np.arange(40), shape, 1 / 3.5)
    ]
    np.testing.assert_allclose(law.log_density(y), right, rtol=1e-9)
    for level in (0.05, 0.5, 0.95):
        wanted = [poisson.ppf(level, rates), nbinom.ppf(level, shape, 1 / 3.5)]
        assert law.quantile(level)[0].tolist() == wanted
    np.testing.assert_allclose(law.std[0], np.sqrt(rates * s.numpy()))
    generator = torch.Generator().manual_seed(0)
    drawn = Poisson().drawn(sure.expand(40_000, -1), Noise(s), generator)
    # four standard errors of a variance are .03 and .05 of it
    np.testing.assert_allclose(drawn.var(0), rates * s.numpy(), rtol=0.06)
    np.testing.assert_allclose(drawn.mean(0), [rates, rates], rtol=0.02)
