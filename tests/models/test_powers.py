"""Skewed targets: Yeo and Johnson's power, its means, quantiles and densities, and who keeps it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import lognorm, norm, yeojohnson

from liftednet import LiftedRegressor, certify, load, optimize, posterior, save, to_cvxpy, to_torch
from liftednet.models.bounds.curves import mean_of_power
from liftednet.models.by_evidence import power_of
from liftednet.power import Power
from liftednet.predictions import PowerPrediction, Prediction


def power(exponent: float, noise: float = 0.5) -> Power:
    parts = (2.0, 3.0, exponent, noise, -np.inf, np.inf)
    return Power(*(torch.tensor([x], dtype=torch.float64) for x in parts))


def skewed(samples: int = 150, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return exp of a line and noise of .3: y / exp(line) is log-normal."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(samples, 2))
    return x, np.exp(x @ [1.0, 0.5] + 0.3 * draw.normal(size=samples))


@pytest.fixture(scope="module")
def fitted() -> LiftedRegressor:
    return LiftedRegressor(random_state=0).fit(*skewed())


@pytest.mark.parametrize("exponent", [0.0, 1e-9, 0.3, 1.0, 1.7, 2.0])
def test_it_is_the_transformation_of_scipy_and_its_inverse(exponent: float) -> None:
    y = torch.linspace(-20, 20, 40, dtype=torch.float64)[:, None]
    one = power(exponent)
    t = one.of(y)
    np.testing.assert_allclose(t[:, 0], yeojohnson((y[:, 0].numpy() - 2) / 3, exponent), rtol=1e-6)
    torch.testing.assert_close(one.quantile(t), y, rtol=1e-6, atol=1e-6)
    _, slopes = torch.autograd.functional.jvp(one.of, y, torch.ones_like(y))
    torch.testing.assert_close(one.log_slopes(y), slopes.log(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.5])
def test_means_and_deviations_are_integrals(exponent: float) -> None:
    one, at = power(exponent), torch.tensor([0.4], dtype=torch.float64)

    def y_at(z: float) -> float:
        return float(one.quantile(at + 0.5 * z))

    def density(z: float) -> float:
        return float(np.exp(-z * z / 2) / np.sqrt(2 * np.pi))

    mean = quad(lambda z: y_at(z) * density(z), -9, 9, points=[-0.8])[0]
    variance = quad(lambda z: (y_at(z) - mean) ** 2 * density(z), -9, 9, points=[-0.8])[0]
    found = one.moments(at, torch.tensor([0.5], dtype=torch.float64))
    # psi has a second derivative that jumps at its center: the quadrature has three digits
    assert float(one.mean(at)) == pytest.approx(mean, rel=2e-3)
    assert float(found[0]) == pytest.approx(mean, rel=2e-3)
    assert float(found[1]) == pytest.approx(np.sqrt(variance), rel=5e-3)


def test_linear_fits_see_skewed_targets_and_leave_others() -> None:
    x, y = skewed()
    found = power_of(x, y[:, None])
    assert found is not None and float(found.exponent) < 0.5
    weights = np.random.default_rng(1).integers(0, 3, 150)
    one = power_of(x, y[:, None], weights.astype(float))
    other = power_of(np.repeat(x, weights, 0), np.repeat(y, weights)[:, None])
    assert one is not None and other is not None
    assert torch.equal(one.exponent, other.exponent) and torch.equal(one.center, other.center)
    mirrored = power_of(x, -y[:, None])
    assert mirrored is not None
    torch.testing.assert_close(mirrored.exponent, 2 - found.exponent, atol=0.26, rtol=0)
    assert power_of(x, np.log(y)[:, None]) is None
    assert power_of(x, np.zeros((150, 1))) is None
    assert power_of(x[:19], y[:19, None]) is None  # by chance


def test_densities_and_intervals_are_those_of_log_normal_answers(fitted: LiftedRegressor) -> None:
    x, y = skewed(2000, seed=1)
    truth = np.exp(x @ [1.0, 0.5])
    found = posterior(fitted).predict(torch.from_numpy(x))
    least = -lognorm.logpdf(y, 0.3, scale=truth).mean()  # no other density expects less
    assert least < -float(found.log_density(torch.from_numpy(y)[:, None]).mean()) < least + 0.25
    low, high = fitted.predict_interval(x)
    assert 0.85 < ((low < y) & (y < high)).mean() < 0.95
    assert np.median(high - fitted.predict(x)) > 1.2 * np.median(fitted.predict(x) - low)
    where = np.linspace(-30, 60, 20_001)
    one = posterior(fitted).predict(torch.zeros(1, 2, dtype=torch.float64))
    total = np.trapezoid(one.log_density(torch.from_numpy(where)[:, None]).exp()[:, 0], where)
    assert total == pytest.approx(1, abs=0.01)


def test_means_are_given_of_answers_that_training_has() -> None:
    one = power(0.5)
    narrow = replace(one, lowest=torch.tensor([-1.0]), highest=torch.tensor([2.0])).to(one.center)
    far = torch.tensor([[-5.0], [-1.0], [0.5], [2.0], [9.0]], dtype=torch.float64)
    torch.testing.assert_close(narrow.mean(far), one.mean(far.clamp(-1, 2)))
    torch.testing.assert_close(narrow.quantile(far), one.quantile(far))
    said = Prediction(far, torch.full_like(far, 0.3), torch.full_like(far, 0.4))
    found = PowerPrediction.of(narrow, said)
    torch.testing.assert_close(found.mean, narrow.mean(far))
    within = PowerPrediction.of(narrow, replace(said, mean=far.clamp(-1, 2)))
    beyond = one.quantile(far) - one.quantile(far.clamp(-1, 2))
    torch.testing.assert_close(found.ignorance, torch.hypot(within.ignorance, beyond))
    low, high = found.interval(2 * norm.cdf(1) - 1)  # one deviation to both sides
    reach = (0.3**2 + 0.4**2 + (far - far.clamp(-1, 2)) ** 2).sqrt()
    torch.testing.assert_close(low, one.quantile(far.clamp(-1, 2) - reach))
    torch.testing.assert_close(high, one.quantile(far.clamp(-1, 2) + reach))
    for noise, end in ((0.05, 3.0), (0.2, 1.0)):  # of answers whose deviation is 1
        ends = one.fitted(torch.tensor([[-1.0], [1.0]]), torch.tensor([noise]))
        assert (float(ends.lowest), float(ends.highest)) == (-end, end)


@pytest.mark.parametrize(("factor", "shift"), [(-1.0, 0.0), (1.0, -5.0), (1e-3, 0.0), (1e3, 0.0)])
def test_a_warm_start_to_other_targets_takes_another_power(factor: float, shift: float) -> None:
    x, y = skewed()
    other = factor * y + shift
    fresh = LiftedRegressor(random_state=0).fit(x, other)
    warm = LiftedRegressor(random_state=0, warm_start=True).fit(x, y).fit(x, other)
    np.testing.assert_allclose(warm.predict(x), fresh.predict(x), rtol=1e-6, atol=1e-9)


def test_targets_of_rows_that_weigh_nothing_choose_no_power() -> None:
    x, y = skewed()
    both, ends = np.r_[x, x[:10]], np.r_[y, np.full(10, -999.0)]
    weights = np.r_[np.ones(150), np.zeros(10)]
    with_others = LiftedRegressor(random_state=0).fit(both, ends, sample_weight=weights)
    alone = LiftedRegressor(random_state=0).fit(x, y)
    np.testing.assert_allclose(with_others.predict(x), alone.predict(x), rtol=1e-6)


def test_without_noise_answers_go_beyond_those_of_training(draw) -> None:
    x = draw.uniform(-1, 1, size=(340, 3))
    y = np.exp(x.sum(1))
    seen = np.flatnonzero(y < 6)[:40]
    found = LiftedRegressor(random_state=0).fit(x[seen], y[seen]).predict(x)
    np.testing.assert_allclose(found, y, rtol=0.25)  # to more than twice the largest of them


@pytest.mark.parametrize("logarithmic", [True, False])
def test_it_draws_answers_and_answers_their_means_or_medians(fitted, logarithmic: bool) -> None:
    x, y = skewed()
    if not logarithmic:
        fitted = LiftedRegressor(random_state=0).fit(x, (4 + np.log(y)) ** 2)
    x, _ = skewed(50, seed=2)
    mean, std = fitted.predict(x, return_std=True)
    np.testing.assert_allclose(mean, fitted.predict(x))
    drawn = fitted.sample_y(x, 4000)
    if logarithmic:
        np.testing.assert_allclose(np.median(drawn, 1), mean, rtol=0.03)
        return
    # Means of 4,000 draws are off by std / 63; those of draws have ignorance in them, too.
    assert (abs(drawn.mean(1) - mean) < 0.15 * std).all()
    np.testing.assert_allclose(drawn.std(1), std, rtol=0.2)
    low, high = (end[:, None] for end in fitted.predict_interval(x, 0.5))
    assert ((drawn > low) & (drawn < high)).mean() == pytest.approx(0.5, abs=0.02)


def test_files_and_modules_have_it(fitted, tmp_path: Path) -> None:
    x: Any = torch.from_numpy(skewed(20, seed=3)[0])
    again = load(save(fitted.model_, tmp_path / "model.safetensors"))
    torch.testing.assert_close(again.predict(x), fitted.model_.predict(x))
    found, wanted = (posterior(one).predict(x) for one in (again, fitted))
    torch.testing.assert_close(found.interval(0.9), wanted.interval(0.9))
    module = to_torch(fitted.model_)
    torch.testing.assert_close(module(x), fitted.model_.predict(x))
    program = torch.export.export(module, (x,)).module()
    torch.testing.assert_close(program(x), fitted.model_.predict(x))


@pytest.mark.parametrize("exponent", [0.0, 1e-9, 0.3, 1.0, 1.7, 2.0])
def test_means_bend_one_way_between_the_answers_of_training(exponent: float) -> None:
    one = replace(power(exponent), lowest=torch.tensor([-2.0]), highest=torch.tensor([3.0]))
    curve = mean_of_power(one.to(one.center))
    t = torch.linspace(-3, 4, 701, dtype=torch.float64)
    _, slopes = torch.autograd.functional.jvp(curve.forward, t, torch.ones_like(t))
    inside = (t > -2) & (t < 3)
    torch.testing.assert_close(curve.slope(t)[inside], slopes[inside])
    assert bool((curve.slope(t)[(t < -2) | (t > 3)] == 0).all())
    bends = np.diff(curve.forward(t)[inside].numpy(), 2)
    sign = -1 if exponent > 1 else 1
    assert curve.signs == (0, sign, 0) and (sign * bends > -1e-12).all()
    constant = mean_of_power(replace(one, lowest=one.highest))
    assert bool((constant.slope(t) == 0).all()) and float(constant.forward(t).std()) < 1e-12


@pytest.mark.parametrize("mirrored", [1, -1])
def test_programs_and_certificates_have_its_means(mirrored: int) -> None:
    x, y = skewed()
    model = LiftedRegressor(random_state=0).fit(x, mirrored * y)
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1.5, 41)] * 2), -1).reshape(-1, 2)
    seen, box = model.predict(grid), (-1, 1.5)
    inputs = cp.Variable(2)
    network = to_cvxpy(model, inputs, box=box)
    for direction in (cp.Minimize, cp.Maximize):
        best = optimize(network, direction(network.output[0]))
        extreme = seen.min() if direction is cp.Minimize else seen.max()
        assert best.proven and network.output.value == pytest.approx(model.predict([inputs.value]))
        sign = 1 if direction is cp.Minimize else -1
        assert sign * best.value <= sign * extreme + 1e-3 * abs(extreme)
        assert sign * best.bound <= sign * extreme + 1e-9
    found = certify(model, box=box)
    assert (found.increasing if mirrored > 0 else found.decreasing) == (0, 1)
    assert float(found.least) <= seen.min() and seen.max() <= float(found.most)
    (low,), (high,) = network.range()
    assert low <= seen.min() and seen.max() <= high
    assert (low > 0) if mirrored > 0 else (high < 0)  # as every answer is


def test_beyond_training_draws_and_intervals_are_of_one_distribution(draw) -> None:
    x = draw.uniform(-2, 2, (60, 1))
    y = np.exp(np.sin(2 * x[:, 0]) + 0.5 * draw.standard_normal(60))
    model = LiftedRegressor(random_state=0).fit(x, y)
    beyond = np.array([[0.0], [3.0], [4.0], [-4.0]])
    answers = model.sample_y(beyond, 4_000)
    for level in (0.1, 0.5, 0.9):
        low, high = model.predict_interval(beyond, level=level)
        held = (answers >= low[:, None]) & (answers <= high[:, None])
        np.testing.assert_allclose(held.mean(1), level, atol=0.05)
