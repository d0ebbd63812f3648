"""Minibatches, from arrays or from a torch DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from liftednet.deferred import sent
from liftednet.errors import DataError
from liftednet.losses import CrossEntropy, Loss, SimplexCrossEntropy

from .minibatch import Minibatch

Batch = tuple[Tensor, Tensor]
Prepare = Callable[[Any, Any], Batch]


class Batches(Protocol):
    """Where minibatches come from: each iteration is one pass over the data."""

    @property
    def samples(self) -> int:
        """The number of samples in a pass."""
        ...

    def __len__(self) -> int:
        """Return the number of batches in a pass."""
        ...

    def __iter__(self) -> Iterator[Batch]:
        """Yield X (samples, inputs) and encoded targets (samples, outputs)."""
        ...


@dataclass(frozen=True)
class ArrayBatches:
    """Batches of equal size in a new random order in every pass.

    Attributes:
        inputs: X, (samples, inputs).
        target: encoded y, (samples, outputs).
        size: samples of a batch, at most; all batches are equal but for one sample.
        generator: of the orders.
    """

    inputs: Tensor
    target: Tensor
    size: int
    generator: torch.Generator

    @property
    def samples(self) -> int:
        """The number of rows."""
        return len(self.inputs)

    def __len__(self) -> int:
        """Return the number of batches in a pass."""
        return -(-self.samples // self.size)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of one pass."""
        order = torch.randperm(self.samples, generator=self.generator)
        for rows in sent(order, self.inputs.device).tensor_split(len(self)):
            yield self.inputs[rows], self.target[rows]


class LoaderBatches:
    """The batches of a torch DataLoader that yields pairs (X, y)."""

    def __init__(
        self, loader: DataLoader[Any], y: object, method: Minibatch, prepare: Prepare
    ) -> None:
        """Take the loader, and what checks and encodes a batch.

        Raises:
            DataError: y or a validation share stands beside it, it does not know its length, or
                has no batches.
        """
        if y is not None or method.validation > 0:
            raise DataError(
                "a DataLoader brings its own y and cannot be split: pass y or ask for a "
                "validation share with arrays alone."
            )
        self._loader, self._prepare = loader, prepare
        try:
            self._length = len(loader)
            self.samples = len(loader.dataset)  # type: ignore[arg-type]
        except TypeError as error:
            raise DataError(
                "a DataLoader must know its length, so that the rate can fall to zero at the end; "
                "for endless data call partial_fit with every batch."
            ) from error
        if self._length == 0:
            raise DataError(
                f"the DataLoader has no batches of its {self.samples} samples: give it samples, or "
                "a batch_size that they fill where drop_last is set."
            )
        self._begun: Iterable[Any] | None = None
        self._like: Tensor | None = None

    def __len__(self) -> int:
        """Return the number of batches in a pass."""
        return self._length

    def like(self) -> Tensor:
        """Return X of the first batch, whose type all others take.

        The first pass goes on from there: nothing is loaded twice, no order is drawn twice.

        Raises:
            DataError: the first batch is not a pair (X, y), or a bad one.
        """
        pairs = iter(self._loader)
        first = next(pairs, None)
        self._begun = chain([first], pairs)
        self._like = self._prepared(first)[0]
        return self._like

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of one pass, checked and encoded.

        Raises:
            DataError: the loader yields something other than pairs (X, y), or bad ones.
        """
        pairs, self._begun = self._begun or self._loader, None
        yield from map(self._prepared, pairs)

    def _prepared(self, pair: object) -> Batch:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise DataError(f"a DataLoader must yield pairs (X, y), got {type(pair).__name__}.")
        inputs, target = self._prepare(*pair)
        like = inputs if self._like is None else self._like
        return inputs.to(like), target.to(like)


def encode_part(loss: Loss, y: Tensor, outputs: int) -> Tensor:
    """Return encoded targets of a part of the data, which may hold one class alone.

    Raises:
        DataError: y does not fit the loss or the number of outputs.
    """
    labels = y.ndim == 1 and not y.is_floating_point()
    if labels and isinstance(loss, CrossEntropy | SimplexCrossEntropy):
        every = torch.arange(outputs, dtype=y.dtype, device=y.device)
        return loss.encode(torch.cat([y, every]), outputs)[: len(y)]
    return loss.encode(y, outputs)


def hold_out(
    inputs: Tensor, target: Tensor, method: Minibatch, generator: torch.Generator
) -> tuple[ArrayBatches, Batch | None]:
    """Return the batches to train on, and the samples that are held out, if any.

    Raises:
        DataError: the validation share leaves no sample on one of the sides.
    """
    if method.validation == 0:
        return ArrayBatches(inputs, target, method.batch_size, generator), None
    held = round(method.validation * len(inputs))
    if not 0 < held < len(inputs):
        raise DataError(
            f"a validation share of {method.validation} holds out {held} of {len(inputs)} samples."
        )
    order = torch.randperm(len(inputs), generator=generator).to(inputs.device)
    kept = ArrayBatches(inputs[order[held:]], target[order[held:]], method.batch_size, generator)
    return kept, (inputs[order[:held]], target[order[:held]])
