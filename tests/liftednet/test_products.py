"""BLAS has its threads back afterwards; matrices are mirrored, and factored."""

from collections.abc import Iterator
from threading import Thread

import pytest
import scipy.linalg  # noqa: F401 (whose BLAS is one of those that are counted)
import torch
from threadpoolctl import ThreadpoolController

from liftednet import products

BLAS = ThreadpoolController().select(user_api="blas")


def threads() -> list[int]:
    return [library["num_threads"] for library in BLAS.info()]


def set_threads(count: int) -> None:
    """Set the threads of BLAS in a thread that ends: another one alive would keep control."""
    setting = Thread(target=lambda: BLAS.limit(limits=count, user_api="blas"))
    setting.start()
    setting.join()


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = max(threads())
    set_threads(3)
    given = threads()  # a library whose threads are those of each Python thread keeps its own
    assert 3 in given
    yield
    assert threads() == given
    set_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_blas_has_the_threads_of_torch() -> None:
    with products.threads(1 << 30):
        assert set(threads()) == {torch.get_num_threads()}
        with products.threads(1 << 30):  # as one product inside another sum
            assert set(threads()) == {torch.get_num_threads()}


@pytest.mark.parametrize("size", [1, 255, 256, 257, 600])
def test_what_is_above_the_diagonal_is_put_below_it(size: int) -> None:
    matrix = torch.randn(size, size, generator=torch.Generator().manual_seed(size))
    whole = matrix.triu() + matrix.triu(1).T
    assert torch.equal(products.mirrored(matrix), whole) and torch.equal(matrix, whole)


@pytest.mark.parametrize("size", [5, 511, 512, 600])
def test_a_factor_made_in_place_is_that_of_the_matrix(size: int) -> None:
    rows = torch.randn(
        size, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64
    )
    matrix = rows @ rows.T + torch.eye(size, dtype=torch.float64)
    factor, minor = products.cholesky(matrix.clone())
    lower = factor.tril()
    assert minor == 0 and torch.allclose(lower @ lower.T, matrix, rtol=1e-12, atol=1e-9)
    matrix[3, 3] = -1.0
    assert products.cholesky(matrix)[1] == 4
