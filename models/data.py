"""What is given to a model: arrays or a DataLoader in, checked values and minibatches out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from liftednet import processes
from liftednet.errors import DataError
from liftednet.layers.expression import SAMPLE_WEIGHTS, TIME, Input
from liftednet.layers.time import Timeline
from liftednet.losses import CrossEntropy, Loss, SimplexCrossEntropy
from liftednet.network import Label, Network, State, Term
from liftednet.samples import require_sample_weights, row_chunks
from liftednet.validation import as_tensor, require_finite, require_float, sequence_lengths

from .forward_pass import Values

ArrayLike = Tensor | np.ndarray[Any, Any]
Lengths = ArrayLike | Sequence[int] | None
_CACHE_LINE = 64  # bytes
ENTRIES = 3_000_000  # of all values, at a time
_FIRST = 1_000  # samples of a loader by which scales are chosen
_KEPT = 1 << 24  # numbers that are copied in some hundredths of a second
_ROUNDING = 16  # last digits by which a value may be off and still be the same
Arrays = ArrayLike | Sequence[ArrayLike]
Prepare = Callable[[Any, Any], "Data"]


@dataclass(frozen=True, eq=False)
class Data:
    """Checked and encoded data of a network.

    Attributes:
        values: of inputs and labels: (samples, units), or (steps, samples, units) of sequences,
            zero beyond their lengths; the timeline, where there are sequences.
        last_only: the labels of sequences that have one answer, at the last step.
        among: how many samples of all processes these are some of; None where nobody has counted.
        coarser: the types in which values came that have fewer digits than those that they have.
    """

    values: Values
    last_only: frozenset[Label] = frozenset()
    among: int | None = None
    coarser: Mapping[Input | Label, torch.dtype] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of samples, or of sequences."""
        if TIME in self.values:
            return len(self.values[TIME].known)
        return len(next(iter(self.values.values())))

    @property
    def mass(self) -> float:
        """The sum of the weights of the samples, their number without any."""
        weights = self.values.get(SAMPLE_WEIGHTS)
        return len(self) if weights is None else float(weights.sum())

    @property
    def loss_weights(self) -> Tensor:
        """What every sample weighs in a loss, (samples,): one with a label a step that at each."""
        weights = self.values.get(SAMPLE_WEIGHTS)
        given = torch.ones(len(self)) if weights is None else weights.cpu()
        each = any(
            v.ndim == 3 and x not in self.last_only
            for x, v in self.values.items()
            if isinstance(x, Label)
        )
        return given.double() * (self.values[TIME].known if each else 1)

    @property
    def raw(self) -> Data:
        """The data before they are standardized, where that is done for some samples at a time."""
        return self

    def rounding(self, variable: Input | Label) -> float:
        """Return how far a value may be from its mean, relative to it, and still be the same."""
        kind = self.coarser.get(variable, self.like.dtype)
        return _ROUNDING * torch.finfo(kind).eps

    def equal(self, other: Data) -> bool:
        """Return whether other data have the same types and entries."""
        if set(self.values) != set(other.values):
            return False
        return all(
            v.known.equal(other.values[x].known)
            if isinstance(v, Timeline)
            else v.dtype is other.values[x].dtype and v.equal(other.values[x])
            for x, v in self.values.items()
        )

    def take(self, rows: Tensor) -> Data:
        """Return some of the samples, (some,) int64, on the CPU where sequences have lengths."""
        steps = TIME in self.values
        taken: Values = {}
        for variable, value in self.values.items():
            if isinstance(value, Timeline):
                taken[variable] = value.take(rows)
            else:
                there = rows.to(value.device)
                axis = int(steps and value.ndim == 3)
                taken[variable] = value.index_select(axis, there)
        return replace(self, values=taken, among=None)

    def table(self) -> Tensor:
        """Return all that is known of every sample but its weight, (samples, numbers), float64."""
        over_time = TIME in self.values
        rows = [
            v.known.unsqueeze(1).to(self.like.device) if isinstance(v, Timeline)
            else v.movedim(int(over_time and v.ndim == 3), 0).flatten(1)
            for x, v in self.values.items() if x is not SAMPLE_WEIGHTS
        ]  # fmt: skip
        return torch.cat([x.double() for x in rows], 1)

    def merged(self) -> Data:
        """Return the distinct samples in an order of their own, each with the sum of its weights.

        A sample of weight 2 then is two samples, to the last bit, where training on few of them
        makes more of any difference in rounding. Data without weights or repetitions stay.
        """
        weights = self.values.get(SAMPLE_WEIGHTS)
        found, place = self.table().unique(dim=0, return_inverse=True)
        if weights is None and len(found) == len(self):
            return self
        given = self.like.new_ones(len(self)) if weights is None else weights
        total = given.new_zeros(len(found)).index_add(0, place, given)
        order = torch.arange(len(self), device=place.device)
        first = order.new_zeros(len(found)).scatter_reduce(
            0, place, order, "amin", include_self=False
        )
        taken, there = self.take(first[total > 0].cpu()), total[total > 0]
        return replace(taken, values={**taken.values, SAMPLE_WEIGHTS: there})

    def parts(self, numbers: Tensor, made: Sequence[State]) -> Iterator[Data]:
        """Yield the samples of some numbers, so few at a time that all of them are small.

        Args:
            numbers: (some,) int64.
            made: states that are made of every sample.
        """
        values = self.raw.values
        timeline = values.get(TIME)
        given = sum(v.numel() for v in values.values() if isinstance(v, Tensor))
        entries = given // max(1, len(self))
        for state in made:
            entries += state.units * (timeline.steps if timeline and state.sequence else 1)
        for part in row_chunks(len(numbers), entries, self.like.device, ENTRIES):
            yield self.take(numbers[part])

    def kept(self) -> Data:
        """Return the data in memory of their own, where they are few: who gave them may go on.

        Error bars and objectives of the fit are asked of them later.
        """
        given = [v for v in self.values.values() if isinstance(v, Tensor)]
        few = sum(v.numel() for v in given) <= _KEPT
        return self.changed(Tensor.clone) if few else self

    def aligned(self) -> Data:
        """Return the data as torch lays tensors: a product rounds by where its factors begin."""
        return self.changed(lambda v: v.clone() if v.data_ptr() % _CACHE_LINE else v)

    def changed(self, change: Callable[[Tensor], Tensor]) -> Data:
        """Return the data with a change of all tensors."""
        values = {x: change(v) if isinstance(v, Tensor) else v for x, v in self.values.items()}
        return replace(self, values=values)

    @property
    def like(self) -> Tensor:
        """A tensor whose type and device all have."""
        return next(x for x in self.values.values() if isinstance(x, Tensor))


def prepared(
    network: Network,
    X: Arrays,
    y: Arrays | None,
    lengths: Lengths = None,
    *,
    dtype: torch.dtype | None = None,
    device: str = "cpu",
    part: bool = False,
    sample_weight: ArrayLike | None = None,
) -> Data:
    """Return checked data.

    Args:
        network: whose inputs and labels they are.
        X: (samples, ...) for each input: one array, or as many in order.
        y: labels or targets for each loss likewise; None for prediction.
        lengths: (samples,) steps of each sequence; None: all have every step.
        dtype: of the values, or None for that of X.
        device: of the values.
        part: whether these are a part of the data, in which classes may be missing, or samples.
        sample_weight: (samples,), not negative; None for 1.

    Raises:
        DataError: arrays, lengths and network do not fit together, or are not finite.
    """
    arrays = _by_variable("X", network.inputs, X)
    given = {variable: as_tensor("X", array) for variable, array in arrays.items()}
    values: Values = {}
    first = next(iter(given.values()))
    if dtype is None:
        require_float("X", first)
        dtype = first.dtype
    for variable, tensor in given.items():
        values[variable] = _checked_input(variable, tensor, first, part)
    timeline = _timeline(values, lengths)
    if timeline is None and network.steps is not None:  # samples hold their steps in one row
        timeline = Timeline(network.steps, torch.full((len(first),), network.steps))
    for variable, value in values.items():
        kept = value
        if timeline is None or not variable.sequence:
            _require_finite_input(variable, value)
        else:
            kept = value if timeline.full else value.where(timeline.valid.unsqueeze(-1), 0.0)
            require_finite("X, as (steps, samples, features),", kept)
        values[variable] = kept.to(device=device, dtype=dtype)
    if timeline is not None:
        values[TIME] = replace(timeline, device=torch.device(device))
    values.update(network.ends(values))
    data = Data(values)
    if sample_weight is not None:
        weights = as_tensor("sample_weight", sample_weight).to(device=device, dtype=dtype)
        require_sample_weights(weights, len(data), part)
        values[SAMPLE_WEIGHTS] = weights
    if y is None:
        return data
    labels = [term.label for term in network.terms]
    last_only = set()
    for term, array in zip(network.terms, _by_variable("y", labels, y).values(), strict=True):
        given[term.label] = as_tensor("y", array)
        target, last = _encoded(term, given[term.label], len(data), timeline, part)
        values[term.label] = target.to(device=device, dtype=dtype)
        if last:
            last_only.add(term.label)
    floating = {x: v.dtype for x, v in given.items() if v.is_floating_point()}
    fine = torch.finfo(dtype).eps
    coarser = {x: kind for x, kind in floating.items() if torch.finfo(kind).eps > fine}
    return Data(values, frozenset(last_only), coarser=coarser)


def _by_variable(name: str, variables: Sequence[Any], given: Any) -> dict[Any, Any]:
    several = isinstance(given, tuple | list) and all(
        isinstance(x, Tensor | np.ndarray) for x in given
    )
    arrays = list(given) if several and given else [given]
    if len(arrays) != len(variables):
        if len(variables) == 1:
            sequence = getattr(variables[0], "sequence", False)
            raise DataError(
                f"{name} must be one array, got {len(arrays)} in a {type(given).__name__}: stack "
                f"them{', padded at their ends, and give lengths=' if sequence else ''}."
            )
        raise DataError(
            f"{name} must be {len(variables)} arrays, one for each of "
            f"{', '.join(x.name for x in variables)}; got {len(arrays)}."
        )
    return dict(zip(variables, arrays, strict=True))


def _checked_input(variable: Input, x: Tensor, first: Tensor, part: bool) -> Tensor:
    """Return X as (samples, units), or (steps, samples, units)."""
    leading = ("samples", "steps") if variable.sequence else ("samples",)
    if variable.units == 1 and x.ndim == len(leading):  # one number is a feature by itself
        x = x.unsqueeze(-1)
    sizes = x.shape[len(leading) :]
    fits = tuple(sizes) == variable.shape or tuple(sizes) == (variable.units,)
    if not fits or (x.numel() == 0 and not (part and len(x) == 0)):
        shape = ", ".join((*leading, *map(str, variable.shape)))
        raise DataError(
            f"X must have shape ({shape}) for a network with {variable.units} inputs, got "
            f"{tuple(x.shape)}{', which is empty' if x.numel() == 0 else ''}."
        )
    require_float("X", x)
    if len(x) != len(first):
        raise DataError(f"every array of X must have {len(first)} samples; one has {len(x)}.")
    flat = x.flatten(len(leading))
    return flat.transpose(0, 1).contiguous() if variable.sequence else flat


def _require_finite_input(variable: Input, x: Tensor) -> None:
    try:
        require_finite("X", x.masked_fill(x.isnan(), 0.0) if variable.missing else x)
    except DataError as error:
        if variable.missing or not bool(x.isnan().any()):
            raise
        raise DataError(f"{error} Say missing=True where NaN is what was not seen.") from error


def _timeline(values: Values, lengths: Lengths) -> Timeline | None:
    sequences = [v for x, v in values.items() if x.sequence]
    if not sequences:
        if lengths is not None:
            raise DataError("lengths are for sequences, and the network has none.")
        return None
    steps, samples = sequences[0].shape[:2]
    if any(v.shape[0] != steps for v in sequences):
        raise DataError("all inputs of sequences must have equal steps.")
    if lengths is None:
        known = torch.full((samples,), steps)
    else:
        known = sequence_lengths(lengths, samples, steps)
    return Timeline(steps, known.cpu(), sequences[0].device)


def _encoded(
    term: Term, y: Tensor, samples: int, timeline: Timeline | None, part: bool
) -> tuple[Tensor, bool]:
    """Return targets, and whether sequences have one alone, at their last step."""
    if y.ndim == 0 or len(y) != samples:
        raise DataError(
            f"y must have one row for each of the {samples} samples of X, got shape "
            f"{tuple(y.shape)}."
        )
    outputs = term.argument.units if term.state is None else term.state.units
    encode = partial(encode_part, term.loss) if part else term.loss.encode
    if not term.argument.sequence:
        if y.ndim > 2 and y[0].numel() == outputs:  # pictures, say
            y = y.flatten(1)
        if y.is_floating_point():
            require_finite("y", y)
        return encode(y, outputs), False
    assert timeline is not None  # the argument is a sequence
    per_step = of_steps(y)
    if per_step and y.shape[1] != timeline.steps:
        raise DataError(
            f"y of shape {tuple(y.shape)} must have the {timeline.steps} steps of X on its second "
            "axis."
        )
    if not per_step and y.ndim == 2 and y.shape[1] == timeline.steps != outputs:
        raise DataError(
            f"y of shape {tuple(y.shape)} has a number for each of the {timeline.steps} steps: "
            f"give (samples, steps, {outputs}), as y[..., None] is for one output."
        )
    if y.ndim == 3 and y.shape[2] == 1 != outputs and not y.is_floating_point():
        raise DataError(f"y of shape {tuple(y.shape)} has labels: give y[..., 0], one a step.")
    y = y.to(timeline.device)
    counted = timeline.valid if per_step else timeline.last
    rows = y.transpose(0, 1)[counted] if per_step else y[counted.nonzero()[:, 1]]
    if rows.is_floating_point():
        require_finite("y", rows)
    encoded = encode(rows, outputs)
    target = encoded.new_zeros(timeline.steps, samples, outputs)
    target[counted] = encoded
    return target, not per_step


def of_steps(y: Tensor) -> bool:
    """Say whether labels of sequences are one a step, not one a sequence."""
    return y.ndim == 3 or (y.ndim == 2 and not y.is_floating_point())


def encode_part(loss: Loss, y: Tensor, outputs: int) -> Tensor:
    """Return encoded targets of a part of the data, which may hold one class alone.

    Raises:
        DataError: y does not fit the loss or the number of outputs.
    """
    if not len(y):
        return y.new_zeros(0, outputs, dtype=torch.float64)
    labels = y.ndim == 1 and not y.is_floating_point()
    if labels and isinstance(loss, CrossEntropy | SimplexCrossEntropy):
        every = torch.arange(outputs, dtype=y.dtype, device=y.device)
        return loss.encode(torch.cat([y, every]), outputs)[: len(y)]
    return loss.encode(y, outputs)


@dataclass(frozen=True, eq=False)
class Batch:
    """Some samples, looked up where they are asked for.

    Attributes:
        source: all samples.
        rows: which, (some,) int64.
        among: how many samples of all processes these are some of.
    """

    source: Data
    rows: Tensor
    among: int

    @property
    def data(self) -> Data:
        """The samples."""
        return replace(self.source.take(self.rows), among=self.among)


@dataclass(frozen=True)
class ArrayBatches:
    """Batches of equal size in a new random order in every pass: each iteration is one pass.

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
        return processes.share_of(len(self.data))

    @cached_property
    def weight(self) -> float:
        """What a sample weighs in the mean."""
        weights = self.data.raw.loss_weights
        if self.numbers is not None:
            weights = weights[self._share.own(self.numbers)]
        return processes.total_of(float(weights.sum())) / self.samples

    def __len__(self) -> int:
        """Return the number of batches in a pass."""
        return -(-self.samples // self.size)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of one pass."""
        order = torch.randperm(self.samples, generator=self.generator)
        if self.numbers is not None:
            order = self.numbers[order]
        data = self.data if self.redrawn is None else self.redrawn(self.generator)
        timeline = data.raw.values.get(TIME)
        if timeline is None or timeline.full:  # or lengths, which are on the CPU, are looked up
            order = order.to(data.like.device)  # at once, or every batch would wait for its copy
        for batch in order.tensor_split(len(self)):
            yield Batch(data, self._share.own(batch), len(batch))

    def memory(self) -> list[Tensor]:
        """Return what the order of the next passes depends on: the state of the generator."""
        return [self.generator.get_state()]

    def recall(self, memory: list[Tensor]) -> None:
        """Go back to what `memory` has returned, where the next pass begins."""
        self.generator.set_state(*memory)


class LoaderBatches:
    """The batches of a torch DataLoader that yields pairs (X, y).

    Their order is that of torch's generators: its own, and the global one. Whatever else it
    depends on is not remembered.
    """

    def __init__(self, loader: DataLoader[Any], prepare: Prepare) -> None:
        """Take the loader, and what checks and encodes a batch.

        Raises:
            DataError: it does not know its length, or has no batches.
        """
        self._loader, self._prepare = loader, prepare
        with processes.agreed():
            self._length, self._own = _lengths(loader)
        lengths = processes.gathered([self._length])[:, 0].long().tolist()
        if len(set(lengths)) > 1:
            raise DataError(
                f"the DataLoaders of the processes have {lengths} batches, and need equally many: "
                "a torch.utils.data.DistributedSampler gives them as many samples."
            )
        self.samples, self.weight = 0, 1.0  # told by the first batches, as scales are
        self.standardize: Callable[[Data], Data] = lambda data: data
        self._begun: Iterable[Any] | None = None
        self._before_first: list[Tensor] = []
        self._dtype: torch.dtype | None = None
        self._passes, self._told = 0, False

    def __len__(self) -> int:
        """Return the number of batches in a pass."""
        return self._length

    @property
    def told_samples(self) -> int | None:
        """The samples of a pass where the loader says them; None where first batches tell."""
        return None if self._own is None else self.samples

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
        with processes.agreed():
            for pair in pairs:
                read.append(pair)
                found.append(self._prepared(pair))
                self._dtype = found[0].like.dtype
                if TIME in found[0].values or sum(map(len, found)) >= _FIRST:
                    break
            if not found:
                raise DataError("the DataLoader has yielded no batch.")
        self._empty = found[0].take(torch.arange(0))
        self._begun, mean = chain(read, pairs), sum(map(len, found)) / len(found)
        own = round(mean * self._length) if self._own is None else self._own
        self.samples = int(processes.total_of(own))
        first = _joined(found)
        total = processes.total_of(float(first.loss_weights.sum()))
        self.weight = total / processes.total_of(len(first))
        return first

    def __iter__(self) -> Iterator[Data]:
        """Yield the batches of one pass, checked and encoded.

        Where one of several processes has no more of them, it yields empty ones, and raises its
        error with all others at the end of the pass: their sums would wait for it.

        Raises:
            DataError: the loader yields something other than pairs (X, y), or bad ones, or nothing.
        """
        if self._begun is None:
            self._begin_pass()
        pairs, self._begun, count = iter(self._begun or self._loader), None, 0
        fault: Exception | None = None
        for _ in range(self._length):
            try:
                data = self._prepared(next(pairs))
            except StopIteration:
                break
            except Exception as error:
                fault = error
                break
            count += 1
            yield self.standardize(data)
        for _ in range(count, self._length if processes.size() > 1 else 0):
            yield self.standardize(self._empty)
        with processes.agreed():
            if fault is not None:
                raise fault
            if not count:
                raise DataError(
                    f"the DataLoader has yielded no batch in pass {self._passes}, and "
                    f"{self._length} before: what it reads must begin anew in every pass."
                )
        count += next(pairs, None) is not None  # samplers draw once more where a pass ends
        if count != self._length and not self._told:
            self._told, more = True, "more" if count > self._length else f"only {count}"
            processes.warn(
                f"the DataLoader has {self._length} batches by len(), and has yielded {more} in "
                f"pass {self._passes}: those beyond are left out, and the rate falls by len()."
            )

    def memory(self) -> list[Tensor]:
        """Return the states of torch's generators before the pass that comes next.

        Those of all processes, (processes, bytes), where there are several.
        """
        if self._begun is not None:
            return self._before_first
        states = [torch.get_rng_state(), *(each.get_state() for each in self._generators())]
        if processes.size() > 1:
            states = [processes.joined(state.unsqueeze(0)) for state in states]
        return [*states, torch.tensor(self._passes)] if self._numbered() else states

    def recall(self, memory: list[Tensor]) -> None:
        """Bring the generators to states; a pass that has begun is forgotten.

        Raises:
            DataError: they are those of another number of processes.
        """
        before = len(memory[0]) if memory[0].ndim > 1 else 1
        if before != processes.size():
            raise DataError(
                "a training by a DataLoader goes on with as many processes as it began with, "
                f"{before}, each with its own generators; there are {processes.size()}."
            )
        self._begun, generators = None, self._generators()
        own = memory[: 1 + len(generators)]
        if before > 1:  # torch reads a state from where its storage begins
            own = [x[processes.rank()].clone() for x in own]
        torch.set_rng_state(own[0])
        for generator, state in zip(generators, own[1:], strict=True):
            generator.set_state(state)
        if self._numbered():
            self._passes = int(memory[-1])

    def _parts(self) -> list[Any]:
        """Return the loader and its samplers, on which the order of batches depends."""
        batches = self._loader.batch_sampler
        return [self._loader, self._loader.sampler, batches, getattr(batches, "sampler", None)]

    def _numbered(self) -> list[Any]:
        """Return what has an order for every number of a pass, as a DistributedSampler has."""
        return [x for x in self._parts() if hasattr(x, "set_epoch")]

    def _begin_pass(self) -> None:
        for each in self._numbered():
            each.set_epoch(self._passes)
        self._passes += 1

    def _generators(self) -> list[torch.Generator]:
        """Return those of the loader and of its samplers, each once."""
        found = [getattr(x, "generator", None) for x in self._parts()]
        return list({id(x): x for x in found if isinstance(x, torch.Generator)}.values())

    def _prepared(self, pair: object) -> Data:
        found = self._prepare(*pair_of(pair))
        if not len(found):
            raise DataError("a batch of the DataLoader is empty.")
        if self._dtype is None or found.like.dtype is self._dtype:
            return found
        return found.changed(lambda v: v.to(self._dtype))


Batches = ArrayBatches | LoaderBatches


def pair_of(item: object) -> Sequence[Any]:
    """Return the (X, y) that a DataLoader has yielded.

    Raises:
        DataError: it is something else.
    """
    if not isinstance(item, list | tuple) or len(item) != 2:
        raise DataError(
            f"a DataLoader must yield pairs (X, y), got {type(item).__name__}: make them of its "
            "items by collate_fn=."
        )
    return item


def _lengths(loader: DataLoader[Any]) -> tuple[int, int | None]:
    """Return the batches in a pass of a loader, and its samples, or None where batches are ready.

    Raises:
        DataError: it does not know its length, or has no batches.
    """
    try:
        batches, samples = len(loader), len(loader.dataset)  # type: ignore[arg-type]
    except TypeError as error:
        raise DataError(
            "a DataLoader must know its length, so that the rate can fall to zero at the end: of "
            "endless data take some thousands at a time, with warm_start=True."
        ) from error
    if batches == 0:
        raise DataError(
            f"the DataLoader has no batches of its {samples} samples: give it samples, or "
            "a batch_size that they fill where drop_last is set."
        )
    drawn = loader.batch_sampler
    if type(drawn) is not BatchSampler:
        return batches, None
    if not isinstance(loader.dataset, IterableDataset):
        samples = len(drawn.sampler)  # type: ignore[arg-type]
    return batches, min(samples, batches * drawn.batch_size) if drawn.drop_last else samples


def _joined(parts: Sequence[Data]) -> Data:
    """Return data that are no sequences, one after another."""
    first, *others = parts
    if not others:
        return first
    together: dict[Any, Any] = {
        x: torch.cat([part.values[x] for part in parts]) for x in first.values
    }
    return replace(first, values=together)


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
    own = processes.share_of(len(data))
    held = round(share * own.samples)
    if not 0 < held < own.samples:
        raise DataError(f"a validation share of {share} holds out {held} of {own.samples} samples.")
    order = torch.randperm(own.samples, generator=generator)
    return order[held:], own.own(order[:held])
