"""Refusals at the door: what was given, what is needed, where."""

from __future__ import annotations

import math
import reprlib
import warnings
from collections.abc import Iterable
from contextlib import suppress
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from liftednet import errors
from liftednet.errors import DataError
from liftednet.processes import size

FLOATS = (torch.float32, torch.float64)
Numbers = np.ndarray[Any, np.dtype[np.float64]]
_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # which torch has, and computes little with


def as_tensor(name: str, value: object) -> Tensor:
    """Return a dense tensor of real numbers that shares the memory of a tensor or numpy array.

    Unsigned integers become int64, and bytes in the other order are turned around.

    Raises:
        DataError: it is neither, or masked, sparse, complex, or without numbers of its own.
    """
    tensor = value.detach() if isinstance(value, Tensor) else _from_numpy(name, value)
    _require_dense(name, tensor)
    if tensor.is_meta:
        raise DataError(f"{name} is on the device 'meta', where tensors hold no numbers.")
    if tensor.is_complex():
        raise DataError(f"{name} must be real, got {tensor.dtype}: give .real and .imag apart.")
    if tensor.dtype not in _UNSIGNED:
        return tensor
    signed = tensor.to(torch.int64)
    if bool((signed < 0).any()):
        raise DataError(f"{name} has integers beyond {2**63 - 1}, the largest of int64.")
    return signed


def _require_dense(name: str, value: Tensor) -> None:
    if value.is_nested:
        raise DataError(
            f"{name} must have rows of one length, got a nested tensor: pad it with "
            ".to_padded_tensor(0.0), and give the lengths of sequences."
        )
    if value.layout is not torch.strided:
        raise DataError(f"{name} must be dense, got {value.layout}: convert it with .to_dense().")


def _from_numpy(name: str, value: object) -> Tensor:
    if not isinstance(value, np.ndarray):
        hints = (x for x in ("toarray", "to_numpy") if hasattr(value, x))  # scipy's, pandas'
        hint = "".join(f": convert it with .{x}()" for x in hints)
        if isinstance(value, Dataset):
            hint = ": training takes a torch.utils.data.DataLoader of it"
        if isinstance(value, list | tuple):
            hint = ": convert it with torch.tensor() or numpy.array()"
        raise DataError(
            f"{name} must be a torch tensor or a numpy array, got {type(value).__name__}{hint}."
        )
    if np.ma.is_masked(value):
        count = int(np.ma.getmaskarray(value).sum())
        raise DataError(
            f"{name} has {count} masked entries, which no fit leaves out: fill them with .filled()."
        )
    native = np.ascontiguousarray(value).astype(value.dtype.newbyteorder("="), copy=False)
    try:
        with warnings.catch_warnings():  # of arrays that are only read, as here
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return torch.from_numpy(native)
    except TypeError as error:
        hint = ""
        if value.dtype.kind in "USO":
            hint = ": numpy.unique(values, return_inverse=True)[1] makes numbers of names"
        raise DataError(
            f"{name} must hold numbers that torch has, got {value.dtype}{hint}."
        ) from error


def require_matrix(name: str, value: object) -> Tensor:
    """Return value where it is a nonempty float32 or float64 matrix.

    Raises:
        DataError: it is not a tensor, not a matrix, empty, or of another type.
    """
    if not isinstance(value, Tensor):
        hint = ": convert it with torch.from_numpy" if isinstance(value, np.ndarray) else ""
        raise DataError(f"{name} must be a torch tensor, got {type(value).__name__}{hint}.")
    _require_dense(name, value)
    if value.ndim != 2:
        raise DataError(
            f"{name} must have two dimensions (samples, units), got shape {tuple(value.shape)}."
        )
    if value.numel() == 0 and not (size() > 1 and value.shape[1] > 0):  # others may have samples
        raise DataError(f"{name} is empty: shape {tuple(value.shape)}.")
    require_float(name, value)
    return value


def require_float(name: str, value: Tensor | torch.dtype) -> None:
    """Raise `DataError` unless value is float32 or float64, a tensor or a type itself."""
    if isinstance(value, Tensor) and value.dtype not in FLOATS:
        raise DataError(
            f"{name} must be torch.float32 or torch.float64, got {value.dtype}: "
            "convert it with .float() or .double()."
        )
    if not isinstance(value, Tensor) and value not in FLOATS:
        raise DataError(f"{name} must be torch.float32 or torch.float64, got {value!r}.")


def require_finite(name: str, value: Tensor) -> None:
    """Raise `DataError` where value has NaN or infinite entries, naming the first."""
    if math.isfinite(float(value.detach().sum())):
        return  # decided without a temporary of the value's size
    finite = value.isfinite()
    if bool(finite.all()):  # and too large for a sum
        return
    where = tuple(int(i) for i in (~finite).nonzero()[0])
    count = int((~finite).sum())
    raise DataError(
        f"{name} has {count} entries that are NaN or infinite, the first at index {where}: "
        f"{float(value[where])}."
    )


def require_shape(name: str, value: Tensor, shape: tuple[int, ...], because: str) -> None:
    """Raise `DataError` unless value has the given shape."""
    if tuple(value.shape) != shape:
        raise DataError(f"{name} must have shape {shape} {because}, got {tuple(value.shape)}.")


def name_of(value: object) -> str:
    """Return what people call a value: its name, where it has one, as functions do."""
    return getattr(value, "__name__", repr(value))


def model_of(value: Any) -> Any:
    """Return the model that an estimator of scikit-learn's kind has fitted, or what was given.

    Raises:
        NotFittedError: it is an estimator without one.
    """
    fitted = getattr(value, "__sklearn_is_fitted__", None)
    if fitted is None or isinstance(value, type):
        return value
    if not fitted() or not hasattr(value, "model_"):
        hint = "call fit first" if not fitted() else "give the estimator in it, as pipeline[-1]"
        raise errors.NotFittedError(f"this {type(value).__name__} has no network yet: {hint}.")
    return value.model_


def is_number(value: object) -> bool:
    """Say whether value is a real number, Python's or numpy's, and no truth value."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_missing(value: object) -> bool:
    """Say whether an entry is None, NaN, or what pandas has in its place."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    with suppress(Exception):  # of what is no single entry
        return bool(value != value)
    return False


def is_integer(value: object) -> bool:
    """Say whether value is an integer, Python's or numpy's, and no truth value."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def require_flag(name: str, value: Any) -> None:
    """Raise `DataError` unless value is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise DataError(f"{name} must be True or False, got {value!r}.")


def integers(name: str, values: Any) -> Tensor:
    """Return integers as an int64 tensor, of a tensor, an array or a sequence of them.

    Raises:
        DataError: they are none.
    """
    if not isinstance(values, Tensor | np.ndarray) and isinstance(values, Iterable):
        values = list(values)
        if not all(map(is_integer, values)) or any(abs(x) >= 2**63 for x in values):
            raise DataError(f"{name} must be integers, got {reprlib.repr(values)}.")
        return torch.tensor([int(x) for x in values], dtype=torch.int64)
    tensor = as_tensor(name, values)
    if tensor.is_floating_point() or tensor.dtype == torch.bool:
        raise DataError(f"{name} must be integers, got {tensor.dtype}.")
    return tensor.long()


def finite_numbers(name: str, value: Any, endless: float | None = None) -> Numbers:
    """Return numbers as a float64 array: of a tensor on any device, an array or a sequence.

    Args:
        name: in messages.
        value: the numbers.
        endless: an infinite one that some of them may be.

    Raises:
        DataError: they are none, or not finite.
    """
    if isinstance(value, Tensor):
        value = value.detach().cpu().double().numpy()
    try:
        array: Numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} must be numbers, got {type(value).__name__}.") from error
    bad = ~np.isfinite(array)
    if endless is not None and not bad.all():
        bad &= array != endless
    if bad.any():
        raise DataError(f"{name} must be finite; {int(bad.sum())} are not.")
    return array


def require_positive(name: str, value: float) -> float:
    """Return value as a float where it is a positive finite number, numpy's included.

    Raises:
        DataError: it is not.
    """
    if not is_number(value):
        raise DataError(f"{name} must be a real number, got {value!r}.")
    if not (value > 0 and math.isfinite(value)):
        raise DataError(f"{name} must be positive and finite, got {value}.")
    return float(value)


def require_like(name: str, value: Tensor, other_name: str, other: Tensor) -> None:
    """Raise `DataError` unless value has the type and the device of other."""
    if value.dtype != other.dtype or value.device != other.device:
        raise DataError(
            f"{name} is {value.dtype} on {value.device}, but {other_name} is {other.dtype} on "
            f"{other.device}: bring both to one type and device."
        )


def require_seed(value: int, name: str = "seed") -> int:
    """Return value as an int where it is an integer that torch takes as a seed.

    Raises:
        DataError: it is not.
    """
    if not is_integer(value) or not 0 <= value < 2**63:
        raise DataError(f"{name} must be an integer from 0 on, got {value!r}.")
    return int(value)


def require_device(name: str) -> None:
    """Raise `DataError` unless torch can put a tensor on the device of that name."""
    try:
        found = torch.empty(0, device=name)
    except (AssertionError, RuntimeError, TypeError) as error:  # a torch without CUDA asserts
        reason = str(error).splitlines()[0]
        raise DataError(f"the device {name!r} cannot be used here: {reason}") from error
    if found.is_meta:
        raise DataError("the device 'meta' cannot be used: tensors on it hold no numbers.")


def require_share(name: str, value: float) -> None:
    """Raise `DataError` unless value is a number strictly between 0 and 1."""
    if not is_number(value) or not 0 < value < 1:
        raise DataError(f"{name} must lie strictly between 0 and 1, got {value!r}.")


def require_count(name: str, value: int, least: int) -> None:
    """Raise `DataError` unless value is an integer of at least `least`."""
    if not is_integer(value) or value < least:
        known = {0: "an integer that is not negative", 1: "a positive integer"}
        kind = known.get(least, f"an integer of {least} or more")
        raise DataError(f"{name} must be {kind}, got {value!r}.")


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
