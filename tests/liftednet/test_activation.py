"""The ways of declaring an activation, and what cannot be one."""

from typing import Any

import cvxpy as cp
import pytest
import torch

from liftednet import Activation, Network, activations, check_activation
from liftednet.divergences import tight
from liftednet.errors import DeclarationError
from liftednet.models import LiftedMLP
from tests.draws import normal
from tests.liftednet.activations.catalogue import QUARTIC, Ball
from tests.models.networks import refuses


def test_what_cannot_be_derived_is_asked_for_by_name():
    u = torch.zeros(2, 3, dtype=torch.float64)
    refuses(DeclarationError, "does not declare `conjugate`", Ball().conjugate, cp.Variable((2, 3)))
    refuses(DeclarationError, "does not declare `prox`", Ball().prox, u, 1.0)
    refuses(DeclarationError, "does not declare `forward`", Activation().forward, u)


def binary_entropy(v):
    return torch.xlogy(v, v) + torch.xlogy(1 - v, 1 - v)


BY_POTENTIAL = {
    "sigmoid": (Activation.from_potential(binary_entropy, 0, 1), activations.Sigmoid()),
    "ReLU": (Activation.from_potential(lambda v: v**2 / 2, 0), activations.ReLU()),
    "clipped": (Activation.from_potential(lambda v: v**2 / 2, 2, 3), activations.Clipped(2.0, 3.0)),
    "sign": (Activation.from_potential(lambda v: 0 * v, -1, 1), activations.Sign()),
    "leaky": (
        Activation.from_potential(lambda v: torch.where(v > 0, v**2 / 2, 2.5 * v**2)),
        activations.LeakyReLU(0.2),
    ),
}


@pytest.mark.parametrize("name", BY_POTENTIAL)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_potential_alone_gives_what_the_catalogue_has_in_closed_form(name, dtype, generator):
    found, right = BY_POTENTIAL[name]
    u = 5 * normal(20, 3, seed=generator, dtype=dtype)
    v = right.forward(u)
    torch.testing.assert_close(found.forward(u), v)
    torch.testing.assert_close(found.slope(u), right.slope(u))
    for t in (1e-6, 0.7, torch.logspace(-3, 3, 20, dtype=dtype)[:, None]):
        exact = t.double() if isinstance(t, torch.Tensor) else t
        torch.testing.assert_close(found.prox(u, t), right.prox(u.double(), exact).to(dtype))
    torch.testing.assert_close(found.potential_value(v), right.potential_value(v))
    torch.testing.assert_close(found.conjugate_value(u), right.conjugate_value(u))
    assert found.lipschitz == (right.lipschitz and pytest.approx(right.lipschitz, rel=1e-6))
    far = torch.tensor([[-9.0, 0.5]], dtype=dtype)
    torch.testing.assert_close(found.potential_value(far), right.potential_value(far))


def test_a_potential_without_a_closed_form_has_the_map_that_solves_its_optimality():
    """Phi = v^4 / 4 + v^2 / 2: v^3 + v = u by Cardano's formula, and phi' = 1 / (3 v^2 + 1)."""
    u = torch.linspace(-50, 50, 41, dtype=torch.float64)[None].requires_grad_()
    root = (u.detach() / 2).square().add(1 / 27).sqrt()
    right = torch.sign(u.detach() / 2 + root) * (u.detach() / 2 + root).abs() ** (1 / 3)
    right = right + torch.sign(u.detach() / 2 - root) * (u.detach() / 2 - root).abs() ** (1 / 3)
    found = QUARTIC
    v = found.forward(u)
    torch.testing.assert_close(v.detach(), right, rtol=1e-8, atol=1e-8)
    assert float(found.forward(torch.tensor([1]))) == pytest.approx(0.6823278)  # v^3 + v = 1
    (slope,) = torch.autograd.grad(v.sum(), u)
    torch.testing.assert_close(slope, 1 / (3 * right**2 + 1), rtol=1e-8, atol=1e-8)
    near = torch.tensor([[-0.7, 0.4]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(found.forward, near)
    assert torch.autograd.gradgradcheck(found.forward, near)


BAD_POTENTIALS: dict[str, Any] = {
    "concave": (lambda v: -(v**2), "not convex"),
    "not finite": (torch.log, "finite inside its domain"),
    "too slow": (lambda v: v.cosh().log(), "too slowly"),
    "coupled": (lambda v: v**2 * v.sum(), "not elementwise"),
    "summed": (lambda v: (v**2).sum(), "keeps the shape"),
    "no function": (3, "must be callable"),
    "not torch": (lambda v: torch.from_numpy(v.numpy() ** 2), "write it in torch"),
}


@pytest.mark.parametrize(("potential", "message"), BAD_POTENTIALS.values(), ids=BAD_POTENTIALS)
def test_a_potential_that_has_no_argmin_is_refused(potential, message):
    refuses(DeclarationError, message, Activation.from_potential, potential)


NONE = [
    (torch.relu, r"a function: write Activation\.from_function\(relu\)"),
    (torch.nn.ReLU, r"the class torch\.nn.*ReLU: write ReLU\(\)"),
    (activations.ReLU, r"the class liftednet\..*ReLU: write ReLU\(\)"),
    (3.0, "3.0"),
]


@pytest.mark.parametrize(("given", "words"), NONE)
def test_what_is_no_activation_is_told_what_makes_one_of_it(given, words):
    said = rf"liftednet\.activations\.ReLU\(\).*; got .*{words}"
    refuses(DeclarationError, said, check_activation, given)
    refuses(DeclarationError, said, tight, given)
    refuses(DeclarationError, said, LiftedMLP, (3, 5, 2), given)
    refuses(DeclarationError, said, Network().state, given, Network().input(3))
