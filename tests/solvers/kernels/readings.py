"""What would make a GPU wait for the host, counted on tensors that are taken for a GPU's."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Operations that read a number, or ask whether a factorization has succeeded.
_WAITING = {
    "_linalg_check_errors",
    "_linalg_eigh",
    "_linalg_svd",
    "_local_scalar_dense",
    "_unique2",
    "equal",
    "is_nonzero",
    "item",
    "linalg_lstsq",
    "masked_select",
    "nonzero",
    "unique_dim",
}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
_COPYING = {"_to_copy", "copy_"}


class Readings(TorchDispatchMode):
    """Collects the operations of solvers that wait: readings, boolean indices, copies.

    What the language reads for itself, in a map or a measure, is not counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        name = function.overloadpacket.__name__
        result = function(*args, **(kwargs or {}))
        if not _is_of_a_solver():
            return result
        if name in _WAITING:
            self.names.append(name)
        elif name in _INDEXING and any(_is_mask(index) for index in args[1]):
            self.names.append(f"{name} by booleans")
        elif name in _COPYING and args[-1 if name == "copy_" else 0].device != result.device:
            self.names.append(f"{name} to {result.device}")
        return result


def _is_of_a_solver() -> bool:
    """Say whether the innermost module of liftednet that is at work is a solver's."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        module: str = frame.f_globals.get("__name__", "")
        if module.startswith("liftednet."):
            return module.startswith("liftednet.solvers.")
        frame = frame.f_back
    return False


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype is torch.bool
