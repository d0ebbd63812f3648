"""The inputs of a weight fit, with the sums over samples that solvers and judges share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from liftednet import deferred
from liftednet.deferred import reported
from liftednet.validation import require_matrix

_CHUNK_ENTRIES = 1_000_000  # of float64 at a time: 8 MB, which caches hold
_CHUNK_ENTRIES_ON_GPU = 1 << 27  # 1 GB, in few launches
_SQUARE_BLOCK = 96  # rows of a Gram matrix at a time: what a product of matrices is fast at
_ROUNDS = 5  # of 32nd powers


@dataclass(frozen=True, eq=False)
class Weights:
    """A layer's weights.

    Attributes:
        matrix: W, (inputs, units).
        bias: b, (units,), or None.
    """

    matrix: Tensor
    bias: Tensor | None

    def apply(self, inputs: Tensor) -> Tensor:
        """Return the pre-activations X W + b, (samples, units)."""
        if self.bias is None:
            return inputs @ self.matrix
        return torch.addmm(self.bias, inputs, self.matrix)

    def stacked(self) -> Tensor:
        """Return [W; b], (inputs + 1, units), or W where there is no bias."""
        if self.bias is None:
            return self.matrix
        return torch.cat([self.matrix, self.bias.unsqueeze(0)])

    def to(self, like: Tensor) -> Weights:
        """Return the weights in the type and on the device of a tensor."""
        return Weights(self.matrix.to(like), None if self.bias is None else self.bias.to(like))


@dataclass(frozen=True, eq=False)
class Design:
    """A design matrix [X, 1]: inputs, and a column of ones where there is a bias.

    Sums over samples are taken in chunks and in float64, so that a condition number of 1e6 in X
    does not cost the solution. They are computed once and kept as long as the object lives.

    Attributes:
        inputs: X, (samples, inputs).
        bias: whether a column of ones stands beside X.
    """

    inputs: Tensor
    bias: bool = True

    def __post_init__(self) -> None:
        """Refuse inputs that are not a matrix of float32 or float64."""
        require_matrix("the inputs X", self.inputs)

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
        """Whether there are fewer samples than inputs, so that sums over inputs are cheaper."""
        return self.samples < self.features

    def rows(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield (rows, [X, 1] of these rows in float64), a chunk at a time."""
        for part, chunk in self._chunks():
            yield part, _with_ones(chunk) if self.bias else chunk

    def _chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield (rows, X of these rows in float64): without the ones, which cost a copy of X.

        A chunk of float32 stands in one place with the next: it is good until that is asked for.
        """
        entries = _CHUNK_ENTRIES_ON_GPU if self.inputs.is_cuda else _CHUNK_ENTRIES
        step = min(self.samples, max(1, entries // (self.features + 1)))
        single = self.inputs.dtype is not torch.float64
        buffer = self.inputs.new_empty(step if single else 0, self.features, dtype=torch.float64)
        for first in range(0, self.samples, step):
            part = slice(first, min(first + step, self.samples))
            rows = self.inputs[part]
            yield part, buffer[: len(rows)].copy_(rows) if single else rows

    @cached_property
    def gram(self) -> Tensor:
        """[X, 1]'[X, 1] in float64."""
        size = self.features + self.bias
        gram = self.inputs.new_zeros(size, size, dtype=torch.float64)
        square = gram[: self.features, : self.features]
        for _, chunk in self._chunks():
            _add_upper_square(square, chunk)
            if self.bias:
                gram[-1, :-1] += chunk.sum(0)
        _mirror(square)
        if self.bias:
            gram[:, -1], gram[-1, -1] = gram[-1], self.samples
        return gram

    @cached_property
    def total(self) -> Tensor:
        """[X, 1]'1 in float64."""
        if self.bias and not self.wide:
            return self.gram[-1]
        total = sum_of(chunk.sum(0) for _, chunk in self._chunks())
        return torch.cat([total, total.new_full((1,), self.samples)]) if self.bias else total

    @cached_property
    def squared_norm(self) -> float:
        """The largest eigenvalue of the Gram matrix."""
        if not self.wide:
            return reported(largest_eigenvalue(self.gram))
        return reported(squared_norm_on(_with_ones(self.inputs) if self.bias else self.inputs))

    def cross(self, targets: Tensor) -> Tensor:
        """Return [X, 1]'V in float64."""
        cross = sum_of(targets[part].double().T @ chunk for part, chunk in self._chunks()).T
        if not self.bias:
            return cross
        return torch.cat([cross, targets.sum(0, dtype=torch.float64).unsqueeze(0)])

    def split(self, stacked: Tensor) -> Weights:
        """Return [W; b] as weights in the type of X."""
        value = stacked.to(self.inputs.dtype)
        return Weights(value[:-1], value[-1]) if self.bias else Weights(value, None)


def _add_upper_square(square: Tensor, chunk: Tensor) -> None:
    """Add X'X on and above the diagonal: half of the products, for many inputs."""
    block = _square_block(square)
    for first in range(0, len(square), block):
        part = slice(first, first + block)
        square[part, first:].addmm_(chunk[:, part].T, chunk[:, first:])


def _square_block(square: Tensor) -> int:
    return len(square) if square.is_cuda else _SQUARE_BLOCK  # a GPU is fast at large products


def _mirror(square: Tensor) -> None:
    """Copy what is above the diagonal to below it."""
    block = _square_block(square)
    for first in range(0, len(square), block):
        part, after = slice(first, first + block), first + block
        square[after:, part] = square[part, after:].T


def _with_ones(chunk: Tensor) -> Tensor:
    return torch.cat([chunk, chunk.new_ones(len(chunk), 1)], dim=1)


def sum_of(parts: Iterator[Tensor]) -> Tensor:
    """Return the sum of at least one tensor, accumulated in place of the first."""
    total = next(parts)
    for part in parts:
        total += part
    return total


def squared_norm_on(matrix: Tensor) -> Tensor:
    """Return the largest eigenvalue of M'M in float64, (), from the smaller of M'M and M M'."""
    exact = matrix.double()
    gram = exact.T @ exact if exact.shape[0] >= exact.shape[1] else exact @ exact.T
    return largest_eigenvalue(gram)


def largest_eigenvalue(gram: Tensor) -> Tensor:
    """Return the largest eigenvalue of a positive semidefinite G, (), without waiting for a GPU."""
    if deferred.stays_on_device(gram):
        return dominant_eigenvalue(gram)
    return torch.linalg.eigvalsh(gram)[-1].clamp(min=0)


def dominant_eigenvalue(gram: Tensor) -> Tensor:
    """Return the largest eigenvalue of a positive semidefinite G, (), by repeated squaring.

    P = G^(2^25) over its trace is the projector on the dominant eigenvectors, and the eigenvalue
    is tr(G P), to about 1e-7 of it whatever the gap to the next one. Five squarings at a time, for
    few launches: no eigenvalue of trace 1 vanishes in G^32 that is the largest.
    """
    tiny = torch.finfo(gram.dtype).tiny
    power = gram / gram.diagonal().sum().clamp(min=tiny)
    for _ in range(_ROUNDS):
        power = torch.linalg.matrix_power(power, 32)
        power = power / power.diagonal().sum().clamp(min=tiny)
    return (gram * power).sum()
