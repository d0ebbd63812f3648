"""Rows in files that are mapped into memory, for what is larger than that."""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from liftednet.errors import DataError

from .data import Data, row_parts
from .standardization import Standardization


class Store:
    """A folder for tensors that live in files, each as long as somebody has the tensor."""

    def __init__(self, folder: str | Path) -> None:
        """Try the folder.

        Raises:
            DataError: no file can be made in it.
        """
        self._folder = Path(folder)
        self.empty((1,), torch.float32)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a tensor of zeros in a file of its own.

        Raises:
            DataError: the folder has no room for it.
        """
        entries = math.prod(shape)
        if not entries:
            return torch.empty(shape, dtype=dtype)
        try:
            with tempfile.NamedTemporaryFile(dir=self._folder, prefix="liftednet-") as file:
                _reserve(file.fileno(), entries * dtype.itemsize)
                mapped = torch.from_file(file.name, shared=True, size=entries, dtype=dtype)
        except OSError as error:
            raise DataError(
                f"{self._folder} cannot keep {entries * dtype.itemsize:,} bytes: {error.strerror}."
            ) from error
        return mapped.view(shape)

    def standardized(self, standardization: Standardization, data: Data) -> Data:
        """Return data whose values are standardized, those that change kept here."""
        values = dict(data.values)
        for variable in standardization.moments:
            if variable in values:
                given = values[variable]
                values[variable] = kept = self.empty(tuple(given.shape), given.dtype)
                for part in row_parts({variable: given}):
                    some = standardization.of(Data({variable: given[part]}))
                    kept[part] = some.values[variable]
        return Data(values, data.last_only)


def _reserve(file: int, size: int) -> None:
    """Take the room at once: a mapped file for which there is none ends the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
