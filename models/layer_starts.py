"""Initial weights of feedforward layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from liftednet.errors import DataError
from liftednet.problems import Weights

Draw = Callable[[int, int, torch.Generator], Tensor]
Shapes = Sequence[tuple[int, int]]


def kaiming(inputs: int, units: int, generator: torch.Generator) -> Tensor:
    """Return normal entries of variance 2 / inputs (He et al., 2015), (inputs, units)."""
    return nn.init.kaiming_normal_(torch.empty(units, inputs), generator=generator).T


def xavier(inputs: int, units: int, generator: torch.Generator) -> Tensor:
    """Return uniform entries of variance 2 / (inputs + units) (Glorot, Bengio, 2010)."""
    return nn.init.xavier_uniform_(torch.empty(units, inputs), generator=generator).T


def normal(inputs: int, units: int, generator: torch.Generator) -> Tensor:
    """Return normal entries of variance 0.1 (Lifted Neural Networks, Table 1)."""
    return torch.randn(inputs, units, generator=generator) * math.sqrt(0.1)


def variance_scaling(inputs: int, units: int, generator: torch.Generator) -> Tensor:
    """Return normal entries of variance 1 / inputs, truncated at two deviations.

    The "sigma-scale" start of Lifted Neural Networks, Table 1, as TensorFlow's default.
    """
    deviation = math.sqrt(1 / inputs) / 0.87962566103423978  # of a normal cut at two deviations
    weight = torch.empty(inputs, units)
    return nn.init.trunc_normal_(
        weight, std=deviation, a=-2 * deviation, b=2 * deviation, generator=generator
    )


STARTS: dict[str, Draw] = {
    "kaiming": kaiming,
    "xavier": xavier,
    "normal": normal,
    "variance-scaling": variance_scaling,
}


def start_named(name: str) -> Draw:
    """Return a start by its name.

    Raises:
        DataError: there is no start of that name.
    """
    if name not in STARTS:
        raise DataError(f"there is no start {name!r}; there are {', '.join(STARTS)}.")
    return STARTS[name]


def draw_weights(
    shapes: Shapes, draw: Draw, generator: torch.Generator, bias: float = 0.0
) -> list[Weights]:
    """Return one draw for every layer.

    Args:
        shapes: (inputs, units) of every layer.
        draw: the distribution.
        generator: of all entries, layer by layer.
        bias: every bias, 0.1 in the paper's Table 1.
    """
    return [
        Weights(draw(inputs, units, generator), torch.full((units,), bias))
        for inputs, units in shapes
    ]


def first_weights(start: str | Sequence[Weights], shapes: Shapes, seed: int) -> list[Weights]:
    """Return drawn weights for the name of a start, or the given ones.

    Raises:
        DataError: there is no start of that name, or a shape is not the network's.
    """
    if isinstance(start, str):
        return draw_weights(shapes, start_named(start), torch.Generator().manual_seed(seed))
    return given_weights(start, shapes)


def given_weights(weights: Sequence[Weights], shapes: Shapes) -> list[Weights]:
    """Return given weights, refused where a shape is not the network's.

    Raises:
        DataError: something else than `Weights`, or the first mismatch, with both shapes.
    """
    given = list(weights) if isinstance(weights, Sequence) else [weights]
    for layer in given:
        if not isinstance(layer, Weights):
            raise DataError(
                "start must be a name, or liftednet.problems.Weights(W, b) of every layer, got "
                f"{type(layer).__name__}."
            )
    if len(given) != len(shapes):
        raise DataError(f"{len(shapes)} layers need as many start weights, got {len(given)}.")
    for number, (layer, shape) in enumerate(zip(given, shapes, strict=True)):
        if tuple(layer.matrix.shape) != shape:
            raise DataError(
                f"the start weight of layer {number} must have shape {shape}, got "
                f"{tuple(layer.matrix.shape)}."
            )
        if layer.bias is None or tuple(layer.bias.shape) != (shape[1],):
            found = None if layer.bias is None else tuple(layer.bias.shape)
            raise DataError(
                f"the start bias of layer {number} must have shape ({shape[1]},), got {found}."
            )
    return given
