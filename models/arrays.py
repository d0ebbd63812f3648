"""Arrays at the door of a model: tensors or numpy arrays in, checked tensors out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from liftednet.errors import DataError
from liftednet.validation import FLOATS, require_count, require_finite, require_matrix

ArrayLike = Tensor | np.ndarray[Any, Any]


def as_tensor(name: str, value: object) -> Tensor:
    """Return a tensor that shares the memory of a tensor or numpy array.

    Raises:
        DataError: it is neither.
    """
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, np.ndarray):
        try:
            return torch.from_numpy(np.ascontiguousarray(value))
        except (TypeError, ValueError) as error:  # ValueError: bytes in the other order
            raise DataError(f"{name} cannot be used: {error}") from error
    raise DataError(f"{name} must be a torch tensor or a numpy array, got {type(value).__name__}.")


def checked_inputs(value: object, features: int, dtype: torch.dtype | None, device: str) -> Tensor:
    """Return X as a finite (samples, features) tensor of the model's type and device.

    Raises:
        DataError: it is not a matrix of float32 or float64, empty, of other width, or not finite.
    """
    inputs = require_matrix("X", as_tensor("X", value))
    if inputs.shape[1] != features:
        raise DataError(
            f"X must have shape (samples, {features}) for a network with {features} inputs, got "
            f"{tuple(inputs.shape)}."
        )
    require_finite("X", inputs)
    return inputs.to(device=device, dtype=dtype or inputs.dtype)


def checked_targets(value: object, samples: int) -> Tensor:
    """Return y as a finite tensor with one row per sample.

    Raises:
        DataError: it has another number of rows, or entries that are not finite.
    """
    targets = as_tensor("y", value)
    if targets.ndim == 0 or targets.shape[0] != samples:
        raise DataError(
            f"y must have one row for each of the {samples} samples of X, got shape "
            f"{tuple(targets.shape)}."
        )
    if targets.is_floating_point():
        require_finite("y", targets)
    return targets


def require_dtype(value: object) -> None:
    """Raise `DataError` unless value is torch.float32 or torch.float64."""
    if value not in FLOATS:
        raise DataError(f"dtype must be torch.float32 or torch.float64, got {value!r}.")


__all__ = ["ArrayLike", "as_tensor", "checked_inputs", "checked_targets", "require_count"]
