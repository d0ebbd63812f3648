"""Minibatches, from arrays or from a torch DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from liftednet.errors import DataError
from liftednet.layers.expression import TIME

from .data import Data
from .standardization import RAW

_FIRST = 1_000  # samples of a loader by which scales are chosen
_NOTHING = object()  # where a loader has no batch left

Prepare = Callable[[Any, Any], Data]


class Batches(Protocol):
    """Where minibatches come from: each iteration is one pass over the data."""

    @property
    def samples(self) -> int:
        """The number of samples in a pass."""
        ...

    @property
    def weight(self) -> float:
        """The mean weight of a sample."""
        ...

    def __len__(self) -> int:
        """Return the number of batches in a pass."""
        ...

    def __iter__(self) -> Iterator[Data]:
        """Yield checked and encoded batches."""
        ...

    def memory(self) -> list[Tensor]:
        """Return what the order of the next passes depends on: states of generators."""
        ...

    def recall(self, memory: list[Tensor]) -> None:
        """Go back to what `memory` has returned, where the next pass begins."""
        ...


@dataclass(frozen=True)
class ArrayBatches:
    """Batches of equal size in a new random order in every pass.

    Attributes:
        data: all samples.
        size: samples of a batch, at most; all batches are equal but for one sample.
        generator: of the orders.
    """

    data: Data
    size: int
    generator: torch.Generator

    @property
    def samples(self) -> int:
        """The number of samples."""
        return len(self.data)

    @cached_property
    def weight(self) -> float:
        """The mean weight of a sample."""
        return self.data.weight

    def __len__(self) -> int:
        """Return the number of batches in a pass."""
        return -(-self.samples // self.size)

    def __iter__(self) -> Iterator[Data]:
        """Yield the batches of one pass."""
        order = torch.randperm(self.samples, generator=self.generator)
        yield from map(self.data.take, order.tensor_split(len(self)))

    def memory(self) -> list[Tensor]:
        """Return the state of the generator."""
        return [self.generator.get_state()]

    def recall(self, memory: list[Tensor]) -> None:
        """Bring the generator to a state."""
        self.generator.set_state(*memory)


class LoaderBatches:
    """The batches of a torch DataLoader that yields pairs (X, y).

    Their order is that of torch's generators: its own, and the global one. Whatever else it
    depends on is not remembered.
    """

    weight = 1.0

    def __init__(self, loader: DataLoader[Any], prepare: Prepare) -> None:
        """Take the loader, and what checks and encodes a batch.

        Raises:
            DataError: it does not know its length, or has no batches.
        """
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
        self.standardization = RAW  # until the first batch tells of one
        self._begun: Iterable[Any] | None = None
        self._before_first: list[Tensor] = []
        self._dtype: torch.dtype | None = None

    def __len__(self) -> int:
        """Return the number of batches in a pass."""
        return self._length

    def first(self) -> Data:
        """Return the first batches, 1,000 samples or more, or one batch of sequences.

        All others take their type, and scales are theirs. The first pass goes on from there:
        nothing is loaded twice, no order is drawn twice.

        Raises:
            DataError: one of them is not a pair (X, y), or a bad one.
        """
        self._before_first = self.memory()
        pairs, read, found = iter(self._loader), list[Any](), list[Data]()
        while not found or (sum(map(len, found)) < _FIRST and TIME not in found[0].values):
            pair = next(pairs, _NOTHING)
            if pair is _NOTHING and found:
                break
            read.append(pair)
            found.append(self._prepared(pair))
            self._dtype = found[0].like.dtype
        self._begun = chain(read, pairs)
        return _joined(found)

    def __iter__(self) -> Iterator[Data]:
        """Yield the batches of one pass, checked and encoded.

        Raises:
            DataError: the loader yields something other than pairs (X, y), or bad ones.
        """
        pairs, self._begun = self._begun or self._loader, None
        yield from map(self.standardization.of, map(self._prepared, pairs))

    def memory(self) -> list[Tensor]:
        """Return the states of torch's generators before the pass that comes next."""
        if self._begun is not None:
            return self._before_first
        return [torch.get_rng_state(), *(each.get_state() for each in self._generators())]

    def recall(self, memory: list[Tensor]) -> None:
        """Bring the generators to states; a pass that has begun is forgotten."""
        self._begun = None
        torch.set_rng_state(memory[0])
        for generator, state in zip(self._generators(), memory[1:], strict=True):
            generator.set_state(state)

    def _generators(self) -> list[torch.Generator]:
        """Return those of the loader and of its samplers, each once."""
        batches = self._loader.batch_sampler
        inner = getattr(batches, "sampler", None)
        found = [getattr(x, "generator", None) for x in (self._loader, batches, inner)]
        return list({id(x): x for x in found if isinstance(x, torch.Generator)}.values())

    def _prepared(self, pair: object) -> Data:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise DataError(f"a DataLoader must yield pairs (X, y), got {type(pair).__name__}.")
        found = self._prepare(*pair)
        if self._dtype is None or found.like.dtype is self._dtype:
            return found
        values = {
            x: v.to(self._dtype) if isinstance(v, torch.Tensor) else v
            for x, v in found.values.items()
        }
        return Data(values, found.last_only)


def _joined(parts: Sequence[Data]) -> Data:
    """Return data that are no sequences, one after another."""
    first, *others = parts
    if not others:
        return first
    together: dict[Any, Any] = {
        x: torch.cat([part.values[x] for part in parts]) for x in first.values
    }
    return Data(together, first.last_only)


def hold_out(data: Data, share: float, generator: torch.Generator) -> tuple[Data, Data | None]:
    """Return the samples to train on, and those that are held out, if any.

    Raises:
        DataError: the share leaves no sample on one of the sides.
    """
    if share == 0:
        return data, None
    held = round(share * len(data))
    if not 0 < held < len(data):
        raise DataError(f"a validation share of {share} holds out {held} of {len(data)} samples.")
    order = torch.randperm(len(data), generator=generator)
    return data.take(order[held:]), data.take(order[:held])
