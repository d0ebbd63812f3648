"""Refusals that the data package shares: said before anything is drawn or read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from liftednet.errors import DataError
from liftednet.validation import integers, is_integer, is_number


def positive_integer(name: str, value: int, least: int = 1) -> int:
    """Return `value` if it is an integer of at least `least`.

    Raises:
        DataError: `value` is not an integer, or too small.
    """
    if not is_integer(value) or value < least:
        raise DataError(f"{name} must be an integer of at least {least}; it is {value!r}.")
    return int(value)


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


def sequence_lengths(lengths: Any, samples: int, steps: int) -> Tensor:
    """Return `lengths` as int64 if it names a length within the data for every sample.

    Args:
        lengths: (samples,) number of steps of each sequence.
        samples: number of sequences.
        steps: longest possible length.

    Raises:
        DataError: wrong shape, not integers, or a length below 1 or beyond the data.
    """
    found = integers("lengths", lengths)
    if found.shape != (samples,):
        raise DataError(
            f"lengths must be {samples} integers, one per sequence; it has shape "
            f"{tuple(found.shape)}."
        )
    if bool((found < 1).any()) or bool((found > steps).any()):
        raise DataError(
            f"Each length must lie between 1 and the {steps} steps of the data; they run "
            f"from {int(found.min())} to {int(found.max())}."
        )
    return found


def generator(seed: int) -> torch.Generator:
    """Return a CPU generator that starts from `seed`.

    Raises:
        DataError: `seed` is not an integer.
    """
    if not is_integer(seed):
        raise DataError(f"seed must be an integer; it is {seed!r}.")
    return torch.Generator().manual_seed(int(seed))
