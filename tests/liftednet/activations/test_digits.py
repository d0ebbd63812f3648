"""Potentials and conjugates keep their digits near zero and far from it, against mpmath."""

from __future__ import annotations

import mpmath
import pytest
import torch

from liftednet import activations

SIZES = (1e-300, 1e-30, 1e-12, 1e-6, 1e-3, 0.1, 0.24, 0.26, 0.49, 0.51, 0.9, 0.99, 1.2)
LARGE = (3.0, 50.0, 1e5, 1e15, 1e30)


def _elu_potential(v):
    return v * v / 2 if v > 0 else (1 + v) * mpmath.log1p(v) - v


def _elu_conjugate(u):
    return u * u / 2 if u > 0 else mpmath.expm1(u) - u


def _sine_conjugate(u):
    inside = min(abs(u), mpmath.pi / 2)
    return 1 - mpmath.cos(inside) + abs(u) - inside


def _xlogx(x):
    return x * mpmath.log(x)


FORMS = [  # the activation, its potential with the end of its domain, its conjugate
    (
        activations.Tanh(),
        lambda v: (_xlogx(1 - v) + _xlogx(1 + v)) / 2,
        1.0,
        lambda u: mpmath.log(mpmath.cosh(u)),
    ),
    (activations.ELU(), _elu_potential, 1.0, _elu_conjugate),
    (
        activations.Sine(),
        lambda v: v * mpmath.asin(v) + mpmath.sqrt(1 - v * v) - 1,
        1.0,
        _sine_conjugate,
    ),
    (
        activations.Arctan(),
        lambda v: -mpmath.log(mpmath.cos(v)),
        1.5,
        lambda u: u * mpmath.atan(u) - mpmath.log(1 + u * u) / 2,
    ),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("activation", "potential", "end", "conjugate"), FORMS)
def test_potentials_and_conjugates_keep_their_digits(activation, potential, end, conjugate, dtype):
    precision = torch.finfo(dtype)
    for value, exact, points in (
        (activation.potential_value, potential, [x for x in SIZES if x < end]),
        (activation.conjugate_value, conjugate, [*SIZES, *LARGE]),
    ):
        for size in points:
            for sign in (-1, 1):
                x = torch.tensor([[sign * size]], dtype=dtype)
                with mpmath.workdps(1_000):
                    wanted = exact(mpmath.mpf(float(x)))
                found = float(value(x))
                if not precision.tiny < abs(wanted) < precision.max:
                    continue  # it is too small or too large for the type
                off = abs((mpmath.mpf(found) - wanted) / wanted)
                assert off < 32 * precision.eps, (activation, size, sign, found, wanted)


def test_a_sigmoid_potential_keeps_its_digits_near_both_ends():
    for v in (1e-30, 1e-10, 0.3, 1 - 1e-10):
        with mpmath.workdps(100):
            x = mpmath.mpf(v)
            wanted = _xlogx(x) + _xlogx(1 - x)
        found = float(
            activations.Sigmoid().potential_value(torch.tensor([[v]], dtype=torch.float64))
        )
        assert found == pytest.approx(float(wanted), rel=1e-14)


def test_a_slope_that_is_given_keeps_its_digits():
    u = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    for activation in (activations.LeakyReLU(0.1), activations.PReLU((0.1,))):
        assert activation.slope(u).tolist() == [0.1, 1.0]
