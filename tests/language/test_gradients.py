"""Products with a transposed Jacobian: those of autograd, to the bit, and differentiable."""

from __future__ import annotations

import torch

from liftednet.maps import pulled_back

GENERATOR = torch.Generator().manual_seed(5)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


def test_products_are_those_of_autograd_to_the_bit() -> None:
    weights = [normal(4, 3).requires_grad_(), normal(3, 2).requires_grad_()]
    first = (normal(5, 4) @ weights[0]).tanh()
    outputs, rows = [first, first @ weights[1]], [normal(5, 3), normal(5, 2)]
    found = pulled_back(outputs, weights, rows, retain_graph=True)
    wanted = torch.autograd.grad(outputs, weights, rows)
    assert all(a.equal(b) for a, b in zip(found, wanted, strict=True))


def test_they_are_differentiated_in_the_rows_and_in_the_inputs() -> None:
    x, rows = normal(3).requires_grad_(), normal(3).requires_grad_()
    (pulled,) = pulled_back([x**3], [x], [rows], create_graph=True)
    direction = normal(3)
    ahead, bent = torch.autograd.grad(pulled, (rows, x), direction)
    assert torch.allclose(ahead, 3 * x**2 * direction)
    assert torch.allclose(bent, 6 * x * rows * direction)


def test_what_does_not_reach_an_output_is_zero_where_that_is_asked_for() -> None:
    x, idle = normal(2).requires_grad_(), normal(2).requires_grad_()
    _, zero = pulled_back([2 * x], [x, idle], [normal(2)], materialize_grads=True)
    assert zero.equal(torch.zeros(2, dtype=torch.float64))
