"""Hidden layers with more units than they keep, while their weights are sought.

Networks with squares on their weights have fewer bad minima the wider they are: with one hidden
layer of ReLU and units enough the problem is equivalent to a convex one (Pilanci and Ergen, Neural
Networks are Convex Regularizers, 2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from liftednet.layers.dense import Dense
from liftednet.layers.expression import Applied, Parameter
from liftednet.layers.join import Concatenation
from liftednet.layers.projection import Projection
from liftednet.network import State
from liftednet.penalties import SquaredFrobenius

from ..block import Structure
from ..forward_pass import Values

Stacked = dict[Parameter, Tensor]  # [W; b] of every layer


@dataclass(frozen=True)
class _Hidden:
    """A hidden layer with any number of units: plain layers below and above it see all of them.

    Attributes:
        state: whose units they are.
        below: the weights of its layer.
        above: the weights of each layer that sees it, and what stands side by side there.
    """

    state: State
    below: Parameter
    above: tuple[tuple[Parameter, tuple[Any, ...]], ...]


class Widths:
    """The hidden layers of a network that may have more units for a while, or fewer again."""

    def __init__(self, structure: Structure) -> None:
        """Find them: dense layers stand below and above, and all of their penalties are squares."""
        self._hidden = _hidden(structure)

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._hidden)

    def more(self, weights: Stacked, factor: float, generator: torch.Generator) -> Stacked:
        """Return weights with so many times the units, and the same scores.

        New units are random combinations of those that are there, which no layer sees yet.
        """
        found = dict(weights)
        for one in self._hidden:
            own = found[one.below]
            now, more = own.shape[1], round((factor - 1) * own.shape[1])
            mixed = torch.randn(now, more, generator=generator, dtype=own.dtype) / now**0.5
            for parameter, first in self._rows(one, found):
                rows, end = found[parameter], first + now
                unseen = rows.new_zeros(more, rows.shape[1])
                found[parameter] = torch.cat([rows[:end], unseen, rows[end:]])
            found[one.below] = torch.cat([own, own @ mixed.to(own)], 1)
        return found

    def fewer(self, weights: Stacked, passed: Values, factor: float) -> Stacked:
        """Return weights with so many times the network's own units, those that do most.

        What a unit does is its deviation over samples times the norm of the weights that see it.

        Args:
            weights: of a wider network.
            passed: its states, (samples, units).
            factor: of the units.
        """
        found = dict(weights)
        for one in self._hidden:
            own, kept = found[one.below], round(factor * one.state.units)
            now = own.shape[1]
            seen = self._rows(one, found)
            squares = [found[p][first : first + now].square().sum(1) for p, first in seen]
            does = passed[one.state].var(0, correction=0) * torch.stack(squares).sum(0)
            most = does.topk(min(kept, now)).indices.sort().values
            for parameter, first in seen:
                rows = found[parameter]
                parts = rows[:first], rows[first + most], rows[first + now :]
                found[parameter] = torch.cat(parts)
            found[one.below] = own[:, most]
        return found

    def _rows(self, one: _Hidden, weights: Stacked) -> list[tuple[Parameter, int]]:
        """Return the weights of every layer above, and the first of the rows that see the units."""
        units = {other.state: weights[other.below].shape[1] for other in self._hidden}
        found = []
        for parameter, parts in one.above:
            before = parts[: parts.index(one.state)]
            found.append((parameter, sum(units.get(part, part.units) for part in before)))
        return found


def _hidden(structure: Structure) -> tuple[_Hidden, ...]:
    terms = structure.network.terms
    scores = [_scores(term.argument) for term in terms]
    ends = [*(state.argument for state in structure.states), *scores]
    free = {state for state in structure.states if _any_number(structure, state)}
    free -= {term.state for term in terms}
    above: dict[State, list[tuple[Any, tuple[Any, ...]]]] = {state: [] for state in free}
    for end in ends:
        parts = _seen(structure, end)
        alone = {part for part in parts if parts.count(part) == 1}
        free -= {x for x in end.variables if x not in alone}
        for part in alone & free:
            above[part].append((end.weights, parts))
    own: dict[State, Any] = {state: state.argument.weights for state in free}
    found = (state for state in structure.states if state in free)
    return tuple(_Hidden(state, own[state], tuple(above[state])) for state in found)


def _scores(argument: Any) -> Any:
    """Return the scores of a loss, before they are projected."""
    held = isinstance(argument, Applied) and isinstance(argument.layer, Projection)
    return argument.arguments[0] if held else argument


def _any_number(structure: Structure, state: State) -> bool:
    """Return whether nothing but its own layer says how many units a state has."""
    known = bool(_seen(structure, state.argument)) and state.bounds is None
    return known and state.activation.per_unit


def _seen(structure: Structure, end: Any) -> tuple[Any, ...]:
    """Return what stands side by side below a dense layer with squares; nothing below others."""
    if not isinstance(end, Applied) or not isinstance(end.layer, Dense) or end.sequence:
        return ()
    weights = end.weights
    assert weights is not None  # it is dense
    parts = structure.penalties[weights].parts
    square = all(isinstance(x, SquaredFrobenius) and x.center is None for x in parts)
    if not square or len(structure.layers[weights]) > 1:
        return ()
    (below,) = end.arguments
    joined = isinstance(below, Applied) and isinstance(below.layer, Concatenation)
    return below.arguments if joined else (below,)
