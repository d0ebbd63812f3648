"""Memory that runs out, told by what was asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

from liftednet.errors import OutOfMemoryError

Given = ParamSpec("Given")
Found = TypeVar("Found")

_SIGNS = ("allocate memory", "out of memory", "Storage size calculation overflowed")  # torch's


def telling_of_memory(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """Return a function that raises `OutOfMemoryError` where memory runs out within.

    torch raises a `RuntimeError` of its own for the CPU, another for GPUs, numpy a `MemoryError`.
    """

    @wraps(function)
    def told(*args: Given.args, **named: Given.kwargs) -> Found:
        try:
            return function(*args, **named)
        except OutOfMemoryError:
            raise
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError | torch.OutOfMemoryError) and not any(
                sign in str(error) for sign in _SIGNS
            ):
                raise
            arrays = [_shape(x) for x in (*args, *named.values())]
            given = ", ".join(shape for shape in arrays if shape)
            raise OutOfMemoryError(
                f"memory ran out in {function.__qualname__}({given}): {_reason(error)}. Give fewer "
                "samples at a time, as minibatches do, or make layers smaller."
            ) from error

    return told


def _shape(value: object) -> str:
    shape = getattr(value, "shape", None)
    return f"array of shape {tuple(shape)}" if isinstance(shape, tuple) else ""


def _reason(error: BaseException) -> str:
    """Return what was asked for, which torch tells behind the place in its source."""
    lines = str(error).splitlines() or ["there is no more"]
    return lines[0].rpartition("Allocator: ")[2].rstrip(". ")
