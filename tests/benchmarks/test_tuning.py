"""The search that every compared method gets, and the control with exact gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional

from benchmarks.harness.exact import exact_gradients
from benchmarks.harness.runs import tuned
from liftednet.models import LiftedMLP, Minibatch
from liftednet.models.methods.minibatch import BatchSteps


@dataclass(frozen=True)
class Setting:
    rate: float = 1e-3
    start: str = "normal"


@pytest.mark.parametrize("best", [1e-5, 1e-3, 0.3])
def test_a_search_goes_on_until_its_best_is_inside(best):
    tried = []

    def score(setting: Setting) -> float:
        tried.append(setting)
        return (setting.start == "good") - abs(math.log10(setting.rate / best))

    found, count = tuned(Setting(), [("rate", 3.0), ("start", ("good", "bad"))], score)
    assert found.start == "good"
    assert abs(math.log10(found.rate / best)) <= math.log10(3) / 2 + 0.05
    rates = [setting.rate for setting in tried]
    assert min(rates) < found.rate < max(rates)
    assert count == len(tried) == len(set(tried))


def test_the_control_has_the_gradients_of_autograd():
    source = torch.Generator().manual_seed(0)
    x = torch.randn(7, 5, generator=source, dtype=torch.float64)
    y = torch.randint(3, (7,), generator=source)
    model = LiftedMLP((5, 6, 4, 3), lam=0.5, standardize=False, seed=1, dtype=torch.float64)
    weights = [layer.to(x) for layer in model._first_weights()]
    steps = BatchSteps(model.structure, weights, Minibatch(), source)
    batch = model._data(x, y)

    def found() -> torch.Tensor:
        with torch.no_grad():
            found = steps.gradients
            return found.of(batch, steps.weights, found.counts(batch), 1.0)[1][0].parts[0]

    u = weights[0].apply(x).requires_grad_()
    output = weights[2].apply(weights[1].apply(u.relu()).relu())
    loss = functional.cross_entropy(output, y)
    (wanted,) = torch.autograd.grad(loss, u)
    with exact_gradients():
        assert torch.allclose(found(), wanted, atol=1e-12)
    assert not torch.allclose(found(), wanted, atol=1e-3 * float(wanted.abs().max()))
