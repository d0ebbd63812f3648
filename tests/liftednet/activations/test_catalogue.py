"""Every activation: closed forms, digits against mpmath, proximal maps, slopes."""

import math
from typing import Any

import mpmath
import pytest
import torch
from torch import nn

from liftednet import Activation, activations, check_activation
from liftednet.activations import LeakyReLU, PReLU
from liftednet.errors import DataError, DeclarationError
from tests.draws import normal
from tests.models.networks import refuses

PAIRS = [
    (activations.Sigmoid(), torch.sigmoid), (activations.Softplus(), nn.Softplus(threshold=40)),
    (activations.ELU(), nn.ELU()), (activations.Clipped(-1.0, 1.0), nn.Hardtanh()),
]  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: repr(pair[0]))
def test_a_map_alone_gives_what_the_closed_forms_give(pair, generator):
    closed, derived = pair[0], Activation.from_function(pair[1])
    u = 3 * normal(40, 2, seed=generator)
    v = closed.forward(u)
    shift = derived.conjugate_value(0 * u[:1]) - closed.conjugate_value(0 * u[:1])
    assert derived.lipschitz == pytest.approx(closed.lipschitz, rel=1e-4)
    for t in (0.03, 1.0, 30.0):
        torch.testing.assert_close(derived.prox(u, t), closed.prox(u, t), rtol=1e-8, atol=1e-8)
    for name, points, sign in (("conjugate_value", u, 1), ("potential_value", v, -1)):
        found, right = (getattr(one, name)(points) for one in (derived, closed))
        torch.testing.assert_close(found - sign * shift, right, rtol=1e-7, atol=1e-7)


REFUSED = [
    (lambda: activations.LeakyReLU(0.0), "needs"),
    (lambda: activations.LeakyReLU(1.5), "needs"),
    (lambda: activations.Clipped(1.0, 1.0), "needs"),
    (lambda: activations.Clipped(0.0, math.inf), "needs"),
    (lambda: activations.MaxPooling(1), "needs"),
    *((lambda slopes=slopes: PReLU(slopes), "PReLU needs")
      for slopes in (0.0, [-0.1, 0.2], [], "a", math.inf)),
    (lambda: PReLU((0.5, 0.1, 2.0)).forward(normal(2, 4)), "no multiple of the 3 slopes"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "words"), REFUSED)
def test_what_is_no_activation_is_refused(make, words):
    refuses((DataError, DeclarationError), words, make)


SIZES = (1e-300, 1e-30, 1e-12, 1e-6, 1e-3, 0.1, 0.24, 0.26, 0.49, 0.51, 0.9, 0.99, 1.2)


def _sine_conjugate(u):
    inside = min(abs(u), mpmath.pi / 2)
    return 1 - mpmath.cos(inside) + abs(u) - inside


# The activation, its potential with the end of its domain, its conjugate.
FORMS: list[tuple[Any, Any, float, Any]] = [
    (activations.Tanh(), lambda v: sum((1 + x) * mpmath.log(1 + x) for x in (v, -v)) / 2, 1.0,
     lambda u: mpmath.log(mpmath.cosh(u))),
    (activations.ELU(), lambda v: v * v / 2 if v > 0 else (1 + v) * mpmath.log1p(v) - v, 1.0,
     lambda u: u * u / 2 if u > 0 else mpmath.expm1(u) - u),
    (activations.Sine(), lambda v: v * mpmath.asin(v) + mpmath.sqrt(1 - v * v) - 1, 1.0,
     _sine_conjugate),
    (activations.Arctan(), lambda v: -mpmath.log(mpmath.cos(v)), 1.5,
     lambda u: u * mpmath.atan(u) - mpmath.log(1 + u * u) / 2),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("activation", "potential", "end", "conjugate"), FORMS)
def test_potentials_and_conjugates_keep_their_digits(activation, potential, end, conjugate, dtype):
    precision = torch.finfo(dtype)
    for value, exact, points in (
        (activation.potential_value, potential, [x for x in SIZES if x < end]),
        (activation.conjugate_value, conjugate, [*SIZES, 3.0, 50.0, 1e5, 1e15, 1e30]),
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


SLOPES = (0.5, 0.1, 2.0)


def test_every_method_is_that_of_a_leaky_relu_unit_by_unit() -> None:
    prelu, u = PReLU(SLOPES[:2]), normal(6, 4)
    units = [LeakyReLU(0.5), LeakyReLU(0.5), LeakyReLU(0.1), LeakyReLU(0.1)]
    for name in ("forward", "slope"):
        alone = [getattr(one, name)(u[:, [i]]) for i, one in enumerate(units)]
        torch.testing.assert_close(getattr(prelu, name)(u), torch.cat(alone, 1))
    alone = [one.prox(u[:, [i]], 0.7) for i, one in enumerate(units)]
    torch.testing.assert_close(prelu.prox(u, 0.7), torch.cat(alone, 1))
    for name in ("potential_value", "conjugate_value"):
        rows = sum(getattr(one, name)(u[:, [i]]) for i, one in enumerate(units))
        torch.testing.assert_close(getattr(prelu, name)(u), rows)
    assert check_activation(PReLU(SLOPES)).passed


def test_the_forward_map_is_torch_s_and_its_module_is_read_and_made() -> None:
    module = nn.PReLU(3, dtype=torch.float64)
    with torch.no_grad():
        module.weight.copy_(torch.tensor(SLOPES))
    refuses(DeclarationError, r"PReLU\(module\.weight\)", Activation.from_function, module)
    prelu = PReLU(module.weight)
    torch.testing.assert_close(prelu.forward(normal(5, 3)), module(normal(5, 3)).detach())
    assert prelu.lipschitz == pytest.approx(2.0)
