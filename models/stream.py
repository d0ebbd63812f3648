"""A network over time whose steps come in one after another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from liftednet.errors import DataError, DeclarationError
from liftednet.layers.expression import Expression, Input
from liftednet.layers.time import Turn
from liftednet.validation import as_tensor, require_finite

from .block import Structure
from .data import Data
from .forward_pass import Moment, Values, refuse_overflow
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
    arguments = [term.argument for term in structure.network.terms]
    like = next(iter(weights.values())).matrix
    moment: Moment | None = None
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
        moment = Moment(weights, row, partial(_only_input, row), moment)
        moment.pass_forward(structure.states, structure.activated, arguments)
        outputs = [
            standardization.answer(term, term.activation.forward(moment.value(term.argument)))
            for term in structure.network.terms
        ]
        refuse_overflow(outputs)
        yield outputs


def _before_all(structure: Structure, weights: Values, row: Tensor) -> Moment | None:
    """Return the step before all, where there are states that have one."""
    early = [state for state in structure.states if state.early]
    if not early:
        return None
    row = torch.zeros_like(row)
    moment = Moment(weights, row, partial(_only_input, row), None, True)
    moment.pass_forward(early, structure.activated)
    return moment


def _only_input(row: Tensor, expression: Expression) -> Tensor | None:
    return row if isinstance(expression, Input) else None
