"""Data to try things on: images, two generated tasks over time, and a split of samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from liftednet.errors import DataError
from liftednet.processes import shard
from liftednet.validation import is_number, require_count, require_seed

__all__ = ["Classification", "digits", "echo", "running_sum", "shard", "split"]


@dataclass(frozen=True)
class Classification:
    """Samples with one label each, split into training and test.

    Attributes:
        x_train: (samples, ...) float32.
        y_train: (samples,) int64 labels from 0 to classes - 1.
        x_test: (samples, ...) float32.
        y_test: (samples,) int64.
        classes: number of classes.

    Example:
        >>> from liftednet import data
        >>> digits = data.digits()
        >>> tuple(digits.x_train.shape), tuple(digits.x_test.shape), digits.classes
        ((1347, 64), (450, 64), 10)
    """

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: int


def digits(test_fraction: float = 0.25, seed: int = 0) -> Classification:
    """Return the 8 x 8 digits that scikit-learn carries: 1,797 images, no file needed.

    Args:
        test_fraction: share of each class that is kept for testing.
        seed: of the stratified split.

    Returns:
        X (samples, 64) with pixels scaled from 0..16 to [0, 1], and labels 0 to 9.

    Raises:
        DataError: a share outside (0, 1).

    Example:
        >>> from liftednet import data
        >>> digits = data.digits(test_fraction=0.1)
        >>> tuple(digits.x_test.shape), float(digits.x_train.max())
        ((180, 64), 1.0)
        >>> digits.y_test.bincount().tolist()  # of every class a tenth
        [18, 18, 18, 18, 18, 18, 18, 18, 18, 18]
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(pixels).float() / 16
    return Classification(*split(x, torch.from_numpy(labels).long(), test_fraction, seed), 10)


def split(
    x: Tensor, y: Tensor, held_out: float, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Split samples at random, labels class by class.

    Args:
        x: (samples, ...).
        y: (samples,) int64 labels, split in proportion, or (samples, ...) other targets.
        held_out: share of the samples in the second part.
        seed: of the split.

    Returns:
        X and y of the first part, X and y of the second part.

    Raises:
        DataError: no samples, row counts that differ, a share outside (0, 1), or too few samples.

    Example:
        >>> import torch
        >>> from liftednet.data import split
        >>> x, y = torch.arange(8.0).unsqueeze(1), torch.tensor([0, 0, 0, 0, 0, 0, 1, 1])
        >>> x_kept, y_kept, x_held, y_held = split(x, y, held_out=0.5, seed=0)
        >>> y_kept.bincount().tolist(), y_held.bincount().tolist()  # three to one in both
        ([3, 1], [3, 1])
    """
    from sklearn.model_selection import train_test_split

    same_rows(x, y)
    share = fraction("The held-out share", held_out)
    strata = y.numpy() if y.ndim == 1 and not y.is_floating_point() else None
    try:
        kept, held = train_test_split(
            np.arange(len(x)), test_size=share, random_state=seed, stratify=strata
        )
    except ValueError as error:
        raise DataError(f"{len(x)} samples cannot be split: {error}") from error
    return x[kept], y[kept], x[held], y[held]


def echo(
    samples: int, length: int, lag: int = 1, classes: int = 10, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Repeat the input `lag` steps later (lag echo, section 6.1).

    y[i, t] = class of X[i, t - lag] for t >= lag. The first `lag` labels are drawn at random
    and cannot be known, so the largest possible accuracy is 1 - lag / length * (1 - 1 / classes).

    Args:
        samples: number of sequences.
        length: steps of each sequence.
        lag: steps between a symbol and its echo, below `length`.
        classes: number of symbols.
        seed: of the random numbers.

    Returns:
        X (samples, length, classes) one-hot float32 and y (samples, length) int64 labels.

    Raises:
        DataError: a count that is not a positive integer, or a lag not below the length.

    Example:
        >>> from liftednet import data
        >>> x, y = data.echo(samples=1, length=5, lag=2, classes=3)
        >>> x.argmax(2), y  # from the third step on, y is x of two steps before
        (tensor([[2, 0, 1, 0, 1]]), tensor([[2, 0, 2, 0, 1]]))
    """
    require_count("samples", samples, 1)
    require_count("length", length, 1)
    require_count("lag", lag, 1)
    require_count("classes", classes, 2)
    if lag >= length:
        raise DataError(f"lag must be below the length {length}; it is {lag}.")
    source = torch.Generator().manual_seed(require_seed(seed))
    symbols = torch.randint(classes, (samples, length + lag), generator=source)
    return one_hot(symbols[:, lag:], classes).float(), symbols[:, :length].clone()


def running_sum(samples: int, length: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Say at every step whether the sum so far is positive (section 6.2).

    y[i, t] = 0 where X[i, 0] + ... + X[i, t] > 0, else 1 (the paper's index 0 means on).

    Args:
        samples: number of sequences.
        length: steps of each sequence.
        seed: of the random numbers.

    Returns:
        X (samples, length, 1) float32, uniform on [-1, 1], and y (samples, length) int64 labels.

    Raises:
        DataError: a count that is not a positive integer.

    Example:
        >>> from liftednet import data
        >>> x, y = data.running_sum(samples=1, length=4)
        >>> x.squeeze(2).cumsum(1), y  # 0 where the sum is positive
        (tensor([[-0.0075,  0.5290, -0.2941, -1.0300]]), tensor([[1, 0, 1, 1]]))
    """
    require_count("samples", samples, 1)
    require_count("length", length, 1)
    x = (
        2
        * torch.rand(
            samples, length, 1, generator=torch.Generator().manual_seed(require_seed(seed))
        )
        - 1
    )
    total = x.squeeze(2).double().cumsum(1)
    return x, (total <= 0).long()


def fraction(name: str, value: float) -> float:
    """Return `value` if it lies strictly between 0 and 1.

    Raises:
        DataError: `value` is no number between 0 and 1.
    """
    if not is_number(value) or not 0.0 < value < 1.0:
        raise DataError(f"{name} must lie strictly between 0 and 1; it is {value!r}.")
    return float(value)


def same_rows(x: Tensor, y: Tensor) -> None:
    """Refuse empty data and data whose first axes differ.

    Raises:
        DataError: no rows, or not the same number of rows.
    """
    if len(x) == 0:
        raise DataError(f"The data set is empty: X has shape {tuple(x.shape)}.")
    if len(x) != len(y):
        raise DataError(
            f"X and y need the same number of rows; X has shape {tuple(x.shape)} "
            f"and y has shape {tuple(y.shape)}."
        )
