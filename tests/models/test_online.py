"""Training on one batch after another, however small, and after a model was saved in between."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine

from liftednet import data, load, save
from liftednet.models import LiftedMLP
from liftednet.samples import spread


def fed(model, x, y, size, samples):
    order = torch.Generator().manual_seed(0)
    while samples > 0:
        for rows in torch.randperm(len(x), generator=order)[:samples].split(size):
            model.partial_fit(x[rows], y[rows])
        samples -= len(x)
    return model


def test_batches_of_eight_learn_digits():
    digits = data.digits()
    model = fed(LiftedMLP((64, 50, 10)), digits.x_train, digits.y_train, 8, 1_200)
    assert (model.predict(digits.x_test) == digits.y_test).double().mean() > 0.93


def test_single_samples_of_unlike_scales_learn_wine():
    x, y = (torch.from_numpy(part) for part in load_wine(return_X_y=True))
    model = fed(LiftedMLP((13, 20, 3), dtype=torch.float32), x.float(), y, 1, 400)
    assert (model.predict(x.float()) == y).double().mean() > 0.9


def test_scales_are_those_of_all_samples_so_far():
    x, y = (torch.from_numpy(part) for part in load_wine(return_X_y=True))
    one, other = LiftedMLP((13, 4, 3)), LiftedMLP((13, 4, 3))
    for rows in torch.arange(len(x)).split(10):
        one.partial_fit(x[rows], y[rows])
    other.partial_fit(x, y)
    found, wanted = (model._known.standardization.packed(model.network) for model in (one, other))
    for name in wanted:
        assert torch.allclose(found[name], wanted[name], rtol=1e-12, atol=0), name


@pytest.mark.parametrize("weighed", [False, True])
def test_spreads_of_parts_are_those_of_the_whole(weighed):
    generator = torch.Generator().manual_seed(0)
    x = 1e4 + torch.randn(50, 3, generator=generator, dtype=torch.float64)
    w = torch.rand(50, generator=generator, dtype=torch.float64) if weighed else None
    first, second = (spread(x[part], None if w is None else w[part]) for part in
                     (slice(0, 7), slice(7, 50)))  # fmt: skip
    both = first.with_more(second)
    mean = np.average(x, axis=0, weights=w)
    deviation = np.sqrt(np.average((x.numpy() - mean) ** 2, axis=0, weights=w))
    np.testing.assert_allclose(both.mean, mean, rtol=1e-14)
    np.testing.assert_allclose(both.deviation, deviation, rtol=1e-11)
    np.testing.assert_allclose(both.largest, abs(x.numpy() - mean).max(0), rtol=1e-11)


def test_a_saved_model_goes_on_from_its_weights_and_scales(tmp_path):
    digits = data.digits()
    model = fed(LiftedMLP((64, 50, 10)), digits.x_train, digits.y_train, 8, 600)
    again = load(save(model, tmp_path / "model.safetensors"))
    again = fed(again, digits.x_train, digits.y_train, 8, 80)
    assert (again.predict(digits.x_test) == digits.y_test).double().mean() > 0.9
