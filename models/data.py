"""What is given to a model: arrays in, checked values of a network's inputs and labels out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

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
_ENTRIES = 3_000_000  # of all values, at a time
Arrays = ArrayLike | Sequence[ArrayLike] | Mapping[str, ArrayLike]


@dataclass(frozen=True, eq=False)
class Data:
    """Checked and encoded data of a network.

    Attributes:
        values: of inputs and labels: (samples, units), or (steps, samples, units) of sequences,
            zero beyond their lengths; the timeline, where there are sequences.
        last_only: the labels of sequences that have one answer, at the last step.
        among: how many samples of all processes these are some of; None where nobody has counted.
    """

    values: Values
    last_only: frozenset[Label] = frozenset()
    among: int | None = None

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
    def raw(self) -> Data:
        """The data before they are standardized, where that is done for some samples at a time."""
        return self

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
        """Return some of the samples, (some,) int64 on the CPU."""
        steps = TIME in self.values
        taken: Values = {}
        for variable, value in self.values.items():
            if isinstance(value, Timeline):
                taken[variable] = value.take(rows)
            else:
                there = rows.to(value.device)
                axis = int(steps and value.ndim == 3)
                taken[variable] = value.index_select(axis, there)
        return Data(taken, self.last_only)

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
        for part in row_chunks(len(numbers), entries, _ENTRIES):
            yield self.take(numbers[part])

    def aligned(self) -> Data:
        """Return the data as torch lays tensors: a product rounds by where its factors begin."""
        laid = {
            x: v.clone() if isinstance(v, Tensor) and v.data_ptr() % _CACHE_LINE else v
            for x, v in self.values.items()
        }
        return Data(laid, self.last_only)

    def to(self, device: str) -> Data:
        """Return the data on a device."""
        moved: Values = {}
        for variable, value in self.values.items():
            if isinstance(value, Timeline):
                moved[variable] = Timeline(value.steps, value.known, torch.device(device))
            else:
                moved[variable] = value.to(device)
        return Data(moved, self.last_only)

    @property
    def like(self) -> Tensor:
        """A tensor whose type and device all have."""
        found: Tensor = next(x for x in self.values.values() if isinstance(x, Tensor))
        return found


def row_parts(values: Values) -> Iterator[slice]:
    """Yield slices of rows, so few of all values at a time that what is made of them is small."""
    rows = len(next(iter(values.values())))
    widest = sum(v.shape[1:].numel() for v in values.values())
    return row_chunks(rows, max(widest, 1), _ENTRIES)


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
        X: (samples, ...) for each input: one array, or as many in order, or by the inputs' names.
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
    dtype = dtype or _float_type(first)
    for variable, tensor in given.items():
        values[variable] = _checked_input(variable, tensor, first, part)
    timeline = _timeline(values, lengths)
    if timeline is not None:
        values = {x: _zero_beyond(x, v, timeline) for x, v in values.items()}
        values[TIME] = timeline
    elif network.steps is not None:  # of samples that hold their steps in one row
        timeline = Timeline(network.steps, torch.full((len(Data(values)),), network.steps))
        values[TIME] = timeline
    for variable in given:
        if not variable.sequence or timeline is None:
            _require_finite_input(variable, values[variable])
        values[variable] = values[variable].to(device=device, dtype=dtype)
    values.update(network.ends(values))
    data = Data(values)
    if sample_weight is not None:
        weights = as_tensor("sample_weight", sample_weight).to(device=device, dtype=dtype)
        require_sample_weights(weights, len(data), part)
        values[SAMPLE_WEIGHTS] = weights
    if y is None:
        return data.to(device)
    labels = [term.label for term in network.terms]
    last_only = set()
    for term, array in zip(network.terms, _by_variable("y", labels, y).values(), strict=True):
        target, last = _encoded(term, as_tensor("y", array), len(data), timeline, part)
        values[term.label] = target.to(device=device, dtype=dtype)
        if last:
            last_only.add(term.label)
    return Data(values, frozenset(last_only)).to(device)


def _by_variable(name: str, variables: Sequence[Any], given: Any) -> dict[Any, Any]:
    if isinstance(given, Mapping):
        missing = [x.name for x in variables if x.name not in given]
        if missing or len(given) != len(variables):
            names = ", ".join(repr(x.name) for x in variables)
            raise DataError(f"{name} must have the names {names}, got {sorted(map(str, given))}.")
        return {x: given[x.name] for x in variables}
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


def _float_type(tensor: Tensor) -> torch.dtype:
    require_float("X", tensor)
    return tensor.dtype


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


def _zero_beyond(variable: Input, value: Tensor, timeline: Timeline) -> Tensor:
    if not variable.sequence:
        return value
    kept = value if timeline.full else value.where(timeline.valid.unsqueeze(-1), 0.0)
    require_finite("X, as (steps, samples, features),", kept)
    return kept


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
    encode = encode_part if part else _encode_all
    if not term.argument.sequence:
        if y.ndim > 2 and y[0].numel() == outputs:  # pictures, say
            y = y.flatten(1)
        if y.is_floating_point():
            require_finite("y", y)
        return encode(term.loss, y, outputs), False
    assert timeline is not None  # the argument is a sequence
    per_step = y.ndim == 3 or (y.ndim == 2 and not y.is_floating_point())
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
    y = y.to(timeline.device)
    counted = timeline.valid if per_step else timeline.last
    rows = y.transpose(0, 1)[counted] if per_step else y[counted.nonzero()[:, 1]]
    if rows.is_floating_point():
        require_finite("y", rows)
    encoded = encode(term.loss, rows, outputs)
    target = encoded.new_zeros(timeline.steps, samples, outputs)
    target[counted] = encoded
    return target, not per_step


def _encode_all(loss: Loss, y: Tensor, outputs: int) -> Tensor:
    return loss.encode(y, outputs)


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
