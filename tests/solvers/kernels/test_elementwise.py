"""Activations that are declared in torch, as Triton functions that are written from them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from liftednet import activations
from liftednet.activation import Activation
from liftednet.divergences import tight
from liftednet.problems import Link, StateFit
from liftednet.solution import Status
from liftednet.solvers import solve
from liftednet.solvers.kernels.elementwise import functions, link_map, proximal_map
from liftednet.solvers.kernels.outputs import closed_form
from liftednet.solvers.kernels.states import FusedStates, StateBlocks


class SquarePlus(Activation):
    lipschitz = 1.0

    def forward(self, u: Tensor) -> Tensor:
        return (u + (u**2 + 4).sqrt()) / 2


DECLARED = [
    Activation.from_function(functional.softsign),
    Activation.from_function(torch.nn.Softplus(beta=2)),
    Activation.from_function(functional.hardtanh),
    Activation.from_function(functional.celu),
    Activation.from_function(functional.logsigmoid),
    Activation.from_function(functional.hardsigmoid),
    Activation.from_function(torch.erf),
    Activation.from_function(lambda u: torch.tanh(u) + 0.1 * u),
    Activation.from_function(lambda u: u.sign() * u.abs().log1p()),
    Activation.from_function(lambda u: torch.where(u > 1, 1 + 0.3 * (u - 1), u.clamp(min=-2))),
    SquarePlus(),
]


@pytest.mark.parametrize("activation", DECLARED, ids=repr)
def test_the_prox_is_that_of_torch(activation: Activation, generator: torch.Generator) -> None:
    written = proximal_map(activation)
    assert written is not None
    for lam in (0.05, 0.7, 30.0):
        y, u = (2 * torch.randn(30, 3, generator=generator) for _ in range(2))
        expected = activation.prox((y + lam * u).double(), lam)
        value = closed_form(y, u, lam, written).double()
        torch.testing.assert_close(value, expected, atol=1e-5, rtol=1e-5)


def test_a_declared_layer_below_a_declared_link(generator: torch.Generator) -> None:
    softsign = tight(DECLARED[0])
    weight, offset = torch.randn(3, 2, generator=generator), torch.randn(2, generator=generator)
    target = softsign.activation.forward(torch.randn(5, 2, generator=generator))
    u = torch.randn(5, 3, generator=generator)
    fit = StateFit(softsign, u, (Link(softsign, weight, offset, target),), 0.5)
    solution = solve(fit, FusedStates(blocks=StateBlocks(16, depth=16, columns=16)))
    assert solution.status is Status.SOLVED


def test_it_is_written_once() -> None:
    assert functions(DECLARED[0]) is functions(DECLARED[0])


@pytest.mark.parametrize(
    "map_",
    [torch.asinh, lambda u: u - u.mean() + u.mean(), lambda u: torch.relu(u + 0 * u.cumsum(-1))],
    ids=["asinh", "a mean", "a running sum"],
)
def test_other_operations_stay_with_torch(map_) -> None:
    class Other(Activation):
        def forward(self, u: Tensor) -> Tensor:
            value: Tensor = map_(u)
            return value

    assert functions(Other()) is None
    assert proximal_map(Other()) is None


def test_a_map_that_reads_its_data_stays_with_torch() -> None:
    class Reading(Activation):
        def forward(self, u: Tensor) -> Tensor:
            return u if float(u.sum()) > 0 else 2 * u

    assert link_map(tight(Reading()), 3) is None


def test_coupled_units_are_not_traced() -> None:
    assert proximal_map(activations.SimplexProjection()) is None
