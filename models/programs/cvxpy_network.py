"""A trained network as an expression of CVXPY."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from liftednet.errors import DataError, DeclarationError
from liftednet.lazy import cvxpy as cp
from liftednet.lazy import sparse
from liftednet.validation import require_positive

from ..bounds.curves import Array, Curve
from ..bounds.reading import require_box
from .composition import Block, Composition, composition_of
from .halving import kinked
from .lines import ranges

CONVEX = ("affine", "convex", "concave")
_RAISED = 100  # steps that bring the ends of units closer


def _tied(*given: Any, **options: Any) -> Any:
    """Return a variable that constraints of a network tie to its inputs."""
    variable: Any = cp.Variable(*given, **options)
    variable.of_network = True
    return variable


def is_tied(variable: Any) -> bool:
    """Say whether a variable is an output, a state or another part of a network."""
    return hasattr(variable, "of_network")


class Relaxation:
    """What holds wherever y is the network's output at x, whole numbers where units have kinks.

    Every unit v = phi(u) has a range [l, h] of u, by lines below and above all units. Where phi is
    linear on [l, h] so is v. Else [l, h] falls into pieces l = t_0 < t_1 < ... < t_K = h, filled
    one after another,

        u = l + sum_k d_k,  0 <= d_k <= h_k,  h_k s_k <= d_k (k < K),  d_k <= h_k s_{k-1} (k > 1),
        v = phi(l) + sum_k c_k d_k,

    with h_k the width of a piece, c_k the slope of its chord and s_k whole numbers 0 or 1; d_1
    follows from u. Of a ReLU that is v >= 0, v >= u, v <= h s, v <= u - l (1 - s); the incremental
    form of Markowitz and Manne, 1957. A smooth phi has a few lines below and above it, and no whole
    numbers.

    Attributes:
        ranges: (lower, upper) of the pre-activations of each block, and last of y.
        constraints: the box, what units are, and what y is.
        states: what each block gives.
        exact: whether the constraints hold nowhere else.
        whole: how many whole numbers there are.
    """

    def __init__(
        self,
        composition: Composition,
        x: cp.Expression,
        y: Any,
        box: tuple[Array, Array],
        ranges: Sequence[tuple[Array, Array]],
    ) -> None:
        """State a network without windows, its inputs x between the ends of a box."""
        self.composition, self.ranges = composition, ranges
        self.constraints: list[cp.Constraint] = [x >= box[0], x <= box[1]]
        self.exact, self.whole = True, 0
        self._given: list[list[tuple[Any, Callable[[Array], Array]]]] = []
        self.states: list[Any] = []
        for block, ends in zip(composition.blocks, ranges, strict=False):
            u = block.argument.of([x, *self.states])
            self._given.append([])
            self.states.append(self._block(block, u, *ends))
        self.constraints.append(y == composition.output.of([x, *self.states]))

    def assign(self, x: Array) -> None:
        """Give all variables the values that they have at x."""
        (_, *values), arguments = self.composition.passed(x)
        for state, v, u, given in zip(self.states, values, arguments, self._given, strict=True):
            state.save_value(v)
            for variable, of in given:
                variable.save_value(of(u))

    def _block(self, block: Block, u: cp.Expression, low: Array, high: Array) -> Any:
        each = [np.flatnonzero(block.which == number) for number in range(len(block.curves))]
        v = _tied(len(block), bounds=list(block.mapped(low, high, function="values")))
        for curve, own in zip(block.curves, each, strict=True):
            curve.pieces(float(low[own].min()), float(high[own].max()))  # refuses some
            straight = curve.of(low[own], high[own], function="linear_between")
            straight |= low[own] == high[own]  # a constant, on a kink maybe
            for which, stated in (
                (own[straight], self._line),
                (own[~straight], self._pieces if curve.piecewise_linear else self._between),
            ):
                if len(which):
                    stated(curve, u, v, which, low[which], high[which])
        return v

    def _line(self, curve: Curve, u: Any, v: Any, which: Any, low: Array, high: Array) -> None:
        slope = curve.of(low, high, function="chords")
        line = cp.multiply(slope, u[which]) + (curve.of(low) - slope * low)
        self.constraints.append(v[which] == line)

    def _between(self, curve: Curve, u: Any, v: Any, which: Any, low: Array, high: Array) -> None:
        self.exact = False
        lines = curve.of(low, high, function="beside")
        for slope, least, most in np.moveaxis(lines, -1, 0):
            off = v[which] - cp.multiply(slope, u[which])
            self.constraints += [off >= least, off <= most]

    def _pieces(self, curve: Curve, u: Any, v: Any, which: Any, low: Array, high: Array) -> None:
        """State pieces by d and s of each kink inside, of a unit one after another."""
        knots = np.array(curve.knots)
        unit, knot = np.nonzero((low[:, None] < knots) & (knots < high[:, None]))
        at, first = knots[knot], np.append(True, unit[1:] != unit[:-1])
        start = np.where(first, low[unit], np.append(0.0, at[:-1]))
        end = np.where(np.append(first[1:], True), high[unit], np.append(at[1:], 0.0))
        value, before, after = curve.of(at), at - start, end - at
        slopes = (value - curve.of(start)) / before, (curve.of(end) - value) / after
        count, begin = len(unit), slopes[0][first]
        self.whole += count
        d, s = _tied(count, bounds=[0, after]), _tied(count, boolean=True)
        shape, each, later = (len(which), count), np.arange(count), np.flatnonzero(~first)
        sums = sparse.csr_array((np.ones(count), (unit, each)), shape=shape)
        turns = sparse.csr_array((slopes[1] - begin[unit], (unit, each)), shape=shape)
        one = u[which] - low - sums @ d  # the first piece
        lead = sparse.csr_array((first.astype(float), (each, unit)), shape=shape[::-1])
        follow = sparse.csr_array((np.ones(len(later)), (later, later - 1)), shape=(count, count))
        self.constraints += [
            one <= before[first],
            lead @ one + follow @ d >= cp.multiply(before, s),
            d <= cp.multiply(after, s),
            v[which] == curve.of(low) + cp.multiply(begin, u[which] - low) + turns @ d,
        ]
        self._given[-1] += [
            (d, lambda u: np.clip(u[which][unit] - at, 0, after)),
            (s, lambda u: (u[which][unit] >= at).astype(float)),
        ]


@dataclass(eq=False)
class Graph:
    """One sample's program as constraints of CVXPY, made when they are first asked for.

    Attributes:
        x: (inputs,).
        y: variables that stand for the outputs, (outputs,).
        composition: the network.
        box: the ends of x.
        seconds: that may be taken to tighten the ranges of units.
        spent: that were taken.
    """

    x: cp.Expression
    y: Any
    composition: Composition
    box: tuple[Array, Array]
    seconds: float = 0.0
    spent: float = field(default=0.0, init=False)

    @cached_property
    def relaxation(self) -> Relaxation:
        """What ties x and y, with variables of its own."""
        started = time.perf_counter()
        ends = ranges(self.composition, self.box, steps=_RAISED, seconds=self.seconds)
        self.spent = time.perf_counter() - started
        return Relaxation(self.composition, self.x, self.y, self.box, ends)

    @property
    def outside(self) -> float:
        """How far x is outside the box."""
        x = np.asarray(self.x.value, dtype=float)
        return float(np.max([self.box[0] - x, x - self.box[1]]))

    def pass_forward(self) -> None:
        """Give the variables the values that they have at x."""
        x = np.asarray(self.x.value, dtype=float)
        self.y.save_value(self.composition.forward(x))
        if "relaxation" in vars(self):  # it has been asked for
            self.relaxation.assign(x)


@dataclass(eq=False)
class CvxpyNetwork:
    """A network in CVXPY: an expression, and what must hold for it to be the network's output.

    Attributes:
        x: what it is given, (inputs,) or (samples, inputs).
        output: (outputs,) or (samples, outputs).
        composition: the network.
        graphs: the programs of the samples; none of a network that is convex, concave or affine.
        box: ends of x, where there are no graphs, which have their own; None for none.

    Example:
        >>> import cvxpy as cp
        >>> import torch
        >>> from liftednet import to_cvxpy
        >>> first, last = torch.nn.Linear(1, 2, bias=False), torch.nn.Linear(2, 1, bias=False)
        >>> network = torch.nn.Sequential(first, torch.nn.ReLU(), last)
        >>> with torch.no_grad():  # |x| = relu(x) + relu(-x)
        ...     _ = first.weight.copy_(torch.tensor([[1.0], [-1.0]]))
        ...     _ = last.weight.fill_(1.0)
        >>> x = cp.Variable(1)
        >>> to_cvxpy(network, x).output.curvature
        'CONVEX'
        >>> found = to_cvxpy(network, x, box=(-1, 3), mixed_integer=True)
        >>> problem = cp.Problem(cp.Maximize(found.output[0]), found.constraints)
        >>> print(f"{problem.solve(solver='HIGHS'):.4f} at {x.value.item():.4f}")
        3.0000 at 3.0000
    """

    x: cp.Expression
    output: Any
    composition: Composition
    graphs: list[Graph] = field(default_factory=list)
    box: tuple[Array, Array] | None = None

    @property
    def kind(self) -> str:
        """What it is.

        "affine", "convex" or "concave": `output` is the network, by rules of CVXPY's own;
        "mixed-integer": under the constraints it is; "relaxation": under the constraints it may be
        more or less, and the network's output is among what they allow.
        """
        if not self.graphs:
            return next(name for name in CONVEX if getattr(self.output, f"is_{name}")())
        exact = all(graph.relaxation.exact for graph in self.graphs)
        return "mixed-integer" if exact else "relaxation"

    @cached_property
    def constraints(self) -> list[cp.Constraint]:
        """To be given to the problem; of a convex, concave or affine network those of a box."""
        sides = [] if self.box is None else [self.x >= self.box[0], self.x <= self.box[1]]
        return [*sides, *(one for graph in self.graphs for one in graph.relaxation.constraints)]

    @cached_property
    def states(self) -> tuple[cp.Expression, ...]:
        """What each activation gives, in the order of a forward pass, where there are graphs."""
        return tuple(state for graph in self.graphs for state in graph.relaxation.states)

    @property
    def exact(self) -> bool:
        """Whether the output is the network's, wherever the constraints hold."""
        return self.kind != "relaxation"

    @property
    def whole(self) -> int:
        """How many whole numbers there are: of units that can be on either side of a kink."""
        return sum(graph.relaxation.whole for graph in self.graphs)

    @property
    def seconds(self) -> float:
        """Time that was taken to tighten the ranges of units, once constraints are asked for."""
        return sum(graph.spent for graph in self.graphs)

    def range(self) -> tuple[Array, Array]:
        """Return ends between which every output lies over the box, shaped as the output.

        Raises:
            DeclarationError: there is no box, as of a convex expression.
        """
        if not self.graphs:
            raise DeclarationError(f"a network that is {self.kind} is stated without a box.")
        ends = [graph.relaxation.ranges[-1] for graph in self.graphs]
        low, high = (np.stack(each).reshape(self.output.shape) for each in zip(*ends, strict=True))
        return low, high

    def pass_forward(self) -> None:
        """Let `output` and `states` have the values of the network at x.value, to rounding.

        What a solver leaves is off by its tolerances, or by the width of a relaxation.

        Raises:
            DataError: x has no value.
        """
        if self.x.value is None:
            raise DataError("x has no value yet: solve a problem with it, or give it one.")
        for graph in self.graphs:
            graph.pass_forward()

    def __str__(self) -> str:
        """Say what it is, and of what size."""
        units = sum(map(len, self.composition.blocks))
        said = f"{self.kind} in {self.composition.inputs} inputs, {units} units"
        if not self.graphs:
            return f"{said}, no constraints" + " but the box" * (self.box is not None)
        return (
            f"{said}, {self.whole} of them whole numbers, ranges tightened in {self.seconds:.2f} s"
        )

    __repr__ = __str__


def to_cvxpy(
    network: Any,
    x: Any,
    *,
    box: Any = None,
    mixed_integer: bool | None = None,
    seconds: float = 10.0,
    example: Any = None,
) -> CvxpyNetwork:
    """Return a trained network as an expression of CVXPY in its inputs.

    An input-convex, -concave or affine network is one expression, whose curvature CVXPY proves by
    rules of its own. One that is linear in pieces is mixed-integer linear, and exact; of any other
    the constraints are a relaxation; `optimize` needs none. Of an estimator or a fitted model
    the scores are meant (outputs of a regression, with loss="poisson" the logarithms of what
    `predict` returns, logits of a classifier), x and outputs in the units of the data; of a torch
    network what it returns.

    Args:
        network: a fitted estimator or model, or a torch.nn.Module, whose weights stay as they are.
        x: a cp.Variable or an affine expression of variables and parameters, (inputs,) or (samples,
            inputs); axes of a sample in one row.
        box: (lowest, highest) x, numbers or (inputs,) each, part of the constraints; None for the
            bounds of x, as of cp.Variable(3, bounds=[0, 1]), and of a convex network for no box.
        mixed_integer: whether a convex network, too, is stated by both sides of its kinks, which
            maximizing it needs; None for that of networks that are not convex.
        seconds: the most that may be taken to tighten the ranges of units, when the constraints are
            asked for: fewer whole numbers, and less work for whoever solves them.
        example: some inputs of a torch network whose samples have axes, such as X[:2].

    Raises:
        DataError: the network cannot be read, x has another number of inputs, or the box is not
            finite.
        DeclarationError: x is not affine, or a part of the network is neither affine nor an
            activation whose curvature is known.
        NotFittedError: the model has no weights yet.

    Example:
        >>> import cvxpy as cp
        >>> import torch
        >>> from liftednet import to_cvxpy
        >>> from liftednet.models import Lifted, input_convex
        >>> X = torch.rand(300, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
        >>> model = Lifted(input_convex((2, 10, 1)), seed=0).fit(X, X.square().sum(1, keepdim=True))
        >>> x = cp.Variable(2)
        >>> price = to_cvxpy(model, x)
        >>> price.kind, price.output.curvature
        ('convex', 'CONVEX')
    """
    with suppress(TypeError, ValueError):
        x = cp.Expression.cast_to_const(x)
    if not isinstance(x, cp.Expression):
        raise DeclarationError(f"x must be a cp.Variable or an expression of some, got {x!r}.")
    if x.ndim not in (1, 2) or not x.is_affine():
        raise DeclarationError(
            "x must be affine in variables, of shape (inputs,) or (samples, inputs); got shape "
            f"{x.shape}, {x.curvature.lower()}."
        )
    require_positive("seconds", seconds)
    composition = composition_of(network, x.shape[-1], example)
    output = None if mixed_integer else _curved(composition, x)
    if output is not None:
        ends = None if box is None else require_box(box, x.shape[-1])
        return CvxpyNetwork(x, output, composition, box=ends)
    if mixed_integer is False:
        raise DeclarationError(
            "the network is not convex, concave or affine in its inputs by CVXPY's atoms and the "
            "signs of its weights: leave mixed_integer=None."
        )
    composition = kinked(composition)
    rows = [x] if x.ndim == 1 else [x[n] for n in range(x.shape[0])]
    graphs = []
    for row in rows:
        ends = require_box(_box_of(row) if box is None else box, x.shape[-1])
        y = _tied(len(composition.output.offset))
        graphs.append(Graph(row, y, composition, ends, seconds / len(rows)))
    together = graphs[0].y if x.ndim == 1 else cp.vstack([graph.y for graph in graphs])
    return CvxpyNetwork(x, together, composition, graphs)


def require_stated(where: str, network: object) -> None:
    """Raise `DataError` unless it is what `to_cvxpy` returns."""
    if not isinstance(network, CvxpyNetwork):
        raise DataError(
            f"{where} takes what to_cvxpy(model, cp.Variable(inputs), box=(lowest, highest)) "
            f"returns, got {type(network).__name__}."
        )


def _box_of(x: cp.Expression) -> Any:
    """Return the bounds that an expression has by itself."""
    low, high = (np.asarray(end, dtype=float) for end in x.get_bounds())
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise DataError(
            "CVXPY's rules do not make the network convex: it is stated over a box. Give "
            "box=(lowest, highest), or x bounds of its own, as in cp.Variable(3, bounds=[0, 1])."
        )
    return low, high


def _curved(composition: Composition, x: cp.Expression) -> cp.Expression | None:
    """Return the output where CVXPY knows its curvature, else None."""
    values: list[Any] = [x]
    for block in composition.blocks:
        v = _atom(block, values)
        if v is None or not (v.is_convex() or v.is_concave()):
            return None
        values.append(v)
    output = cp.Expression.cast_to_const(composition.output.of(values))
    return output if output.is_convex() or output.is_concave() else None


def _atom(block: Block, values: Sequence[Any]) -> Any:
    """Return phi(u) by atoms of CVXPY; None where there is none that is convex or concave."""
    u = block.argument.of(values)
    if len(block.windows):
        return cp.maximum(*(u[..., entries] for entries in block.windows.T))
    if not (all(x.convex for x in block.curves) or all(x.concave for x in block.curves)):
        return None
    if all(curve.piecewise_linear for curve in block.curves):
        return _of_lines(block, values)
    (curve, *others) = block.curves
    return curve.atom(u) if curve.atom is not None and not others else None


def _of_lines(block: Block, values: Sequence[Any]) -> Any:
    """Return the largest, or the smallest, of the lines that maps consist of."""
    lines = [_lines_of(curve) for curve in block.curves]
    many = max(map(len, lines))
    filled = np.array([each + each[:1] * (many - len(each)) for each in lines])[block.which]
    u, shape = block.argument, (*values[0].shape[:-1], len(block))
    lines_at = [
        replace(u, parts={k: a * part for k, part in u.parts.items()}, offset=a * u.offset + b).of(
            values
        )
        if a.any()
        else np.broadcast_to(b, shape)
        for a, b in filled.transpose(1, 2, 0)
    ]  # products of u itself have bounds in CVXPY that are nan
    if many == 1:
        return lines_at[0]
    return (cp.maximum if block.curves[0].convex else cp.minimum)(*lines_at)


def _lines_of(curve: Curve) -> list[tuple[float, float]]:
    first, last = (curve.knots[0], curve.knots[-1]) if curve.knots else (0.0, 0.0)
    ends = curve.pieces(first - 1, last + 1)
    return [curve.chord(*piece) for piece in pairwise(ends)]
