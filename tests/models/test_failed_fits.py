"""Fits that fail leave the model as it was, and say why."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from liftednet import activations
from liftednet.errors import DataError, SolverError
from liftednet.models import FullBatch, GaussNewton, LiftedMLP, LiftedRNN, Minibatch
from liftednet.models.results import Ending
from tests.models.networks import labeled

X, Y = labeled(samples=60)
SHORT = Minibatch(epochs=3, batch_size=10)


def _model(**options) -> LiftedMLP:
    return LiftedMLP((4, 8, 3), method=SHORT, standardize=False, **options)


def _loader(x: Tensor = X, size: int = 10, **options) -> DataLoader:
    return DataLoader(TensorDataset(x, Y[: len(x)]), batch_size=size, **options)


def _spoiled() -> Tensor:
    x = X.clone()
    x[15, 2] = float("nan")  # in the second batch
    return x


def _same(found, wanted) -> bool:
    return all(a.matrix.equal(b.matrix) for a, b in zip(found, wanted, strict=True))


def test_a_bad_batch_of_a_loader_leaves_a_fitted_model_as_it_was():
    model = _model().fit(X, Y)
    weights, objective = model.weights, model.objective()
    with pytest.raises(DataError, match="NaN"):
        model.fit(_loader(_spoiled()))
    assert _same(model.weights, weights)
    assert model.objective() == objective


@pytest.mark.parametrize("method", [SHORT, FullBatch(3), GaussNewton(3)])
@pytest.mark.parametrize("error", [RuntimeError, StopIteration, GeneratorExit])
def test_an_error_of_the_listener_keeps_the_fit_so_far_and_is_raised(method, error):
    seen: list[Any] = []

    def fail(_: object) -> None:
        seen.append(model.weights)
        if len(seen) == 2:
            raise error("full disk")

    model = LiftedMLP((4, 8, 3), method=method)
    with pytest.raises(error, match="full disk"):
        model.fit(X, Y, on_step=fail)
    assert _same(model.weights, seen[-1]) and not _same(*seen)
    assert model.trace is not None and len(model.trace.steps) == 2
    assert model.trace.ending is Ending.INTERRUPTED


def test_the_type_of_a_loader_is_found_without_a_draw_or_a_load_of_its_own():
    class Counted(TensorDataset):
        loads = 0

        def __getitem__(self, index):
            Counted.loads += 1
            return super().__getitem__(index)

    data = Counted(X, Y)
    source = torch.Generator().manual_seed(0)
    model = _model().fit(DataLoader(data, batch_size=10, shuffle=True, generator=source))
    assert Counted.loads == 3 * len(X)
    again = torch.Generator().manual_seed(0)
    for _ in range(3):  # the same draws as three plain passes
        list(DataLoader(TensorDataset(X, Y), batch_size=10, shuffle=True, generator=again))
    assert source.get_state().equal(again.get_state())
    assert model.is_fitted


def test_a_loader_without_batches_is_refused():
    model = _model()
    with pytest.raises(DataError, match="no batches of its 60 samples"):
        model.fit(_loader(size=61, drop_last=True))
    assert not model.is_fitted


def test_an_epoch_that_ends_in_weights_that_are_not_finite_is_an_error():
    one_batch = Minibatch(epochs=1, batch_size=60)  # nothing looks at a loss after its step
    model = LiftedMLP((4, 8, 3), dtype=torch.float32, method=one_batch, standardize=False)
    with pytest.raises(SolverError, match="last good epoch"):
        model.fit(X * 1e20, Y)
    assert _same(model.weights, [w.to(model.weights[0].matrix) for w in model._first_weights()])


def test_a_recurrent_batch_to_weights_that_are_not_finite_is_an_error_and_keeps_those_before():
    method = Minibatch(epochs=1, batch_size=60)
    model = LiftedRNN(
        4, 5, 3, activations.Tanh(), divergence="tight", method=method, standardize=False
    )
    first = [layer.to(X) for layer in model._first_weights()]
    with pytest.raises(SolverError, match=r"scale X.*last good epoch"):
        model.fit(X[:, None] * 1e200, Y)  # whose variance overflows; the loss does not
    assert _same(model.weights, first)
