"""Initial weights of a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from liftednet.errors import DataError
from liftednet.layers import Parameter
from liftednet.samples import Weights

Draw = Callable[[int, int, torch.Generator], Tensor]
Start = str | Sequence[Weights]


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


def start_named(name: str, starts: Mapping[str, Draw] = STARTS) -> Draw:
    """Return a start by its name.

    Raises:
        DataError: there is no start of that name.
    """
    if name not in starts:
        raise DataError(f"there is no start {name!r}; there are {', '.join(starts)}.")
    return starts[name]


def draw_weights(
    shapes: Sequence[tuple[int, int]], draw: Draw, generator: torch.Generator, bias: float = 0.0
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


def given_weights(weights: Sequence[Weights], parameters: Sequence[Parameter]) -> list[Weights]:
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
    if len(given) != len(parameters):
        raise DataError(f"{len(parameters)} layers need as many start weights, got {len(given)}.")
    for number, (layer, parameter) in enumerate(zip(given, parameters, strict=True)):
        if tuple(layer.matrix.shape) != parameter.shape:
            raise DataError(
                f"the start weight of layer {number} must have shape {parameter.shape}, got "
                f"{tuple(layer.matrix.shape)}."
            )
        wanted = (parameter.shape[1],) if parameter.bias else None
        found = None if layer.bias is None else tuple(layer.bias.shape)
        if found != wanted:
            raise DataError(
                f"the start bias of layer {number} must have shape {wanted}, got {found}."
            )
        if not bool(layer.stacked().isfinite().all()):
            raise DataError(f"the start weights of layer {number} are NaN or infinite.")
    return given
