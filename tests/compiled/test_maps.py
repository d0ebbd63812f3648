"""The catalogue's maps in compiled loops: against torch, and the prox against roots by scipy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from liftednet import activations
from liftednet.activation import Activation
from liftednet.activations.loops import compiled_prox, few, loop_map
from liftednet.activations.piecewise_linear import Bounded
from liftednet.compiled import maps

KNOWN: list[Activation] = [
    activations.Identity(),
    activations.ReLU(),
    activations.LeakyReLU(0.2),
    activations.PReLU(0.3),
    activations.Clipped(-0.5, 2.0),
    activations.Sigmoid(),
    activations.Tanh(),
    activations.Arctan(),
    activations.Sine(),
    activations.Softplus(),
    activations.ELU(),
    Bounded(activations.Sigmoid(), 0.2, 0.7),
    Bounded(activations.Softplus(), -math.inf, 3.0),
]
POINTS = torch.cat(
    [
        torch.linspace(-8, 8, 161, dtype=torch.float64),
        torch.tensor([-900.0, -40.0, -1e-9, 1e-9, 1e-5, 40.0, 900.0], dtype=torch.float64),
    ]
).unsqueeze(1)


def _each(function: Any, activation: Activation, points: torch.Tensor, *rest: float) -> Any:
    known = loop_map(activation)
    return np.array([function(known, float(x), *rest) for x in points[:, 0]])


@pytest.mark.parametrize("activation", KNOWN, ids=repr)
def test_maps_are_those_of_torch(activation: Activation) -> None:
    states = activation.forward(POINTS)
    for function, at, expected in (
        (maps.forward, POINTS, states[:, 0]),
        (maps.slope, POINTS, activation.slope(POINTS)[:, 0]),
        (maps.potential, states, activation.potential_value(states)),
        (maps.conjugate, POINTS, activation.conjugate_value(POINTS)),
    ):
        found = _each(function, activation, at)
        assert found == pytest.approx(expected.numpy(), rel=1e-12, abs=1e-8)
    known = loop_map(activation)
    assert known is not None
    zero = activation.forward(torch.zeros(1, 1, dtype=torch.float64))
    assert known.center == pytest.approx(float(zero), abs=1e-16)


@pytest.mark.parametrize("activation", KNOWN, ids=repr)
@pytest.mark.parametrize("t", [1e-6, 0.3, 50.0])
def test_the_prox_is_the_root_that_scipy_finds(activation: Activation, t: float) -> None:
    known, inner = loop_map(activation), getattr(activation, "inner", activation)
    assert known is not None

    def gap(x: float, w: float) -> float:
        phi = inner.forward(torch.tensor([[x]], dtype=torch.float64))
        return float(phi) + t * x - w

    for w in (-30.0, -0.7, 1e-3, 0.4, 1.3, 20.0):
        reach = (abs(w) + 2) / t
        root = brentq(gap, -reach, reach, args=(w,), xtol=1e-15 * max(1.0, reach), rtol=1e-14)
        expected = min(max(w - t * root, known.low), known.high)
        assert maps.prox(known, w, t, 1.5e-8) == pytest.approx(expected, rel=1e-7, abs=1e-9)


def test_outside_the_domain_the_potential_is_infinite() -> None:
    for activation, v in (
        (activations.Sigmoid(), 1.1),
        (activations.Tanh(), -1.1),
        (activations.Arctan(), 1.6),
        (activations.Sine(), 1.01),
        (activations.Softplus(), -0.1),
        (activations.ELU(), -1.1),
        (Bounded(activations.Sigmoid(), 0.2, 0.7), 0.1),
        (activations.Clipped(0.0, 1.0), 1.1),
    ):
        assert maps.potential(loop_map(activation), v) == math.inf


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_prox_of_few_entries_is_that_of_many(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(60, 100, generator=generator, dtype=torch.float64).to(dtype)
    t = torch.rand(60, 1, generator=generator, dtype=torch.float64).to(dtype) + 0.1
    assert few(w[:4].numel()) and not few(w.numel())
    for activation in (activations.Sigmoid(), activations.Softplus()):
        for weight in (0.4, t):
            some = weight if isinstance(weight, float) else weight[:4]
            whole, part = activation.prox(w, weight), activation.prox(w[:4], some)
            assert part.dtype is dtype
            assert torch.allclose(part, whole[:4], rtol=40 * torch.finfo(dtype).eps, atol=1e-15)


def test_maps_that_loops_do_not_know_are_left_to_torch() -> None:
    class Doubled(activations.Sigmoid):  # what a subclass declares is its own
        def forward(self, u: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(u)

        def slope(self, u: torch.Tensor) -> torch.Tensor:
            return 2 * super().slope(u)

    w = torch.ones(1, 2, dtype=torch.float64)
    for activation in (Doubled(), activations.Sign(), activations.PReLU([0.1, 0.2])):
        assert loop_map(activation) is None and compiled_prox(activation, w, 1.0) is None
    v = Doubled().prox(w, 0.5)
    assert torch.allclose(Doubled().forward((w - v) / 0.5), v)
