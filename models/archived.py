"""What saved models have in common: weights by number, activations by name or by their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from liftednet.activation import Activation
from liftednet.divergences import Divergence, Tight
from liftednet.errors import DataError
from liftednet.problems import Weights
from liftednet.storage import describe, rebuild_activation

Tensors = dict[str, Tensor]
Descriptions = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Layer:
    """An activation, and how many pre-activations a sample has where it stands."""

    activation: Activation
    pre_units: int

    def sampled(self) -> Tensor:
        """Return phi at fixed pre-activations, (4, units), to know a declared one again."""
        points = torch.linspace(-2, 2, 4 * self.pre_units, dtype=torch.float64)
        return self.activation.forward(points.reshape(4, self.pre_units)).detach()


def pack_weights(weights: Sequence[Weights]) -> Tensors:
    """Return every W and b by the number of its layer, from 1."""
    tensors: Tensors = {}
    for number, layer in enumerate(weights, start=1):
        tensors[f"weight.{number}"] = layer.matrix
        if layer.bias is not None:
            tensors[f"bias.{number}"] = layer.bias
    return tensors


def unpack_weights(tensors: Mapping[str, Tensor]) -> list[Weights]:
    """Return the layers that `pack_weights` has numbered."""
    layers: list[Weights] = []
    while (matrix := tensors.get(f"weight.{len(layers) + 1}")) is not None:
        layers.append(Weights(matrix, tensors.get(f"bias.{len(layers) + 1}")))
    return layers


def pack_layers(layers: Sequence[Layer]) -> tuple[Descriptions, Tensors]:
    """Return what the activations are, and values of those that a file cannot name."""
    described = [describe(layer.activation) for layer in layers]
    values = {
        f"forward.{number}": layer.sampled()
        for number, (layer, description) in enumerate(zip(layers, described, strict=True), start=1)
        if "declared" in description
    }
    return described, values


def unpack_activations(
    described: Descriptions, given: Activation | Sequence[Activation] | None
) -> Activation | Sequence[Activation]:
    """Return the activations that are given, or else those that are described.

    Raises:
        DataError: one is described that liftednet does not have, and none is given.
    """
    if given is not None:
        return given
    found = []
    for number, description in enumerate(described, start=1):
        activation = rebuild_activation(description)
        if activation is None:
            raise DataError(
                f"the activation of layer {number}, {description.get('declared')}, was declared "
                "outside of liftednet, and a file holds no code: pass the activations to "
                "load(path, activations=...)."
            )
        found.append(activation)
    return found


def require_same(
    layers: Sequence[Layer], described: Descriptions, tensors: Mapping[str, Tensor]
) -> None:
    """Raise `DataError` unless the activations are those that were saved."""
    for number, (layer, description) in enumerate(zip(layers, described, strict=True), start=1):
        if "declared" in description:
            saved = tensors[f"forward.{number}"]
            same = torch.allclose(layer.sampled(), saved, rtol=1e-5, atol=1e-6)
        else:
            same = describe(layer.activation) == description
        if not same:
            wanted = description.get("declared", description.get("name"))
            raise DataError(
                f"the activation of layer {number} was saved as {wanted} with parameters "
                f"{description.get('parameters', {})}; {layer.activation!r} is another map."
            )


def coupling_name(divergences: Sequence[Divergence]) -> str:
    """Return "tight" or "joint"; without a tight divergence the two mean the same."""
    return "tight" if any(isinstance(each, Tight) for each in divergences) else "joint"


def type_name(weights: Sequence[Weights]) -> str:
    """Return the floating type of the weights, as in "float32"."""
    return str(weights[0].matrix.dtype).removeprefix("torch.")


def type_named(name: str) -> torch.dtype:
    """Return the floating type of a name.

    Raises:
        DataError: it is neither float32 nor float64.
    """
    types = {"float32": torch.float32, "float64": torch.float64}
    if name not in types:
        raise DataError(f"the file names the type {name!r}; it must be one of {', '.join(types)}.")
    return types[name]
