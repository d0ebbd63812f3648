"""A composition over a box as constraints of CVXPY, with whole numbers where units have kinks.

Every unit v = phi(u) has a range [l, h] of u, by lines below and above all units. Where phi is
linear on [l, h] so is v. Else [l, h] falls into pieces l = t_0 < t_1 < ... < t_K = h, filled one
after another,

    u = l + sum_k d_k,  0 <= d_k <= h_k,  h_k s_k <= d_k (k < K),  d_k <= h_k s_{k-1} (k > 1),
    v = phi(l) + sum_k c_k d_k,

with h_k the width of a piece, c_k the slope of its chord and s_k whole numbers 0 or 1; d_1 follows
from u. Of a ReLU that is v >= 0, v >= u, v <= h s, v <= u - l (1 - s); the incremental form of
Markowitz and Manne, 1957. A smooth phi has a few lines below and above it, and no whole numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from liftednet.lazy import cvxpy as cp
from liftednet.lazy import sparse

from ..bounds.curves import Array, Curve
from .composition import Block, Composition

if TYPE_CHECKING:
    from cvxpy.constraints.constraint import Constraint
    from cvxpy.expressions.expression import Expression


class Relaxation:
    """What holds wherever y is the network's output at x.

    Attributes:
        ranges: (lower, upper) of the pre-activations of each block, and last of y.
        constraints: of x, and of variables for each unit.
        states: what each block gives.
        output: y.
        exact: whether the constraints hold nowhere else.
        whole: how many whole numbers there are.
    """

    def __init__(
        self,
        composition: Composition,
        x: Expression,
        box: tuple[Array, Array],
        ranges: Sequence[tuple[Array, Array]],
    ) -> None:
        """State a network without windows, its inputs x between the ends of a box."""
        self.composition, self.ranges = composition, ranges
        self.constraints: list[Constraint] = [x >= box[0], x <= box[1]]
        self.exact, self.whole = True, 0
        self._given: list[list[tuple[Any, Callable[[Array], Array]]]] = []
        self.states: list[Any] = []
        for block, ends in zip(composition.blocks, ranges, strict=False):
            u = block.argument.of([x, *self.states])
            self._given.append([])
            self.states.append(self._block(block, u, *ends))
        self.output = composition.output.of([x, *self.states])

    def assign(self, x: Array) -> None:
        """Give all variables the values that they have at x."""
        values = self.composition.values(x)
        for block, v, state, given in zip(
            self.composition.blocks, values[1:], self.states, self._given, strict=True
        ):
            u = block.argument.of(values)
            state.save_value(v)
            for variable, of in given:
                variable.save_value(of(u))

    def _block(self, block: Block, u: Expression, low: Array, high: Array) -> Any:
        each = [np.flatnonzero(block.which == number) for number in range(len(block.curves))]
        bounds = block.by_curve(
            lambda curve, *ends: torch.stack(curve.values(*map(torch.from_numpy, ends))).numpy(),
            low,
            high,
        )
        v = cp.Variable(len(block), bounds=list(bounds))
        for curve, own in zip(block.curves, each, strict=True):
            curve.pieces(float(low[own].min()), float(high[own].max()))  # refuses some
            ends = (torch.from_numpy(x[own]) for x in (low, high))
            straight = curve.linear_between(*ends).numpy()
            for which, stated in (
                (own[straight], self._line),
                (own[~straight], self._pieces if curve.piecewise_linear else self._between),
            ):
                if len(which):
                    stated(curve, u, v, which, low[which], high[which])
        return v

    def _line(self, curve: Curve, u: Any, v: Any, which: Any, low: Array, high: Array) -> None:
        slope = curve.chords(torch.from_numpy(low), torch.from_numpy(high)).numpy()
        line = cp.multiply(slope, u[which]) + (curve.of(low) - slope * low)
        self.constraints.append(v[which] == line)

    def _between(self, curve: Curve, u: Any, v: Any, which: Any, low: Array, high: Array) -> None:
        self.exact = False
        lines = (x.numpy().T for x in curve.beside(torch.from_numpy(low), torch.from_numpy(high)))
        for slope, least, most in zip(*lines, strict=True):
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
        d, s = cp.Variable(count, bounds=[0, after]), cp.Variable(count, boolean=True)
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
