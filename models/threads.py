"""How many threads of torch a fit has: no more than its products are worth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch.utils.data import DataLoader

from liftednet.layers.modules import Mapped
from liftednet.network import Network

from .methods import GaussNewton, Method, Minibatch

WORTH = 1 << 26  # multiplications that are worth a thread: milliseconds, where waking one takes .01
_STORED = 2_000  # numbers of all weights, whose normal equations Gauss-Newton may form


@contextmanager
def few_threads(network: Network, method: Method, X: Any, device: str) -> Iterator[None]:
    """Take threads from torch that a fit on a CPU has no work for, and give them back.

    Where others work, too, a product that two threads share waits until both have had their turn:
    small fits took 6 to 30 times as long with two threads as with one (November 2026).

    Args:
        network: that is fitted. One with maps of torch's own, of unknown work, keeps all threads.
        method: of training.
        X: as `fit` takes it.
        device: of the fit.
    """
    before = torch.get_num_threads()
    known = not any(isinstance(each.layer, Mapped) for each in network.layers())
    wanted = before
    if known and torch.device(device).type == "cpu":
        wanted = min(before, 1 + _work(network, method, X) // WORTH)
    if wanted == before:
        yield
        return
    torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _work(network: Network, method: Method, X: Any) -> int:
    """Return how many multiplications the largest product of a step has, nearly."""
    if isinstance(X, DataLoader):
        rows = X.batch_size or 1
    else:  # what has no shape is refused later
        given = X if isinstance(X, tuple | list) else (X,)
        rows = max((x.shape[0] for x in given if getattr(x, "shape", ())), default=0)
    if isinstance(method, Minibatch):
        rows = min(rows, method.batch_size)
    sizes = [(each, each.weights.shape) for each in network.layers() if each.weights is not None]
    if isinstance(method, GaussNewton):
        numbers = sum(prod(shape) for _, shape in sizes)
        return rows * numbers * (numbers if numbers <= _STORED else 1)
    products = (prod(of) * max(1, prod(each.shape) // of[1]) for each, of in sizes)
    return rows * max(products, default=0)
