"""Minibatches, from arrays or from a torch DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from liftednet import processes
from liftednet.errors import DataError
from liftednet.layers.expression import SAMPLE_WEIGHTS, TIME
from liftednet.processes import share_of

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

    Each of several processes draws the order of all samples, and yields its own of every batch.

    Attributes:
        data: the samples of this process.
        size: samples of a batch, at most; all batches are equal but for one sample.
        generator: of the orders.
        numbers: of the samples in a pass, among those of all processes; None for every sample.
        redrawn: the samples with new draws of what was not seen, for every pass; None where all
            was seen.
    """

    data: Data
    size: int
    generator: torch.Generator
    numbers: Tensor | None = None
    redrawn: Callable[[torch.Generator], Data] | None = None

    @property
    def samples(self) -> int:
        """The number of samples in a pass."""
        return self._share.samples if self.numbers is None else len(self.numbers)

    @cached_property
    def _share(self) -> processes.Share:
        return share_of(len(self.data))

    @cached_property
    def weight(self) -> float:
        """The mean weight of a sample."""
        weights = self.data.raw.values.get(SAMPLE_WEIGHTS)
        if weights is None:
            return 1.0
        if self.numbers is not None:
            weights = weights[self._share.own(self.numbers).to(weights.device)]
        return processes.total_of(float(weights.sum())) / self.samples

    def __len__(self) -> int:
        """Return the number of batches in a pass."""
        return -(-self.samples // self.size)

    def __iter__(self) -> Iterator[Data]:
        """Yield the batches of one pass."""
        order = torch.randperm(self.samples, generator=self.generator)
        if self.numbers is not None:
            order = self.numbers[order]
        data = self.data if self.redrawn is None else self.redrawn(self.generator)
        for batch in order.tensor_split(len(self)):
            yield replace(data.take(self._share.own(batch)), among=len(batch))

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
        with processes.agreed():
            self._length, own = _lengths(loader)
        lengths = processes.gathered([self._length])[:, 0].long().tolist()
        if len(set(lengths)) > 1:
            raise DataError(
                f"the DataLoaders of the processes have {lengths} batches, and need equally many: "
                "a torch.utils.data.DistributedSampler gives them as many samples."
            )
        self.samples = int(processes.total_of(own))
        self.standardization = RAW  # until the first batch tells of one
        self._begun: Iterable[Any] | None = None
        self._before_first: list[Tensor] = []
        self._dtype: torch.dtype | None = None
        self._passes = 0

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
        self._begin_pass()
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
        if self._begun is None:
            self._begin_pass()
        pairs, self._begun = self._begun or self._loader, None
        yield from map(self.standardization.of, map(self._prepared, pairs))

    def memory(self) -> list[Tensor]:
        """Return the states of torch's generators before the pass that comes next."""
        if self._begun is not None:
            return self._before_first
        states = [torch.get_rng_state(), *(each.get_state() for each in self._generators())]
        return [*states, torch.tensor(self._passes)] if self._numbered else states

    def recall(self, memory: list[Tensor]) -> None:
        """Bring the generators to states; a pass that has begun is forgotten."""
        self._begun = None
        torch.set_rng_state(memory[0])
        for generator, state in zip(self._generators(), memory[1:], strict=False):
            generator.set_state(state)
        if self._numbered:
            self._passes = int(memory[-1])

    @property
    def _numbered(self) -> bool:
        """Whether the order of a pass depends on its number, as a DistributedSampler has it."""
        return hasattr(self._loader.sampler, "set_epoch")

    def _begin_pass(self) -> None:
        if self._numbered:
            self._loader.sampler.set_epoch(self._passes)  # type: ignore[attr-defined]
        self._passes += 1

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
        if not len(found):
            raise DataError("a batch of the DataLoader is empty.")
        if self._dtype is None or found.like.dtype is self._dtype:
            return found
        values = {
            x: v.to(self._dtype) if isinstance(v, torch.Tensor) else v
            for x, v in found.values.items()
        }
        return Data(values, found.last_only)


def _lengths(loader: DataLoader[Any]) -> tuple[int, int]:
    """Return the batches and the samples in a pass of a loader.

    Raises:
        DataError: it does not know its length, or has no batches.
    """
    try:
        batches, samples = len(loader), len(loader.dataset)  # type: ignore[arg-type]
    except TypeError as error:
        raise DataError(
            "a DataLoader must know its length, so that the rate can fall to zero at the end; "
            "for endless data call partial_fit with every batch."
        ) from error
    if batches == 0:
        raise DataError(
            f"the DataLoader has no batches of its {samples} samples: give it samples, or "
            "a batch_size that they fill where drop_last is set."
        )
    shared = hasattr(loader.sampler, "set_epoch")  # of one dataset between the processes
    return batches, len(loader.sampler) if shared else samples  # type: ignore[arg-type]


def _joined(parts: Sequence[Data]) -> Data:
    """Return data that are no sequences, one after another."""
    first, *others = parts
    if not others:
        return first
    together: dict[Any, Any] = {
        x: torch.cat([part.values[x] for part in parts]) for x in first.values
    }
    return Data(together, first.last_only)


def hold_out(
    data: Data, share: float, generator: torch.Generator
) -> tuple[Tensor | None, Tensor | None]:
    """Return the numbers of the samples to train on, None for all, and of those held out, if any.

    The first are numbers among the samples of all processes, the others among those of this one.

    Raises:
        DataError: the share leaves no sample on one of the sides.
    """
    if share == 0:
        return None, None
    own = share_of(len(data))
    held = round(share * own.samples)
    if not 0 < held < own.samples:
        raise DataError(f"a validation share of {share} holds out {held} of {own.samples} samples.")
    order = torch.randperm(own.samples, generator=generator)
    return order[held:], own.own(order[:held])
