"""A fit takes no more threads than it has work for, and gives them back."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from liftednet import Network, lift
from liftednet.activations import ReLU
from liftednet.errors import DataError
from liftednet.layers import convolution, dense
from liftednet.losses import CrossEntropy
from liftednet.models import FullBatch, GaussNewton, LiftedMLP, LiftedRNN, Minibatch
from liftednet.models.preparation import few_threads
from tests.models.networks import labeled, refuses
from tests.models.programs.networks import Called

X, Y = labeled(samples=60)


@pytest.fixture(autouse=True)
def four() -> Iterator[None]:
    """Let torch have four threads for a test."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("method", [Minibatch(2), FullBatch(1), GaussNewton(2)], ids=str)
def test_small_fits_have_one_thread_and_the_bits_of_one(method: Any) -> None:
    seen: list[int] = []
    found = []
    for threads in (4, 1):
        torch.set_num_threads(threads)
        model = LiftedMLP((4, 8, 3), method=method)
        model.fit(X, Y, on_step=lambda _: seen.append(torch.get_num_threads()))
        assert torch.get_num_threads() == threads
        found.append(torch.cat([layer.stacked().flatten() for layer in model.weights]))
    assert set(seen) == {1}
    assert torch.equal(*found)


def test_fits_beside_each_other_give_back_what_was_there() -> None:
    begun, end, method = threading.Event(), threading.Event(), Minibatch(2)
    network, after = LiftedMLP((4, 8, 3)).network, []

    def beside() -> None:
        with few_threads(network, method, X, "cpu"):
            begun.set()
            end.wait()
        after.append(torch.get_num_threads())

    other = threading.Thread(target=beside)
    with few_threads(network, method, X, "cpu"):
        other.start()
        begun.wait()
    assert torch.get_num_threads() == 4
    end.set()
    other.join()
    new = threading.Thread(target=lambda: after.append(torch.get_num_threads()))
    new.start()
    new.join()
    assert after == [4, 4]


def test_threads_come_back_where_a_fit_fails() -> None:
    def fail(_: Any) -> None:
        assert torch.get_num_threads() == 1
        raise RuntimeError("enough")

    model = LiftedMLP((4, 8, 3), method=Minibatch(2))
    refuses(RuntimeError, "enough", model.fit, X, Y, on_step=fail)
    for bad in ((), 3.0, None):
        refuses(DataError, "", model.fit, bad, Y)
    assert torch.get_num_threads() == 4


def _convolutional() -> Network:
    network = Network()
    h = network.state(ReLU(), convolution(network.input(1, 64, 64), 16, 3))
    network.loss(CrossEntropy(), dense(h, 2))
    return network


LARGE = torch.empty(1, 1).expand(200_000, 4)
WORK: list[tuple[Any, Any, Any, int]] = [
    (LiftedMLP((4, 8, 3)).network, FullBatch(), LARGE, 1),
    (LiftedMLP((4, 200, 3)).network, FullBatch(), LARGE, 3),  # 200,000 x 800 products
    (LiftedMLP((4, 200, 3)).network, Minibatch(), LARGE, 1),
    (LiftedMLP((4, 8, 3)).network, GaussNewton(), LARGE, 1),  # 200,000 x 56^2, and much beside
    (LiftedMLP((4, 16, 3)).network, GaussNewton(), LARGE, 3),
    (LiftedMLP((4, 2_000, 2_000, 3)).network, Minibatch(), X, 4),
    (LiftedMLP((4, 2_000, 2_000, 3)).network, Minibatch(), DataLoader(TensorDataset(X), 10), 1),
    (_convolutional(), Minibatch(batch_size=1_000), LARGE, 4),  # whose kernels alone are small
    (LiftedRNN(3, 8, 2).network, GaussNewton(), LARGE[:500], 1),
]


@pytest.mark.parametrize(("network", "method", "given", "wanted"), WORK)
def test_threads_follow_the_largest_product(network, method, given, wanted) -> None:
    with few_threads(network, method, given, "cpu"):
        assert torch.get_num_threads() == wanted
    assert torch.get_num_threads() == 4


def test_what_torch_computes_itself_keeps_its_threads() -> None:
    network = nn.Sequential(Called(lambda x: torch.fft.rfft(x).abs()), nn.Linear(3, 3))
    lifted = lift(network, X[:2], loss=CrossEntropy(), show=False)
    with few_threads(lifted.network, Minibatch(), X, "cpu"):
        assert torch.get_num_threads() == 4
