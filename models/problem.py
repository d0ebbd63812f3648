"""What a method is given: a training problem at a point, and where its rows lie."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from liftednet.errors import DataError
from liftednet.samples import Weights

from .batches import Batches
from .data import Data, row_parts
from .incomplete import WHOLE, Completion
from .run import Memory, Trace
from .standardization import RAW, Standardization


@dataclass(eq=False)
class Problem:
    """A training problem, as `Lifted.fit` prepares it and `method.take_steps` solves it.

    Attributes:
        point: `Blocks`, or of minibatches `BatchSteps`: structure and weights, which move.
        solver: of every block.
        state_solver: of states over time.
        batches: of minibatches.
        validate: of minibatches, the objective of weights on what is held out, None for nothing.
        memory: what the method goes on from, if anything; brought up to date before every yield.
        trace: the history so far.
        data: all of them, on the scale of training; None where a DataLoader brings them.
        seen: these, or the first batches of a DataLoader.
        standardization: between the data and the weights.
        completion: the priors of inputs that are not seen as they are.
    """

    point: Any
    solver: Any = "auto"
    state_solver: Any = "auto"
    batches: Batches | None = None
    validate: Callable[[Sequence[Weights]], float] | None = None
    memory: Memory = field(default_factory=dict)
    trace: Trace = field(default_factory=lambda: Trace(math.nan))
    data: Data | None = None
    seen: Any = None
    standardization: Standardization = RAW
    completion: Completion = WHOLE


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
