"""A network over time whose steps come in one after another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from liftednet.errors import DataError, DeclarationError
from liftednet.layers.expression import Applied, Expression, Input
from liftednet.layers.time import Delay, Early, First, Late, Turn
from liftednet.network import State
from liftednet.validation import as_tensor, require_finite

from .block import Structure
from .data import Data
from .forward_pass import Values, delayed_in, refuse_overflow
from .standardization import Standardization


def refuse_whole_sequences(structure: Structure) -> None:
    """Raise `DeclarationError` where a network needs its last step first, or has no steps."""
    inputs = structure.network.inputs
    if len(inputs) != 1 or not inputs[0].sequence:
        raise DeclarationError("a stream is for a network with one input, which is a sequence.")
    if any(isinstance(applied.layer, Turn) for applied in structure.network.layers()):
        raise DeclarationError("a bidirectional network cannot stream: it needs the last step.")


def streamed(
    structure: Structure,
    weights: Values,
    steps: Iterable[Any],
    standardization: Standardization,
) -> Iterator[list[Tensor]]:
    """Yield the outputs of every loss, (samples, outputs) each, step by step.

    Args:
        structure: of a network that `refuse_whole_sequences` lets pass.
        weights: by their parameters.
        steps: (samples, inputs) of one step after another; samples must not change.
        standardization: between the steps and the weights.

    Raises:
        DataError: a step has another number of features or of samples, or is not finite; or the
            output overflows.
    """
    (given,) = structure.network.inputs
    like = next(iter(weights.values())).matrix
    moment: _Moment | None = None
    samples: int | str = "samples"
    if not isinstance(steps, Iterable):
        raise DataError(f"a stream needs steps one after another, got {type(steps).__name__}.")
    for number, step in enumerate(steps, start=1):
        row = as_tensor(f"step {number}", step).to(like)
        fits = row.ndim == 2 and row.shape[1] == given.units and len(row) > 0
        if not fits or samples not in ("samples", len(row)):
            raise DataError(
                f"step {number} must have shape ({samples}, {given.units}), got {tuple(row.shape)}."
            )
        require_finite(f"step {number}", row)
        row = standardization.of(Data({given: row})).like
        if moment is None:
            moment, samples = _before_all(structure, weights, row), len(row)
        moment = _Moment(structure, weights, row, moment)
        moment.pass_forward(structure.states)
        outputs = [
            standardization.answer(term, term.activation.forward(moment.value(term.argument)))
            for term in structure.network.terms
        ]
        refuse_overflow(outputs)
        yield outputs


def _before_all(structure: Structure, weights: Values, row: Tensor) -> _Moment | None:
    """Return the step before all, where there are states that have one."""
    early = [state for state in structure.states if state.early]
    if not early:
        return None
    moment = _Moment(structure, weights, torch.zeros_like(row), None, early=True)
    moment.pass_forward(early)
    return moment


class _Moment:
    """The values of one step, and what the next may ask of it."""

    def __init__(
        self,
        structure: Structure,
        weights: Values,
        row: Tensor,
        previous: _Moment | None,
        early: bool = False,
    ) -> None:
        self._structure, self._weights, self._row = structure, weights, row
        self._previous, self._early = previous, early
        self._known: dict[int, Tensor] = {}

    def pass_forward(self, states: list[State]) -> None:
        """Compute states, and what is delayed, and forget the step before."""
        for state in states:
            self._known[id(state)] = self._structure.activated(state, self.value(state.argument))
        for state in states:
            for expression in delayed_in(state.argument):
                self.value(expression)
        for term in self._structure.network.terms if not self._early else ():
            for expression in delayed_in(term.argument):
                self.value(expression)
            self.value(term.argument)
        self._previous = None

    def value(self, expression: Expression) -> Tensor:
        """Return an expression at this step, (samples, units)."""
        if isinstance(expression, Input):
            return self._row
        if id(expression) not in self._known:
            assert isinstance(expression, Applied)  # states are known already
            self._known[id(expression)] = self._applied(expression)
        return self._known[id(expression)]

    def _applied(self, expression: Applied) -> Tensor:
        inside = expression.arguments[0]
        if isinstance(expression.layer, First):
            return torch.full_like(self._row[:, :1], float(self._early))
        if isinstance(expression.layer, Early) and self._early:
            return self._row.new_zeros(len(self._row), inside.units)
        if isinstance(expression.layer, Early | Late):
            return self.value(inside)
        if isinstance(expression.layer, Delay):
            if self._previous is None:
                return self._row.new_zeros(len(self._row), inside.units)
            return self._previous.value(inside)
        weights = None if expression.weights is None else self._weights[expression.weights]
        return expression.layer.value([self.value(x) for x in expression.arguments], weights)
