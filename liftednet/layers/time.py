"""Sequences: which steps there are, and the layers that move values along time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from liftednet.errors import DataError
from liftednet.layers.expression import TIME, Expression, apply, as_expression
from liftednet.layers.layer import Arguments, Moving, Shape, columns
from liftednet.maps import LinearMap, Moved


def steps_before(steps: int, lengths: Tensor) -> Tensor:
    """Return (steps, samples) booleans, true before (samples,) lengths."""
    return torch.arange(steps, device=lengths.device)[:, None] < lengths


@dataclass(frozen=True, eq=False)
class Timeline:
    """Which steps the sequences have.

    Attributes:
        steps: of the longest sequence.
        known: (samples,) int64 steps of each sequence, on the CPU, so that nobody waits for them.
        device: where the sequences are.
    """

    steps: int
    known: Tensor
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @cached_property
    def lengths(self) -> Tensor:
        """(samples,) int64 steps of each sequence."""
        return self.known.to(self.device)

    @cached_property
    def valid(self) -> Tensor:
        """(steps, samples) booleans, true where a sequence has the step."""
        return steps_before(self.steps, self.lengths)

    @cached_property
    def last(self) -> Tensor:
        """(steps, samples) booleans, true at the last step of each sequence."""
        return self.valid & ~steps_before(self.steps, self.lengths - 1)

    @cached_property
    def full(self) -> bool:
        """Whether every sequence has every step."""
        return bool((self.known == self.steps).all())

    @cached_property
    def _mirror(self) -> Tensor:
        step = torch.arange(self.steps, device=self.device)[:, None]
        return torch.where(self.valid, self.lengths - 1 - step, step)

    def reversed(self, rows: Tensor) -> Tensor:
        """Return (steps, samples, ...) with each sequence in reverse."""
        index = self._mirror.reshape(*self._mirror.shape, *(1,) * (rows.ndim - 2))
        return rows.gather(0, index.expand_as(rows))

    def of(self, lengths: Tensor) -> Timeline:
        """Return the timeline of other samples, full where this one is; nothing is looked at."""
        found = Timeline(self.steps, lengths, self.device)
        found.__dict__["full"] = self.full
        return found

    def take(self, samples: Tensor) -> Timeline:
        """Return the timeline of some samples, (some,) int64 on the CPU."""
        return replace(self, known=self.known[samples])


@dataclass(frozen=True)
class Delay(Moving):
    """u_t = x_(t-1), and 0 at the first step."""

    def map(self, position: int, arguments: Arguments, weights: Any) -> LinearMap:
        """Return the delay."""
        return Moved(delayed, advanced)


def delayed(x: Tensor) -> Tensor:
    """Return x one step later, 0 at the first."""
    return torch.cat([torch.zeros_like(x[:1]), x[:-1]])


def advanced(u: Tensor) -> Tensor:
    """Return u one step earlier, 0 at the last."""
    return torch.cat([u[1:], torch.zeros_like(u[:1])])


@dataclass(frozen=True)
class Reverse(Moving):
    """u = x with each sequence in reverse; the second argument is the timeline."""

    def map(self, position: int, arguments: Arguments, weights: Any) -> LinearMap:
        """Return the reversal, which is its own adjoint."""
        reversed = arguments[1].reversed
        return Moved(reversed, reversed)


@dataclass(frozen=True)
class Steps(Moving):
    """u_t = step t of x, whose samples hold all steps in one row: a sequence of it.

    Attributes:
        steps: of each sample.
    """

    sequence = True
    steps: int

    def shape(self, *shapes: Shape) -> Shape:
        """Return the shape of a step, (units,)."""
        return (columns(shapes[0]) // self.steps,)

    def map(self, position: int, arguments: Arguments, weights: Any) -> LinearMap:
        """Return the steps apart."""
        return Moved(lambda v: in_steps(v, self.steps), in_rows, whole_rows=False)


@dataclass(frozen=True)
class AllSteps(Moving):
    """u = all steps of x in one row: what is no sequence any more.

    Attributes:
        steps: of each sample.
    """

    sequence = False
    steps: int

    def shape(self, *shapes: Shape) -> Shape:
        """Return (steps, units)."""
        return (self.steps, columns(shapes[0]))

    def map(self, position: int, arguments: Arguments, weights: Any) -> LinearMap:
        """Return the steps in one row."""
        return Moved(in_rows, lambda u: in_steps(u, self.steps), whole_rows=False)


def in_steps(rows: Tensor, steps: int) -> Tensor:
    """Return (steps, samples, units) of (samples, steps * units)."""
    return rows.reshape(len(rows), steps, rows.shape[1] // steps).transpose(0, 1)


def in_rows(sequence: Tensor) -> Tensor:
    """Return (samples, steps * units) of (steps, samples, units)."""
    return sequence.transpose(0, 1).flatten(1)


def delay(x: Expression) -> Expression:
    """Return x one step later, 0 at the first step.

    Raises:
        DataError: x is no sequence.

    Example:
        >>> import torch
        >>> from liftednet import Network
        >>> from liftednet.layers import delay
        >>> later = delay(Network().input(1, sequence=True))
        >>> later.layer.value([torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1)], None).flatten()
        tensor([0., 1., 2.])
    """
    return apply(Delay(), _sequence("delay", x))


def reverse(x: Expression) -> Expression:
    """Return x with each sequence in reverse.

    Raises:
        DataError: x is no sequence.

    Example:
        >>> from liftednet import Network
        >>> from liftednet.layers import concatenate, reverse
        >>> x = Network().input(2, sequence=True)
        >>> both = concatenate(x, reverse(x))  # each sequence beside its mirror image
        >>> both.shape, both.sequence
        ((4,), True)
    """
    return apply(Reverse(), _sequence("reverse", x), TIME)


def _sequence(name: str, x: Expression) -> Expression:
    if not as_expression(x).sequence:
        raise DataError(f"{name} needs a sequence: declare the input with sequence=True.")
    return x
