"""Generated tasks with an answer at every step (Lifted Recurrent Neural Networks, section 6)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from liftednet.data.checks import generator, positive_integer
from liftednet.errors import DataError


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
    positive_integer("samples", samples)
    positive_integer("length", length)
    positive_integer("lag", lag)
    positive_integer("classes", classes, least=2)
    if lag >= length:
        raise DataError(f"lag must be below the length {length}; it is {lag}.")
    symbols = torch.randint(classes, (samples, length + lag), generator=generator(seed))
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
    positive_integer("samples", samples)
    positive_integer("length", length)
    x = 2 * torch.rand(samples, length, 1, generator=generator(seed)) - 1
    total = x.squeeze(2).double().cumsum(1)
    return x, (total <= 0).long()
