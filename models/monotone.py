"""Signs of weights that make a feedforward network monotone in chosen inputs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from liftednet.errors import DataError, DeclarationError
from liftednet.network import Network
from liftednet.penalties import FixedZeros, Penalty, Signs
from liftednet.validation import is_integer


def monotone_penalties(
    monotonic_cst: Sequence[int], sizes: Sequence[int], network: Network
) -> list[Penalty | None]:
    """Return the signs of every layer's weights, or None where no input has a direction.

    Units are increasing (+), decreasing (-) in all inputs with a direction, or do not see them
    (0), as those inputs are + or -, and inputs without a direction 0. A weight between two units
    has the product of their signs; one from + or - to 0 is 0, and one from 0 is free. Along every
    path from an input to an output the product of signs is then that of the direction. Units of
    both signs are needed: with + alone a ReLU network would be convex.

    Args:
        monotonic_cst: of every input 1 (outputs increase), -1 (they decrease), or 0; of two
            classes, the probability of the second is meant.
        sizes: units of the input, every hidden layer, and the output.
        network: the chain of dense layers.

    Raises:
        DataError: they are not one of 1, -1 and 0 for each input.
        DeclarationError: an activation couples units, or there are three classes or more.
    """
    given = list(monotonic_cst)
    if len(given) != sizes[0] or not all(is_integer(x) and x in (-1, 0, 1) for x in given):
        raise DataError(
            f"monotonic_cst needs 1, -1 or 0 for each of {sizes[0]} inputs, got {monotonic_cst!r}."
        )
    inputs = torch.tensor(given, dtype=torch.float32)
    if not bool(inputs.any()):
        return [None] * (len(sizes) - 1)
    output = _outputs(network, sizes[-1])
    kinds = [1.0, -1.0] if bool(inputs.all()) else [1.0, -1.0, 0.0]
    hidden = [torch.tensor(kinds)[torch.arange(n) * len(kinds) // n] for n in sizes[1:-1]]
    return [_between(a, b) for a, b in pairwise([inputs, *hidden, output])]


def _between(below: Tensor, above: Tensor) -> Penalty:
    signs: Penalty = Signs(torch.outer(below, above))
    hidden = torch.outer(below != 0, above == 0)
    return signs + FixedZeros(hidden) if bool(hidden.any()) else signs


def _outputs(network: Network, outputs: int) -> Tensor:
    """Return the signs of the outputs."""
    (term,) = network.terms
    hidden = [state for state in network.states if state is not term.state]
    for state in hidden:
        if not state.activation.per_unit:
            raise DeclarationError(
                f"monotonic_cst needs activations that act unit by unit; {state.activation!r} "
                "couples them."
            )
    if term.activation.per_unit:
        return torch.ones(outputs)
    if outputs != 2:
        raise DeclarationError(
            f"monotonic_cst is for numbers or two classes; {type(term.loss).__name__} has "
            f"{outputs} classes here."
        )
    return torch.tensor([-1.0, 1.0])
