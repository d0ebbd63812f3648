"""Products of float32 matrices by oneDNN are those of float64, rounded."""

from __future__ import annotations

import pytest
import torch

from liftednet import products

SHAPES = [(3, 5, 2), (100, 90, 80), (2_000, 1, 300), (130, 700, 33)]  # few and many operations


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("rows, inner, columns", SHAPES)
@pytest.mark.parametrize("turned", [False, True])
def test_products_are_those_of_float64(rows: int, inner: int, columns: int, turned: bool) -> None:
    left = drawn(inner, rows).T if turned else drawn(rows, inner)
    right = drawn(columns, inner).T if turned else drawn(inner, columns)
    exact, kept = left.double() @ right.double(), torch.empty(rows, columns)
    bias, start = drawn(columns), drawn(rows, columns)
    close = {"rtol": 0.0, "atol": 1e-6 * inner**0.5 * 20}
    torch.testing.assert_close(products.product(left, right).double(), exact, **close)
    found = products.linear(left, right, bias)
    torch.testing.assert_close(found.double(), exact + bias, **close)
    found = products.added(start, left, right, 0.5, kept)
    assert found is kept
    torch.testing.assert_close(found.double(), exact + 0.5 * start, **close)


@pytest.mark.parametrize("rows, inner, columns", SHAPES)
def test_the_gradient_in_the_rows_is_that_of_torch(rows: int, inner: int, columns: int) -> None:
    x, matrix, slope = drawn(rows, inner), drawn(inner, columns), drawn(rows, columns)
    x.requires_grad_()
    (found,) = torch.autograd.grad(products.linear(x, matrix, drawn(columns)), x, slope)
    (exact,) = torch.autograd.grad(x.double() @ matrix.double(), x, slope.double())
    torch.testing.assert_close(found, exact, rtol=0.0, atol=1e-6 * columns**0.5 * 20)


def test_parts_of_matrices_are_multiplied_as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError("of entries that stand apart oneDNN makes a loop over each")

    monkeypatch.setattr(products, "_linear", never)
    left, right = drawn(500, 400)[:, :200], drawn(200, 300)
    for rows, columns in (
        (left, right),
        (left.T, drawn(500, 300)),
        (drawn(1, 200).expand(500, -1), right),
    ):
        assert torch.equal(products.product(rows, columns), rows @ columns)
        products.linear(rows, columns, None)
