"""Data to try things on; what generated tasks are, their docstrings show."""

import torch

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


def test_running_sum_labels_the_sign_of_the_sum() -> None:
    x, y = data.running_sum(5, 30, seed=1)
    assert torch.equal(y, (x.squeeze(2).cumsum(1) <= 0).long())


def test_tasks_that_cannot_be_drawn_are_refused() -> None:
    refuses(DataError, "between 0 and 1", data.digits, test_fraction=1.0)
    refuses(DataError, "samples", data.echo, 0, 10)
    refuses(DataError, "lag must be below", data.echo, 5, 10, lag=10)
    refuses(DataError, "length", data.running_sum, 5, 0)
    refuses(DataError, "seed", data.running_sum, 5, 5, seed=1.5)
