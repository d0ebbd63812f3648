"""Data to try things on: images, and two generated tasks over time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from liftednet.errors import DataError
from liftednet.processes import shard
from liftednet.validation import require_count, require_seed, require_share

__all__ = ["Classification", "digits", "echo", "running_sum", "shard"]


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
    from sklearn.model_selection import train_test_split

    require_share("test_fraction", test_fraction)
    pixels, labels = load_digits(return_X_y=True)
    parts = train_test_split(
        pixels, labels, test_size=test_fraction, random_state=require_seed(seed), stratify=labels
    )
    x_train, x_test = (torch.from_numpy(part).float() / 16 for part in parts[:2])
    y_train, y_test = (torch.from_numpy(part).long() for part in parts[2:])
    return Classification(x_train, y_train, x_test, y_test, 10)


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
    source = torch.Generator().manual_seed(require_seed(seed))
    x = 2 * torch.rand(samples, length, 1, generator=source) - 1
    total = x.squeeze(2).double().cumsum(1)
    return x, (total <= 0).long()
