"""A network of given weights for one sample: affine maps and activations in turn.

Whatever is affine between two activations is one affine map here: layers, convolutions, means,
residual sums, normalization by given statistics, standardization. What stands on them is either a
curve for each unit or the largest entry of each window. All is read from the steps that a walk
through the network has recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from liftednet.errors import DataError, DeclarationError
from liftednet.export import ExportedGraph
from liftednet.lazy import sparse

from ..bounds.curves import Array, Curve
from ..bounds.intervals import EPS, Bent, Largest, Linear, Step, Units
from ..bounds.reading import Subject, apart, subject_of, walked

Places = np.ndarray[Any, np.dtype[np.intp]]

_ENTRIES = 20_000_000  # of a layer's matrix at most
_SEEN = 32  # points at which a reading is compared with the network
_FAR = 1e-9  # that both may differ there, relative to the largest output
_REFUSED = (
    "{} is neither affine in the inputs nor an activation whose curvature is known, and cannot "
    "stand in an optimization problem: products of two values, softmax, indices and masks that "
    "depend on the inputs. A last softmax may be left out: its logits have the same order."
)


@dataclass(frozen=True, eq=False)
class Combination:
    """u = c + sum over sources of v A.

    Attributes:
        parts: A, (units below, units), by the number of its source: 0 for the inputs, k for what
            the k-th block gives.
        offset: c, (units,).
        off: what u may be off by rounding in the box that it was read in, (units,); 0 without
            one, where the sizes of terms count alone.
        size: the sum of the sizes of all terms there at most, infinite without one.
    """

    parts: Mapping[int, Array]
    offset: Array
    off: Array
    size: Array

    def of(self, values: Sequence[Any]) -> Any:
        """Return u of the values of all sources, (..., units); of CVXPY's expressions, too."""
        # Of as many axes as the values: CVXPY's compiled backend has no other sums.
        found: Any = self.offset
        if not isinstance(values[0], np.ndarray):
            found = np.expand_dims(found, tuple(range(values[0].ndim - 1)))
        for source, matrix in self.parts.items():
            found = values[source] @ matrix + found
        return found


@dataclass(frozen=True, eq=False)
class Block:
    """v = phi(u), unit by unit, or v = the largest entry of u over each window.

    Attributes:
        argument: u.
        numbers: of u among the units of the walk, (pre-activations,).
        curves: some; none where there are windows.
        which: the number of each unit's curve, (units,).
        windows: the entries of u that each unit is the largest of, (units, entries), some twice.
    """

    argument: Combination
    numbers: Places
    curves: Sequence[Curve] = ()
    which: Places = field(default_factory=lambda: np.zeros(0, dtype=int))
    windows: Places = field(default_factory=lambda: np.zeros((0, 0), dtype=int))

    def __len__(self) -> int:
        """Return how many units there are."""
        return len(self.windows) or len(self.which)

    def forward(self, u: Array) -> Array:
        """Return v, (..., units), of u (..., pre-activations)."""
        return u[..., self.windows].max(-1) if len(self.windows) else self.mapped(u)

    def mapped(self, *given: Array, function: str = "forward") -> Array:
        """Return phi(u), or phi'(u) by function="slope", or another function of curves."""
        return self.by_curve(lambda curve, *own: curve.of(*own, function=function), *given)

    def by_curve(self, function: Callable[..., Any], *given: Array) -> Any:
        """Return what a function has of each curve and its units, (..., units)."""
        if len(self.curves) == 1:
            return function(self.curves[0], *given)
        each = [self.which == number for number in range(len(self.curves))]
        parts = [
            function(curve, *(x[..., own] for x in given))
            for curve, own in zip(self.curves, each, strict=True)
        ]
        found = np.empty((*parts[0].shape[:-1], len(self.which)), parts[0].dtype)
        for own, part in zip(each, parts, strict=True):
            found[..., own] = part
        return found


@dataclass(frozen=True, eq=False)
class Composition:
    """x -> y for one sample, in float64 with the weights that the network has.

    Attributes:
        inputs: units of x, all inputs side by side.
        blocks: activations, each of inputs and blocks before it.
        output: y.
    """

    inputs: int
    blocks: Sequence[Block]
    output: Combination

    def passed(self, x: Array) -> tuple[list[Array], list[Array]]:
        """Return x and what every block gives, and their pre-activations, each (..., units)."""
        values, arguments = [np.asarray(x, dtype=np.float64)], list[Array]()
        for block in self.blocks:
            arguments.append(block.argument.of(values))
            values.append(block.forward(arguments[-1]))
        return values, arguments

    def forward(self, x: Array) -> Array:
        """Return y, (..., outputs), of x (..., inputs)."""
        return self.output.of(self.passed(x)[0])

    def gradient(self, x: Array, direction: Array) -> Array:
        """Return the gradient of <direction, y> in x, (samples, inputs); of kinks that of one side.

        There are no windows in the network (`halving.kinked`).

        Args:
            x: (samples, inputs).
            direction: (samples, outputs).
        """
        return self.both(x)[1](direction)

    def tangent(self, x: Array) -> tuple[Array, Array]:
        """Return J and c with y = J x + c near x, (inputs,); of kinks on one side."""
        outputs = len(self.output.offset)
        y, back = self.both(np.repeat(x[None], outputs, 0))
        slopes = back(np.eye(outputs))
        return slopes, y[0] - slopes @ x

    def both(self, x: Array) -> tuple[Array, Callable[[Array], Array]]:
        """Return y, (samples, outputs), and what returns gradients from directions."""
        values, arguments = self.passed(x)

        def gradient(direction: Array) -> Array:
            pushes: list[Any] = [0.0] * len(values)

            def back(combination: Combination, push: Array) -> None:
                for source, matrix in combination.parts.items():
                    pushes[source] = pushes[source] + push @ matrix.T

            back(self.output, direction)
            for number in range(len(self.blocks), 0, -1):
                block, u = self.blocks[number - 1], arguments[number - 1]
                back(block.argument, block.mapped(u, function="slope") * pushes[number])
            return np.zeros_like(values[0]) + pushes[0]

        y: Array = self.output.of(values)
        return y, gradient


def composition_of(model: Any, inputs: int, example: Any = None) -> Composition:
    """Return a fitted model, an estimator or a torch network, taken apart.

    Of a model that is fitted the scores are meant: the outputs of a regression, logits of a
    classifier. Of a torch network it is what the network returns.

    Args:
        model: that is meant.
        inputs: units of x.
        example: some inputs of a torch network whose samples have axes, such as X[:2].

    Raises:
        DataError: it is neither, cannot be read, or has another number of inputs.
        DeclarationError: a part is neither affine nor an activation whose curvature is known.
        NotFittedError: the model has no weights yet.
    """
    subject = subject_of(model, example, logits=True)
    widths = [x[0].numel() for x in subject.example]
    if sum(widths) != inputs:
        raise DataError(f"the network has {sum(widths)} inputs, and x has {inputs}.")
    graphs = (x for x in subject.network.modules() if isinstance(x, ExportedGraph))
    if any(x.structure.network.limited for x in graphs):
        raise DeclarationError(
            "the outputs of this network are projected onto the limits of within=: fit it without, "
            "and state the limits as constraints on its output in the problem."
        )
    network = apart(subject.network).double().eval()
    floating = [x.double() if x.is_floating_point() else x for x in subject.example]
    subject = replace(subject, example=tuple(floating))
    found = walked(network, subject, None, 2, 0, values_alone=True)
    if found.outputs is None:
        raise DeclarationError(f"the network cannot stand in a problem: {found.stop}.")
    composition = read(found.units, found.outputs)
    _require_agreement(composition, network, subject)
    return composition


@torch.inference_mode(False)
@torch.no_grad()
def _require_agreement(composition: Composition, network: Any, subject: Subject) -> None:
    """Raise an error where a network computes other values than what was read of it, at draws."""
    draw, points = torch.Generator().manual_seed(0), []
    for x in subject.example:
        first = x[:1].double()
        shape = (_SEEN, *x.shape[1:])
        normal = torch.randn(shape, generator=draw, dtype=torch.float64)
        points.append(first + (float(first.abs().max()) or 1.0) * normal)
    outputs = network(*points)
    parts = outputs if isinstance(outputs, tuple | list) else [outputs]
    wanted = torch.cat([x.reshape(_SEEN, -1) for x in parts], 1).numpy()
    flat = torch.cat([x.flatten(1) for x in points], 1).numpy()
    off = np.abs(composition.forward(flat) - wanted).max()
    if not off <= _FAR * max(1.0, np.abs(wanted).max()):
        raise DataError(
            f"what was read of {type(network).__name__} is off by {off:.3g} from what it computes: "
            "it computes other things at a second call, or in float32."
        )


def read(units: Units, wanted: Tensor) -> Composition:
    """Return what some units (n,) are of the inputs, from the steps of their walk.

    Raises:
        DeclarationError: one of them cannot be stated.
    """
    reader = _Reader(units)
    lost = wanted[~reader.known[wanted]]
    if len(lost):
        raise DeclarationError(_REFUSED.format(reader.why(lost)))
    return reader.read(wanted)


def readable(units: Units) -> Tensor:
    """Say which units can be stated, (units,)."""
    return _Reader(units).known


class _Reader:
    """The steps of a walk, block by block."""

    def __init__(self, units: Units) -> None:
        self.units = units
        self.known = units.block[: units.size] <= units.inputs_block  # inputs and constants
        self.known[0] = False  # of another sample
        self.steps = {k: step for k, step in units.steps.items() if not isinstance(step, str)}
        for block, step in self.steps.items():
            first, below = units.first[block], self.known[step.below]
            alike = below.all(1) if below.ndim == 2 else below
            wide = _wide(step)
            self.known[first : first + wide * len(alike)] = alike.repeat_interleave(wide)

    def why(self, lost: Tensor) -> str:
        """Return what cannot be stated of some units."""
        units = self.units
        reasons = {units.reasons[n] for n in units.reason[lost].tolist() if n}
        named = {step for step in units.steps.values() if isinstance(step, str)}
        return ", ".join(sorted(reasons or named))

    def read(self, wanted: Tensor) -> Composition:
        units = self.units
        needed = torch.zeros(units.size, dtype=torch.bool)
        needed[wanted] = True
        for block, step in reversed(self.steps.items()):
            rows = self.rows(block, needed)
            needed[step.below[rows // _wide(step)]] = True
        self.place = np.zeros(units.size, dtype=int)
        self.made = {units.inputs_block: self.source(0, units.first[units.inputs_block]
                                                     + torch.arange(units.inputs))}  # fmt: skip
        self.blocks: list[Block] = []
        for block, step in self.steps.items():
            rows = self.rows(block, needed)
            if len(rows):
                self.made[block] = self.step(step, units.first[block] + rows, rows)
        return Composition(units.inputs, self.blocks, self.gathered(wanted.numpy()))

    def rows(self, block: int, needed: Tensor) -> Tensor:
        """Return which units of a block are needed, numbered from its first."""
        step, first = self.steps[block], self.units.first[block]
        return needed[first : first + len(step.below) * _wide(step)].nonzero().flatten()

    def source(self, number: int, own: Tensor) -> Combination:
        """Return units as they are."""
        self.place[own.numpy()] = np.arange(len(own))
        largest = torch.maximum(*(end.abs() for end in self.units.span(own))).numpy()
        none = np.zeros(len(own))
        return Combination({number: np.eye(len(own))}, none, none, largest)

    def step(self, step: Linear | Bent | Largest, own: Tensor, rows: Tensor) -> Combination:
        if isinstance(step, Linear):
            self.place[own.numpy()] = np.arange(len(own))
            return self.affine(step, rows)
        below = step.below[rows]
        distinct, where = below.unique(return_inverse=True)
        if isinstance(step, Bent):
            argument = self.gathered(below.numpy())
            block = Block(argument, below.numpy(), step.curves, step.which[rows].numpy())
        else:
            numbers = distinct.numpy()
            block = Block(self.gathered(numbers), numbers, windows=where.numpy())
        self.blocks.append(block)
        return self.source(len(self.blocks), own)

    def affine(self, step: Linear, rows: Tensor) -> Combination:
        """Return u = sum_k c_k x_k + b of some rows of a step."""
        wide = step.below.shape[1]
        if step.matrix and len(step.below) == 1:
            distinct, through = step.below[0], step.factors[:, rows].numpy()
            shift = step.shift[0, rows]
        else:
            if step.matrix:
                row, column = rows // step.factors.shape[1], rows % step.factors.shape[1]
                below, factors = step.below[row], step.factors.T[column]
                shift = step.shift.flatten()[rows]
            else:
                below, factors, shift = step.below[rows], step.factors[rows], step.shift[rows]
            distinct, where = below.unique(return_inverse=True)
            entries: Any = (
                factors.flatten().numpy(),
                (where.flatten().numpy(), np.arange(len(rows)).repeat(wide)),
            )
            shape = (len(distinct), len(rows))
            through = sparse.csr_array(sparse.coo_array(entries, shape=shape))
            through.eliminate_zeros()  # times what may have any size
        inside, sizes = self.gathered(distinct.numpy()), abs(through)
        if not np.isfinite(inside.size).all():  # zero times what has no bound is zero
            sizes = sparse.csr_array(sizes)
        _require_small(sum(map(len, inside.parts.values())), len(rows))
        parts = {k: (through.T @ part.T).T for k, part in inside.parts.items()}
        size = inside.size @ sizes + shift.abs().numpy()
        off = inside.off @ sizes + 2 * (wide + 4) * EPS * size
        off += 0.0 if step.off is None else step.off[rows].numpy()
        off = np.where(np.isfinite(off), off, 0.0)
        return Combination(parts, inside.offset @ through + shift.numpy(), off, size)

    def gathered(self, numbers: Places) -> Combination:
        """Return units side by side."""
        blocks = self.units.block[torch.from_numpy(numbers)].numpy()
        distinct = np.unique(blocks).tolist()
        if len(distinct) == 1 and (one := self.made.get(distinct[0])) is not None:
            places = self.place[numbers]
            if len(places) == len(one.offset) and (places == np.arange(len(places))).all():
                return one
        parts: dict[int, Array] = {}
        offset, off, size = np.zeros((3, len(numbers)))
        for block in distinct:
            where = np.flatnonzero(blocks == block)
            if block not in self.made:
                offset[where] = self.units.values(torch.from_numpy(numbers[where])).numpy()
                size[where] = np.abs(offset[where])
                continue
            one, places = self.made[block], self.place[numbers[where]]
            for target, given in ((offset, one.offset), (off, one.off), (size, one.size)):
                target[where] = given[places]
            for source, part in one.parts.items():
                if source not in parts:
                    _require_small(len(part), len(numbers))
                    parts[source] = np.zeros((len(part), len(numbers)))
                parts[source][:, where] = part[:, places]
        return Combination(parts, offset, off, size)


def _wide(step: Step) -> int:
    """Return how many units each row of a step has made."""
    return step.factors.shape[1] if isinstance(step, Linear) and step.matrix else 1


def _require_small(below: int, units: int) -> None:
    if below * units > _ENTRIES:
        raise DeclarationError(
            f"a map of {below} to {units} units is too large to stand in a problem."
        )
