"""Several Python threads that solve at once: the right results, and BLAS as it was before."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread

import pytest
import scipy.linalg  # noqa: F401 (whose BLAS is one of those that are counted)
import torch
from threadpoolctl import ThreadpoolController

from liftednet import activations, products
from liftednet.divergences import joint
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import Design, WeightFit, Weights
from liftednet.solvers import solve

BLAS = ThreadpoolController().select(user_api="blas")


def threads() -> list[int]:
    return [library["num_threads"] for library in BLAS.info()]


def set_threads(count: int) -> None:
    """Set the threads of BLAS in a thread that ends: another one alive would keep control."""
    setting = Thread(target=lambda: BLAS.limit(limits=count, user_api="blas"))
    setting.start()
    setting.join()


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = max(threads())
    set_threads(3)
    given = threads()  # a library whose threads are those of each Python thread keeps its own
    assert 3 in given
    yield
    assert threads() == given
    set_threads(before)


def test_it_has_the_threads_of_torch() -> None:
    with products.threads(1 << 30):
        assert set(threads()) == {torch.get_num_threads()}
        with products.threads(1 << 30):  # as one product inside another sum
            assert set(threads()) == {torch.get_num_threads()}


def test_limits_that_overlap_leave_what_was_before() -> None:
    inside, left = Event(), Event()

    def first() -> None:
        with products.threads(1 << 30):
            inside.wait(10)
        left.set()

    def second() -> None:
        with products.threads(1 << 30):
            inside.set()
            left.wait(10)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(first), pool.submit(second)]:
            done.result()


def test_fits_in_two_threads_are_those_of_one() -> None:
    def fit(seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        x, y = torch.randn(2, 400, 120, generator=generator, dtype=torch.float64)
        problem = WeightFit(joint(activations.Identity()), Design(x), y, SquaredFrobenius(0.1))
        weights: Weights = solve(problem, "ridge").require_solved().value
        return weights.matrix

    alone = [fit(seed) for seed in range(4)]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(fit, list(range(4)) * 5))
    for number, matrix in enumerate(together):
        torch.testing.assert_close(matrix, alone[number % 4], rtol=1e-9, atol=1e-12)
