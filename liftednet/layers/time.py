"""Sequences: which steps there are, and the layers that move values along time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from liftednet.errors import DataError
from liftednet.layers.expression import TIME, Expression, apply, as_expression
from liftednet.layers.layer import Arguments, Layer, Moving, Shape, columns
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

    def at_end(self, rows: Tensor) -> Tensor:
        """Return what (steps, samples, entries) are at the last step of each sequence."""
        if self.full:  # which takes no index where lengths are traced
            return rows[-1]
        last = (self.lengths - 1).view(1, -1, 1).expand(1, *rows.shape[1:])
        return rows.gather(0, last)[0]

    def longer(self, initial_steps: int) -> Timeline:
        """Return the timeline with steps that come before all."""
        return self.of(self.known + initial_steps, initial_steps) if initial_steps else self

    def of(self, lengths: Tensor, more: int = 0) -> Timeline:
        """Return the timeline of other samples, of more steps, full where this one is.

        Nothing is looked at: the lengths may be traced.
        """
        found = Timeline(self.steps + more, lengths, self.device)
        found.__dict__["full"] = self.full
        return found

    def take(self, samples: Tensor) -> Timeline:
        """Return the timeline of some samples, (some,) int64, on the CPU where they differ."""
        if self.full:
            return self.of(self.known.new_full((len(samples),), self.steps))
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
class PadFirst(Moving):
    """u = x with one more step, 0, before all."""

    initial_steps = 1

    def map(self, position: int, arguments: Arguments, weights: Any) -> LinearMap:
        """Return the step more."""
        return Moved(with_zero_first, without_first)


@dataclass(frozen=True)
class DropFirst(Moving):
    """u = x without its first step."""

    initial_steps = -1

    def map(self, position: int, arguments: Arguments, weights: Any) -> LinearMap:
        """Return the step less."""
        return Moved(without_first, with_zero_first)


def with_zero_first(x: Tensor) -> Tensor:
    """Return x after a step of zeros."""
    return torch.cat([torch.zeros_like(x[:1]), x])


def without_first(u: Tensor) -> Tensor:
    """Return u without its first step."""
    return u[1:]


@dataclass(frozen=True)
class First(Layer):
    """u = 1 at the first step of x and 0 at the others: what drives a learned initial state."""

    def shape(self, *shapes: Shape) -> Shape:
        """Return (1,)."""
        return (1,)

    def value(self, arguments: Arguments, weights: Any) -> Tensor:
        """Return 1, 0, 0, ..., (steps, samples, 1)."""
        first = torch.zeros_like(arguments[0][..., :1])
        return torch.cat([first[:1] + 1, first[1:]])


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


def pad_first(x: Expression) -> Expression:
    """Return x with one more step, 0, before all.

    Raises:
        DataError: x is no sequence.

    Example:
        >>> import torch
        >>> from liftednet import Network
        >>> from liftednet.layers.time import pad_first
        >>> longer = pad_first(Network().input(1, sequence=True))
        >>> longer.layer.value([torch.ones(2, 1, 1)], None).flatten()
        tensor([0., 1., 1.])
    """
    return apply(PadFirst(), _sequence("pad_first", x))


def drop_first(x: Expression) -> Expression:
    """Return x without its first step.

    Raises:
        DataError: x is no sequence.

    Example:
        >>> import torch
        >>> from liftednet import Network
        >>> from liftednet.layers.time import drop_first, pad_first
        >>> rest = drop_first(pad_first(Network().input(1, sequence=True)))
        >>> rest.layer.value([torch.tensor([0.0, 1.0, 2.0]).view(3, 1, 1)], None).flatten()
        tensor([1., 2.])
    """
    return apply(DropFirst(), _sequence("drop_first", x))


def first_step(x: Expression) -> Expression:
    """Return 1 at the first step of x and 0 at the others.

    Raises:
        DataError: x is no sequence.

    Example:
        >>> import torch
        >>> from liftednet import Network
        >>> from liftednet.layers.time import first_step
        >>> first = first_step(Network().input(2, sequence=True))
        >>> first.layer.value([torch.zeros(3, 1, 2)], None).flatten()
        tensor([1., 0., 0.])
    """
    return apply(First(), _sequence("first_step", x))


def _sequence(name: str, x: Expression) -> Expression:
    if not as_expression(x).sequence:
        raise DataError(f"{name} needs a sequence: declare the input with sequence=True.")
    return x
