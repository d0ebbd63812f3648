"""Data to try things on, and generated tasks."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from liftednet import data
from liftednet.errors import DataError
from tests.models.networks import refuses


def test_digits_are_scaled_and_split_class_by_class() -> None:
    digits = data.digits()
    assert float(digits.x_train.min()) == 0 and float(digits.x_train.max()) == 1
    assert len(digits.x_train) + len(digits.x_test) == 1797
    train, test = digits.y_train.bincount(), digits.y_test.bincount()
    assert bool(((train - 3 * test).abs() <= 5).all())
    assert torch.equal(data.digits(seed=0).x_train, digits.x_train)
    assert not torch.equal(data.digits(seed=1).x_train, digits.x_train)


@given(seed=st.integers(0, 10_000), lag=st.integers(1, 5))
@settings(max_examples=20, deadline=None)
def test_echo_repeats_the_input_after_the_lag(seed: int, lag: int) -> None:
    x, y = data.echo(7, 12, lag, 4, seed)
    assert torch.equal(x.sum(2), torch.ones(7, 12))
    assert torch.equal(y[:, lag:], x.argmax(2)[:, : 12 - lag])


@given(seed=st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_running_sum_labels_the_sign_of_the_sum(seed: int) -> None:
    x, y = data.running_sum(5, 30, seed)
    for numbers, labels in zip(x.squeeze(2).tolist(), y.tolist(), strict=True):
        total = 0.0
        for number, label in zip(numbers, labels, strict=True):
            total += number
            assert label == (0 if total > 0 else 1)


def test_tasks_that_cannot_be_drawn_are_refused() -> None:
    refuses(DataError, "between 0 and 1", data.digits, test_fraction=1.0)
    refuses(DataError, "samples", data.echo, 0, 10)
    refuses(DataError, "lag must be below", data.echo, 5, 10, lag=10)
    refuses(DataError, "length", data.running_sum, 5, 0)
    refuses(DataError, "seed", data.running_sum, 5, 5, seed=1.5)
