"""Noise whose size follows X: intervals on drawn data, draws, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from liftednet import LiftedRegressor, load, posterior, save
from liftednet.errors import DataError
from tests.models.networks import refuses


def drawn(samples: int, seed: int) -> tuple[Any, Any, Any]:
    generator = np.random.default_rng(seed)
    x = generator.uniform(-2, 2, (samples, 2))
    noise = 0.15 * np.exp(0.8 * x[:, 0])
    return x, x[:, 1] + np.sin(x[:, 0]) + noise * generator.normal(size=samples), noise


def test_intervals_hold_where_the_noise_is_small_and_where_it_is_large(tmp_path: Any) -> None:
    """Thirds by the true noise: one noise holds all of the least third and too few of the other."""
    x, y, _ = drawn(400, 0)
    new, answers, noise = drawn(3000, 1)
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
    with pytest.raises(DataError, match="a noise that varies"):
        _ = again.log_evidence_


@pytest.mark.filterwarnings("ignore:.*different samples count as")
def test_whole_weights_are_copies() -> None:
    x, y, _ = drawn(100, 2)
    counts = np.random.default_rng(0).integers(0, 3, 100)
    model = LiftedRegressor(activation="tanh", noise="varying", random_state=0)
    weighed = model.fit(x, y, sample_weight=counts).predict(x, return_std=True)
    copied = model.fit(x.repeat(counts, 0), y.repeat(counts)).predict(x, return_std=True)
    np.testing.assert_allclose(weighed, copied, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"noise": "vary"}, "follows X; got 'vary'"),
        ({"loss": "poisson"}, "is of squares"),
        ({"early_stopping": True}, "without early_stopping"),
        ({"method": "minibatch"}, "goes without settings"),
    ],
)
def test_what_a_varying_noise_does_not_go_with_is_refused(options: Any, words: str) -> None:
    x, y, _ = drawn(30, 0)
    refuses(DataError, words, lambda: LiftedRegressor(**{"noise": "varying", **options}).fit(x, y))
    refuses(DataError, "one output", lambda: LiftedRegressor(noise="varying").fit(x, np.c_[y, y]))
