"""Samples: the inputs of a weight fit, and the only sums over samples that there are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property, reduce
from typing import Any

import torch
from torch import Tensor

from liftednet import processes
from liftednet.errors import DataError
from liftednet.products import add_square, mirrored, squares_of_columns, threads
from liftednet.validation import require_finite, require_matrix

_ENTRIES = 1 << 17  # half a megabyte of float32, of which a solve holds some ten
_ENTRIES_ON_GPU = 1 << 24  # in few launches: a chunk costs more than what is done in a small one
_CHUNK_ENTRIES = 300_000  # of float64 at a time: what caches hold
_GRAM_ENTRIES = 1 << 20  # of float64 beside a Gram matrix larger than caches, read for each chunk
_LOOK = 256  # samples that tell where the columns of X lie
_SQUARED = 1e-15, 1e15  # how wide a column is whose squares float32 sums
_FAR = 2.0  # standard deviations of a column from 0, beyond which its mean costs digits
_MANY = 128  # columns from which Lanczos finds an eigenvalue sooner
_ROUGH_ROWS = 256  # of a chunk in float32, whose sums round by 1e-7: few enough to be certified


def row_chunks(
    samples: int, columns: int, where: torch.device, entries: int = _ENTRIES
) -> Iterator[slice]:
    """Yield slices of rows with about so many entries each, on a GPU with at least 17 million."""
    step = max(1, _at_once(where, entries) // columns)
    for first in range(0, samples, step):
        yield slice(first, min(first + step, samples))


def _at_once(where: torch.device, entries: int) -> int:
    return entries if where.type == "cpu" else max(entries, _ENTRIES_ON_GPU)


@dataclass(frozen=True, eq=False)
class Spread:
    """Where the values of every column lie, in float64.

    Attributes:
        mass: how often the rows count together.
        mean: (columns,).
        squares: (columns,) the sum of squared distances from the mean.
        low: (columns,) the least value; high: the largest.
    """

    mass: float
    mean: Tensor
    squares: Tensor
    low: Tensor
    high: Tensor

    @property
    def deviation(self) -> Tensor:
        """The standard deviation, (columns,)."""
        return (self.squares / self.mass).sqrt()

    @property
    def largest(self) -> Tensor:
        """The largest distance from the mean, (columns,)."""
        return torch.maximum(self.high - self.mean, self.mean - self.low)

    def with_more(self, other: Spread) -> Spread:
        """Return that of both sets of rows (Chan, Golub and LeVeque, 1983)."""
        mass, apart = self.mass + other.mass, other.mean - self.mean
        share = other.mass / (mass or 1.0)
        between = apart.square() * (self.mass * share)
        return Spread(
            mass,
            self.mean + apart * share,
            self.squares + other.squares + between,
            torch.minimum(self.low, other.low),
            torch.maximum(self.high, other.high),
        )


def spread(rows: Tensor, weights: Tensor | None = None) -> Spread:
    """Return where the values of every column lie, by one look at the rows of all processes.

    Args:
        rows: (samples, columns); sums of a chunk are formed in their own type, about the mean of
            some rows, and added up in float64; with weights all in float64.
        weights: (samples,) how often each row counts; None for once.
    """
    dtype = torch.promote_types(rows.dtype, torch.float32) if weights is None else torch.float64
    rows = rows.detach() if rows.is_floating_point() else rows.to(dtype)  # of a mask, h > 0
    own = _spread(rows, weights, dtype)
    (least, most), width = _SQUARED, own.high - own.low
    beyond = (width > 0) & (width < least) | (width > most)
    if dtype is not torch.float64 and bool(beyond.any()):
        own = _spread(rows, weights, torch.float64)
    if processes.size() == 1:
        return own
    mass = torch.full_like(own.mean, own.mass)
    sent = torch.stack([mass, own.mean, own.squares, own.low, own.high])
    each = (Spread(float(mass[0]), *parts) for mass, *parts in processes.gathered(sent).to(mass))
    return reduce(Spread.with_more, each)


def _spread(rows: Tensor, weights: Tensor | None, dtype: torch.dtype) -> Spread:
    """Return the same of the rows of this process, whose squares are those of a type."""
    nothing = rows.new_zeros(rows.shape[1], dtype=torch.float64)
    mass, total, squares = 0.0, nothing.clone(), nothing.clone()
    low, high = nothing + torch.inf, nothing - torch.inf
    looked = rows if weights is None else rows[(weights > 0).nonzero()[:_LOOK, 0]]
    looked = looked[:: -(-len(looked) // _LOOK) or 1]
    about = (looked.double().mean(0) if len(looked) else nothing).to(dtype)
    # half a megabyte, looked at in a cache, one after another in one place
    parts = [*row_chunks(len(rows), rows.shape[1], rows.device)]
    room = rows.new_empty(parts[0].stop if parts else 0, rows.shape[1], dtype=dtype)
    for part in parts:
        chunk, counts = _counted(rows[part], None if weights is None else weights[part])
        if not len(chunk):
            continue
        mass += len(chunk) if counts is None else float(counts.sum())
        values = torch.sub(chunk, about, out=room[: len(chunk)])
        total += values.sum(0) if counts is None else counts @ values
        squares += values.square_().sum(0) if counts is None else counts @ values.square_()
        low, high = torch.minimum(low, chunk.amin(0)), torch.maximum(high, chunk.amax(0))
    apart = total / (mass or 1.0)
    around = (squares - total * apart).clamp_(min=0.0)
    return Spread(mass, about + apart, around, low, high)


def _counted(rows: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return the rows that count, and how often."""
    if weights is None:
        return rows, None
    counts = weights > 0
    return rows[counts], weights[counts].double()


def quantile(rows: Tensor, counts: Tensor, level: float) -> Tensor:
    """Return the least value of every column with a share of the rows at or below it, (columns,).

    Args:
        rows: (samples, columns).
        counts: (samples,) how often each row counts.
        level: the share, above 0.
    """
    ordered, order = rows.sort(0)
    below = counts[order].cumsum(0)
    place = (below < level * below[-1]).sum(0, keepdim=True).clamp(max=len(rows) - 1)
    return ordered.gather(0, place)[0]


@dataclass(frozen=True, eq=False)
class Weights:
    """A layer's weights.

    Attributes:
        matrix: W, (inputs, units).
        bias: b, (units,), or None.

    Example:
        >>> import torch
        >>> from liftednet.problems import Weights
        >>> Weights(torch.eye(2), torch.ones(2)).apply(torch.tensor([[1.0, 2.0]]))
        tensor([[2., 3.]])
    """

    matrix: Tensor
    bias: Tensor | None

    def apply(self, inputs: Tensor) -> Tensor:
        """Return the pre-activations X W + b, (..., units), of X (..., inputs)."""
        if self.bias is None:
            return inputs @ self.matrix
        return torch.nn.functional.linear(inputs, self.matrix.T, self.bias)

    def stacked(self) -> Tensor:
        """Return [W; b], (inputs + 1, units), or W where there is no bias."""
        if self.bias is None:
            return self.matrix
        return torch.cat([self.matrix, self.bias.unsqueeze(0)])

    def by_rows(self) -> Weights:
        """Return the weights with W stored row by row, as files have it: products round alike."""
        return Weights(self.matrix.contiguous(), self.bias)

    def to(self, like: Tensor) -> Weights:
        """Return the weights in the type and on the device of a tensor."""
        return Weights(self.matrix.to(like), None if self.bias is None else self.bias.to(like))

    def like(self, stacked: Tensor) -> Weights:
        """Return [W; b] as weights that have a bias where these have one."""
        if self.bias is None:
            return Weights(stacked, None)
        return Weights(stacked[:-1], stacked[-1])


def outlined(value: Any) -> str:
    """Return a dataclass as it prints, with tensors by their shapes alone."""
    parts = ((one.name, getattr(value, one.name)) for one in fields(value))
    shown = (
        f"{name}={f'tensor of shape {tuple(x.shape)}' if isinstance(x, Tensor) else repr(x)}"
        for name, x in parts
    )
    return f"{type(value).__name__}({', '.join(shown)})"


@dataclass(frozen=True, eq=False, repr=False)
class Design:
    """A design matrix [X, 1]: inputs, and a column of ones where there is a bias.

    Sums over samples are taken in chunks and in float64, so that a condition number of 1e6 in X
    does not cost the solution (those of `rough` are not). They are computed once and kept as long
    as the object lives. Where several processes fit together, they are the sums over the samples
    of all, of which X has some.

    A column of mean m and deviation s costs a Gram matrix (m / s)^2 of its digits: with a bias,
    fits take the sums of `centered` in its place, where X W + b is (X - shift) W + (b + shift W).
    Without a bias the mean is part of the problem, and its condition number stays.

    Attributes:
        inputs: X, (samples, inputs).
        bias: whether a column of ones stands beside X.
        weights: (samples,) of every sample in all sums, not negative; None for 1.
        shift: (inputs,) float64, which is taken from every row of X before all sums; None for 0.
        exact: whether chunks are multiplied in float64, or in the type of X.

    Example:
        >>> import torch
        >>> from liftednet.problems import Design
        >>> Design(torch.tensor([[1.0], [2.0]])).gram  # [X, 1]'[X, 1]
        tensor([[5., 3.],
                [3., 2.]], dtype=torch.float64)
    """

    inputs: Tensor
    bias: bool = True
    weights: Tensor | None = None
    shift: Tensor | None = None
    exact: bool = True
    __repr__ = outlined

    def __post_init__(self) -> None:
        """Refuse inputs that are not a matrix of float32 or float64, and bad weights."""
        require_matrix("the inputs X", self.inputs)
        if not isinstance(self.bias, bool):
            kind = type(self.bias).__name__
            raise DataError(f"bias must be True or False, got a {kind}: give weights= by name.")
        if self.weights is not None:
            require_sample_weights(self.weights, self.samples, processes.size() > 1)

    @property
    def samples(self) -> int:
        """The number of rows."""
        return self.inputs.shape[0]

    @property
    def features(self) -> int:
        """The number of inputs, without the column of ones."""
        return self.inputs.shape[1]

    @property
    def wide(self) -> bool:
        """Whether there are fewer samples than inputs, so that sums over inputs are cheaper.

        Among several processes never: the products of samples would need the rows of others.
        """
        few = 0 < self.samples < self.features and self.weights is None
        return few and processes.size() == 1

    @cached_property
    def centered(self) -> Design:
        """The design about a shift of the columns that lie far from 0; itself if none does.

        The shift is the mean of some rows: it needs no second look at all of them, and any will
        do that lies among a column's values.
        """
        if not self.bias or self.shift is not None or self.far is None:
            return self
        return replace(self, shift=self.far)

    @property
    def has_sums(self) -> bool:
        """Whether the Gram matrix of `centered` has been formed, which fits then share."""
        return "gram" in self.__dict__.get("centered", self).__dict__

    @cached_property
    def rough(self) -> Design:
        """The design with chunks multiplied in the type of X, twice as fast in float32."""
        return replace(self, exact=False)

    @property
    def _type(self) -> torch.dtype:
        return torch.float64 if self.exact else self.inputs.dtype

    @property
    def rounding(self) -> float:
        """The relative rounding of a product of two entries."""
        return torch.finfo(self._type).eps

    @cached_property
    def far(self) -> Tensor | None:
        """(inputs,) the mean of some rows in the columns that lie far from 0; None if none does."""
        rows = self.inputs.detach()
        if self.samples > _LOOK:
            rows = rows[:: -(-self.samples // _LOOK)]
        rows = rows.double()
        count = processes.total_of(len(rows))
        total, square = processes.total(rows.sum(0), squares_of_columns(rows))
        far = (1 + 1 / _FAR**2) * total.square() > square * count  # the variance, but for m^2
        return (total / count).where(far, 0.0) if bool(far.any()) else None

    @cached_property
    def shifted(self) -> Tensor:
        """X less the shift, in the type of X."""
        if self.shift is None:
            return self.inputs
        shifted = torch.empty_like(self.inputs)
        for part, chunk in self.rows():
            shifted[part] = chunk[:, : self.features]
        return shifted

    def weighed(self, rows: Tensor, part: slice) -> Tensor:
        """Return rows of some samples, (some, ...), each times the weight of its sample."""
        if self.weights is None:
            return rows
        return rows * self.weights[part].to(rows).view(-1, *(1,) * (rows.ndim - 1))

    def _step(self, beside: int, entries: int = _CHUNK_ENTRIES) -> int:
        widest = max(self.features + 1, beside)
        most = max(1, min(self.samples, _at_once(self.inputs.device, entries) // widest))
        return most if self._type is torch.float64 else min(most, _ROUGH_ROWS)

    def chunks(self, beside: int) -> int:
        """Return how many chunks of samples sums with so many columns are taken in."""
        return -(-self.samples // self._step(beside))

    def rows(
        self, beside: int = 0, entries: int = _CHUNK_ENTRIES
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yield (rows, [X - shift, 1] of these rows, to be multiplied), a chunk at a time.

        So few rows that what stands beside them, of as many columns, has no more than `entries`.

        A chunk that is made stands in one place with the next: it is good until that is asked for.
        """
        step, features, inputs = self._step(beside, entries), self.features, self.inputs.detach()
        made = self.bias or inputs.dtype is not self._type or self.shift is not None
        step = self.samples if self.wide and not made else step  # of no copy there is no chunk
        buffer = inputs.new_empty(step if made else 0, features + self.bias, dtype=self._type)
        buffer[:, features:] = 1
        for first in range(0, self.samples, step):
            part = slice(first, min(first + step, self.samples))
            if not made:
                yield part, inputs[part]
                continue
            chunk = buffer[: part.stop - first]
            copied = chunk[:, :features].copy_(inputs[part])
            if self.shift is not None:
                copied.sub_(self.shift)
            yield part, chunk

    @cached_property
    def gram(self) -> Tensor:
        """[X - shift, 1]'[X - shift, 1] in float64."""
        return self._summed(*self._own_sums())[0]

    @property
    def about_mean(self) -> tuple[Tensor, Tensor | None]:
        """The Gram matrix of inputs about their mean, and this; of inputs and None without a bias.

        It is what W sees where b follows it.
        """
        if not self.bias:
            return self.gram, None
        mean = self.gram[-1, :-1] / self.mass
        return self.gram[:-1, :-1] - self.gram[-1, :-1].outer(mean), mean

    def _own_sums(self, targets: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the parts of these samples in the Gram matrix, and in V'[X - shift, 1].

        The former on and above the diagonal; the latter is empty without V.
        """
        size, units = self.features + self.bias, 0 if targets is None else targets.shape[1]
        square = self.inputs.new_zeros(size, size, dtype=torch.float64)
        cross = square.new_zeros(units, size)
        entries = max(_CHUNK_ENTRIES, min(square.numel(), _GRAM_ENTRIES))
        with threads(self.inputs.numel() * (size + units)):
            for part, chunk in self.rows(units, entries):
                add_square(square, self.rooted(chunk, part))
                if targets is not None:
                    cross += self._counted(targets, part).T @ chunk
        return square, cross

    def _counted(self, targets: Tensor, part: slice) -> Tensor:
        """Return targets of some samples, to be multiplied, each times the weight of its sample."""
        return self.weighed(targets.detach()[part].to(self._type), part)

    def rooted(self, rows: Tensor, part: slice) -> Tensor:
        """Return rows, each times the root of the weight of its sample."""
        if self.weights is None:
            return rows
        return rows * self.weights[part].to(rows).sqrt().unsqueeze(1)

    def _summed(self, gram: Tensor, *beside: Tensor) -> tuple[Tensor, ...]:
        """Return the whole Gram matrix of all samples, and what is summed with it.

        Among processes what is on and above the diagonal travels, in one message with the rest.
        """
        if processes.size() > 1:
            upper = tuple(torch.triu_indices(*gram.shape, device=gram.device))
            gram[upper], *others = processes.total(gram[upper], *beside)
            beside = tuple(others)
        return mirrored(gram), *beside

    @cached_property
    def mass(self) -> float:
        """The sum of the weights, the number of samples without any."""
        weights = self.weights
        own = self.samples if weights is None else float(weights.sum(dtype=torch.float64))
        return processes.total_of(own)

    @cached_property
    def total(self) -> Tensor:
        """[X - shift, 1]'1 in float64."""
        if self.bias and "gram" in self.__dict__:
            return self.gram[-1]
        total = self.inputs.new_zeros(self.features + self.bias, dtype=torch.float64)
        for part, chunk in self.rows():
            total += self.weighed(chunk, part).sum(0)
        return processes.total(total)[0]

    @cached_property
    def squared_norm(self) -> float:
        """The largest eigenvalue of the Gram matrix."""
        if not self.wide:
            return largest_eigenvalue(self.gram)
        return squared_norm_of(torch.cat([rows.clone() for _, rows in self.rows()]))

    @cached_property
    def steepest(self) -> float:
        """No less than the largest eigenvalue of the Gram matrix, by one look at that or at X."""
        known = "gram" in self.__dict__
        return float(self.gram.abs().sum(0).max() if known else self.squares.sum())

    @cached_property
    def squares(self) -> Tensor:
        """The diagonal of the Gram matrix, the square of the length of every column."""
        if "gram" in self.__dict__:
            return self.gram.diagonal()
        squares = self.inputs.new_zeros(self.features, dtype=torch.float64)
        for part, chunk in replace(self, bias=False).rows():  # no ones: X as it stands
            squares += squares_of_columns(self.rooted(chunk, part))
        squares = processes.total(squares)[0]
        return torch.cat([squares, squares.new_full((int(self.bias),), self.mass)])

    def cross(self, targets: Tensor) -> Tensor:
        """Return [X - shift, 1]'V in float64."""
        units, columns = targets.shape[1], self.features + self.bias
        found = self.inputs.new_zeros(units, columns, dtype=torch.float64)
        # With few samples X as it stands, without ones; else as with the Gram matrix, to the bit.
        design = replace(self, bias=False) if self.wide else self
        with threads(self.inputs.numel() * units):
            for part, chunk in design.rows(units):
                rows = self._counted(targets, part).T
                found[:, : chunk.shape[1]] += rows @ chunk
                if chunk.shape[1] < columns:
                    found[:, -1] += rows.sum(1)
        return processes.total(found)[0].T

    def cross_with_gram(self, targets: Tensor) -> Tensor:
        """Return the same, where the Gram matrix will be asked for, too: both in one pass."""
        if "gram" in self.__dict__:
            return self.cross(targets)
        gram, cross = self._summed(*self._own_sums(targets))
        self.__dict__["gram"] = gram
        return cross.T

    def joined(self, value: Weights) -> Tensor:
        """Return [W; b + shift W] in float64: what stands beside [X - shift, 1]."""
        stacked = value.stacked().double()
        if self.shift is not None:
            stacked[-1] += self.shift @ stacked[:-1]
        return stacked

    def split(self, stacked: Tensor) -> Weights:
        """Return what stands beside [X - shift, 1] as W and b in the type of X.

        b is that of W as it is rounded, whose error times a large shift it takes up.
        """
        value = stacked.to(self.inputs.dtype).contiguous()  # summed as `joined` does
        if not self.bias:
            return Weights(value, None)
        if self.shift is None:
            return Weights(value[:-1], value[-1])
        bias = stacked[-1].double() - self.shift @ value[:-1].double()
        return Weights(value[:-1], bias.to(value))


def require_sample_weights(weights: Tensor, samples: int, part: bool = False) -> None:
    """Raise `DataError` where weights of samples are negative, not finite, or too few.

    Or where all are 0, unless they are those of a part of the samples.
    """
    if tuple(weights.shape) != (samples,):
        raise DataError(
            f"sample weights must have shape ({samples},), one for each sample, got "
            f"{tuple(weights.shape)}."
        )
    require_finite("the sample weights", weights)
    if bool((weights < 0).any()) or not (part or bool(weights.any())):
        raise DataError("sample weights must not be negative, nor all zero.")


def squared_norm_of(matrix: Tensor) -> float:
    """Return the largest eigenvalue of M'M in float64, from the smaller of M'M and M M'."""
    exact = matrix.double()
    gram = exact.T @ exact if exact.shape[0] >= exact.shape[1] else exact @ exact.T
    return largest_eigenvalue(gram)


def largest_eigenvalue(gram: Tensor) -> float:
    """Return the largest eigenvalue of a positive semidefinite G, float64.

    That of a large one by Lanczos' steps, from above by a millionth.
    """
    if len(gram) >= _MANY and gram.device.type == "cpu" and 0 < float(gram.trace()) < torch.inf:
        from scipy.sparse.linalg import ArpackNoConvergence, eigsh

        start = torch.randn(len(gram), generator=torch.Generator().manual_seed(0)).double()
        with suppress(ArpackNoConvergence):
            found = eigsh(gram.numpy(), 1, v0=start.numpy(), tol=1e-7, return_eigenvectors=False)
            return float(found[0]) * (1 + 1e-6)
    return max(float(torch.linalg.eigvalsh(gram)[-1]), 0.0)
