"""Every activation against what its equations say: closed forms, SciPy, and properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, special

from liftednet import Activation, activations
from liftednet.errors import DeclarationError
from tests.liftednet.activations.catalogue import SEPARABLE

by_name = pytest.mark.parametrize


def row(numbers: list[float]) -> torch.Tensor:
    return torch.tensor([numbers], dtype=torch.float64)


FORWARD = {
    activations.Identity(): lambda u: u,
    activations.ReLU(): lambda u: np.maximum(u, 0),
    activations.LeakyReLU(0.2): lambda u: np.where(u > 0, u, 0.2 * u),
    activations.Clipped(-1.0, 1.0): lambda u: np.clip(u, -1, 1),
    activations.Sigmoid(): special.expit,
    activations.Tanh(): np.tanh,
    activations.Softplus(): lambda u: np.logaddexp(u, 0),
    activations.ELU(): lambda u: np.where(u > 0, u, np.expm1(np.minimum(u, 0))),
    activations.Arctan(): np.arctan,
    activations.Sine(): lambda u: np.sin(np.clip(u, -np.pi / 2, np.pi / 2)),
    activations.Sign(): np.sign,
    activations.Softmax(): lambda u: special.softmax(u, axis=-1),
}


@by_name("activation", FORWARD, ids=repr)
def test_forward_is_the_map_of_its_name(activation, generator):
    u = 5 * torch.randn(50, 3, dtype=torch.float64, generator=generator)
    np.testing.assert_allclose(activation.forward(u), FORWARD[activation](u.numpy()), atol=1e-14)


@by_name("activation", SEPARABLE, ids=repr)
@by_name("u", [-7.3, -1.2, 0.0, 0.4, 3.1, 9.0])
def test_conjugate_is_the_integral_of_forward(activation, u):
    """Phi*(u) - Phi*(0) by SciPy's quadrature, split at the kinks."""
    kinks = (-math.pi / 2, -1, 1, math.pi / 2, 2, 3)
    inside = [x for x in kinks if min(0, u) < x < max(0, u)] or None

    def phi(x):
        return float(activation.forward(torch.tensor([[x]], dtype=torch.float64)))

    right, _ = integrate.quad(phi, 0, u, points=inside, epsabs=1e-12, epsrel=1e-12, limit=200)
    ends = activation.conjugate_value(torch.tensor([[u], [0.0]], dtype=torch.float64))
    assert float(ends[0] - ends[1]) == pytest.approx(right, rel=1e-9, abs=1e-9)


@by_name("v", [0.0, 1e-12, 0.3, 2.0, 50.0])
def test_softplus_potential_is_the_printed_integral(v):
    """Phi(v) is the integral of log(exp(z) - 1) from 0 to v."""

    def inverse(z):
        return z + math.log(-math.expm1(-z))

    right, _ = integrate.quad(inverse, 0, v, epsabs=1e-13, epsrel=1e-12, limit=500)
    value = activations.Softplus().potential_value(torch.tensor([[v]], dtype=torch.float64))
    assert float(value) == pytest.approx(right, rel=1e-9, abs=1e-12)


PAIRS = [
    (activations.Sigmoid(), torch.sigmoid),
    (activations.Tanh(), torch.tanh),
    (activations.Softplus(), torch.nn.Softplus(threshold=40)),
    (activations.ELU(), torch.nn.ELU()),
    (activations.Arctan(), torch.arctan),
    (activations.ReLU(), torch.relu),
    (activations.Clipped(-1.0, 1.0), torch.nn.Hardtanh()),
    (activations.LeakyReLU(0.2), torch.nn.LeakyReLU(0.2)),
]


@by_name("pair", PAIRS, ids=lambda pair: repr(pair[0]))
def test_a_map_alone_gives_what_the_closed_forms_give(pair, generator):
    closed, derived = pair[0], Activation.from_function(pair[1])
    u = 3 * torch.randn(40, 2, dtype=torch.float64, generator=generator)
    v = closed.forward(u)
    shift = derived.conjugate_value(0 * u[:1]) - closed.conjugate_value(0 * u[:1])
    assert derived.lipschitz == pytest.approx(closed.lipschitz, rel=1e-4)
    for t in (0.03, 1.0, 30.0):
        torch.testing.assert_close(derived.prox(u, t), closed.prox(u, t), rtol=1e-8, atol=1e-8)
    for name, points, sign in (("conjugate_value", u, 1), ("potential_value", v, -1)):
        found, right = (getattr(one, name)(points) for one in (derived, closed))
        torch.testing.assert_close(found - sign * shift, right, rtol=1e-7, atol=1e-7)


@by_name(
    "function, constant",
    [
        (torch.sign, None),
        (torch.exp, None),
        (lambda x: x**3, None),
        (torch.nn.functional.softsign, 1.0),
        (torch.nn.functional.hardtanh, 1.0),
        (lambda x: torch.tanh(7 * x), 7.0),
        (lambda x: 3 * x, 3.0),
        (lambda x: x + x.relu(), 2.0),
    ],
)
def test_a_lipschitz_constant_is_found_or_found_missing(function, constant):
    found = Activation.from_function(function).lipschitz
    assert found == (None if constant is None else pytest.approx(constant, rel=1e-4))


BENT = {
    "a jump off zero": (lambda x: (x - 0.5).sign(), lambda u: abs(u - 0.5) - 0.5),
    "kinks off zero": (
        lambda x: x.clamp(-0.7, 0.3),
        lambda u: min(max(u, -0.7), 0.3) * (u - min(max(u, -0.7), 0.3) / 2),
    ),
    "a steep step": (
        lambda x: torch.sigmoid(1000 * (x - 5)),
        lambda u: np.logaddexp(0, 1000 * (u - 5)) / 1000,
    ),
}


@by_name("case", BENT)
@by_name("u", [-3.0, 0.2, 0.49, 0.51, 4.99, 5.001, 30.0])
def test_kinks_jumps_and_steep_steps_are_found_wherever_they_are(case, u):
    function, right = BENT[case]
    found = Activation.from_function(function).conjugate_value(row([u]))
    assert float(found) == pytest.approx(float(right(u)), rel=1e-9, abs=1e-9)


def test_simplex_projection_against_a_search_for_its_threshold(generator):
    u = 3 * torch.randn(20, 5, dtype=torch.float64, generator=generator)
    v = activations.SimplexProjection().forward(u)
    for one, found in zip(u.numpy(), v.numpy(), strict=True):
        threshold = optimize.brentq(
            lambda x, one=one: np.maximum(one - x, 0).sum() - 1, one.min() - 1, one.max()
        )
        np.testing.assert_allclose(found, np.maximum(one - threshold, 0), atol=1e-10)


@by_name(
    "make",
    [
        lambda: activations.LeakyReLU(0.0),
        lambda: activations.LeakyReLU(1.5),
        lambda: activations.Clipped(1.0, 1.0),
        lambda: activations.Clipped(0.0, math.inf),
        lambda: activations.MaxPooling(1),
    ],
)
def test_parameters_outside_their_range_are_refused(make):
    with pytest.raises(DeclarationError, match="needs"):
        make()


def test_an_activation_prints_its_parameters():
    assert repr(activations.LeakyReLU(0.2)) == "LeakyReLU(alpha=0.2)"
    assert repr(Activation.from_function(torch.tanh)) == "from_function(tanh)"
