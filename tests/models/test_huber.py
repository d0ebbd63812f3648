"""Huber's loss by the evidence: its noise against integrals, fits and intervals with outliers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from sklearn.linear_model import HuberRegressor

from liftednet import LiftedRegressor, load, posterior, save
from liftednet.losses import Huber
from liftednet.models import GaussNewton, LiftedMLP
from liftednet.noise import Noise


def drawn(samples: int, seed: int, far: float = 100.0) -> tuple[Any, Any, Any]:
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


def test_a_linear_network_is_scikit_learns_huber_regression() -> None:
    """Its minimum of n s + s sum H(r / s) + alpha |w|^2 has our loss with delta = epsilon s."""
    x, y, _ = drawn(120, 0, far=10.0)
    other = HuberRegressor(alpha=1.0, max_iter=1000, tol=1e-9).fit(x, y)
    delta, rho = 1.35 * other.scale_, 1.0 * other.scale_ / 2
    method = GaussNewton(steps=300, tolerance=1e-10)
    options: dict[str, Any] = {"rho": rho, "standardize": False, "method": method}
    model = LiftedMLP((2, 1), loss=Huber(delta), **options)
    ours = model.fit(torch.from_numpy(x), torch.from_numpy(y)[:, None])
    np.testing.assert_allclose(
        ours.predict(torch.from_numpy(x))[:, 0], other.predict(x), atol=1e-4 * np.abs(y).max()
    )


def test_intervals_hold_and_outliers_move_no_answer(tmp_path: Any) -> None:
    x, y, _ = drawn(200, 0)
    new, answers, f = drawn(2000, 1)
    model = LiftedRegressor(loss="huber:0.45", random_state=0).fit(x, y)
    assert np.sqrt(np.mean((model.predict(new) - f) ** 2)) < 0.15
    low, high = model.predict_interval(new)
    # Seven standard errors of a share of 2,000 answers are .05.
    assert ((low <= answers) & (answers <= high)).mean() == pytest.approx(0.9, abs=0.05)
    squares = LiftedRegressor((4,), "tanh", random_state=0).fit(x, y)
    told = [float(posterior(m).predict(torch.from_numpy(new)).log_density(
        torch.from_numpy(answers)[:, None]).mean()) for m in (model, squares)]  # fmt: skip
    assert told[0] > told[1] + 1
    assert model.log_evidence_ > squares.log_evidence_ + 100
    mean, std = model.predict(new[:5], return_std=True)
    drawn_ones = model.sample_y(new[:5], 10_000)
    np.testing.assert_allclose(np.median(drawn_ones, 1), mean, atol=0.1)
    np.testing.assert_allclose(drawn_ones.std(1), std, rtol=0.2)  # of tails
    save(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    np.testing.assert_allclose(again.predict_interval(new), (low, high))


def test_units_of_the_targets_do_not_matter() -> None:
    x, y, _ = drawn(100, 2)
    new = drawn(50, 3)[0]
    one, other = (
        LiftedRegressor((4,), "tanh", loss=Huber(0.45 * unit), random_state=0, max_iter=20).fit(
            x, unit * y + unit
        )
        for unit in (1.0, 1024.0)
    )
    ends = np.array(other.predict_interval(new)) / 1024
    np.testing.assert_allclose(ends, one.predict_interval(new), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("level", [0.1, 0.95])
def test_a_quantile_has_its_share_of_the_answers(level: float) -> None:
    """Exactly, where training rounds the kink of the loss over a tenth of their deviation."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(400, 3))
    y = x[:, 0] - 2 * x[:, 1] + 0.3 * generator.normal(size=400)
    model = LiftedRegressor((4,), "tanh", loss=f"quantile:{level}", random_state=0)
    model.fit(x[:200], y[:200])
    assert (y[:200] <= model.predict(x[:200]) + 1e-4).mean() == pytest.approx(level, abs=0.011)
    counts = generator.integers(0, 4, 200)
    model.fit(x[:200], y[:200], sample_weight=counts)
    below = y[:200] <= model.predict(x[:200]) + 1e-4
    assert (counts @ below) / counts.sum() == pytest.approx(level, abs=0.02)
