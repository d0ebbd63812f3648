"""Memory that runs out is told by what was asked for, and leaves a model as it was."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from liftednet.errors import LiftedError, OutOfMemoryError, telling_of_memory
from liftednet.models import LiftedMLP, Minibatch
from tests.models.networks import full, labeled

X, Y = labeled()


@contextmanager
def at_most(more: int) -> Iterator[None]:
    """Allow this process so many bytes more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_a_fit_that_needs_more_memory_says_how_much():
    model = full((4, 100_000, 3), sweeps=1)
    x, y = X.repeat(200, 1), Y.repeat(200)
    with at_most(300_000_000), pytest.raises(OutOfMemoryError) as caught:
        model.fit(x, y)
    caught.match(r"memory ran out in Lifted.fit.*shape \(6000, 4\).*allocate \d+ bytes")
    assert not model.is_fitted


def test_a_fitted_model_stays_as_it_was():
    model = LiftedMLP((4, 200, 3), method=Minibatch(epochs=1)).fit(X, Y)
    wanted = model.forward(X)
    many = X.expand(100_000, *X.shape).flatten(0, 1)[:1_000_000]
    with at_most(300_000_000), pytest.raises(LiftedError, match=r"Predictor.forward\(array of"):
        model.forward(many)
    assert model.forward(X).equal(wanted)


def test_a_model_beyond_all_memory_is_refused_when_it_is_made():
    with pytest.raises(OutOfMemoryError, match=r"allocate \d+ bytes"):
        LiftedMLP((4, 10**14, 3))


def test_numpy_and_other_errors():
    def ask(kind: str) -> object:
        if kind == "numpy":
            return np.zeros((10**9, 10**9))
        if kind == "overflow":
            return torch.empty(2**40, 2**40)
        raise RuntimeError("something else")

    with pytest.raises(OutOfMemoryError, match=r"Unable to allocate 6\.94 EiB"):
        telling_of_memory(ask)("numpy")
    with pytest.raises(OutOfMemoryError, match="overflowed"):
        telling_of_memory(ask)("overflow")
    with pytest.raises(RuntimeError, match="something else"):
        telling_of_memory(ask)("other")
