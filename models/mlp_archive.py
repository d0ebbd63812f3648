"""A lifted feedforward network as the contents of a file, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from liftednet.activation import Activation
from liftednet.divergences import Tight
from liftednet.errors import DataError
from liftednet.problems import Weights
from liftednet.storage import Archive, describe, rebuild_activation, rebuild_loss

from .architecture import Architecture
from .mlp import LiftedMLP


def pack_mlp(model: LiftedMLP) -> Archive:
    """Return weights and architecture of a fitted network.

    Raises:
        NotFittedError: it has no weights yet.
    """
    weights, architecture = model.weights, model.architecture
    tensors: dict[str, Tensor] = {}
    for number, layer in enumerate(weights, start=1):
        assert layer.bias is not None  # every layer of a LiftedMLP has one
        tensors |= {f"weight.{number}": layer.matrix, f"bias.{number}": layer.bias}
    described = [describe(divergence.activation) for divergence in architecture.divergences]
    for number, description in enumerate(described, start=1):
        if "declared" in description:
            tensors[f"forward.{number}"] = _sampled(architecture, number)
    return Archive(
        LiftedMLP.__name__,
        {
            "sizes": list(architecture.sizes),
            "activations": described,
            "loss": describe(model.loss),
            "lam": list(architecture.lam),
            "rho": list(architecture.rho),
            "divergence": _divergence(architecture),
            "dtype": str(weights[0].matrix.dtype).removeprefix("torch."),
        },
        tensors,
    )


def unpack_mlp(
    archive: Archive, activations: Activation | Sequence[Activation] | None, **options: Any
) -> LiftedMLP:
    """Return the fitted network.

    Raises:
        DataError: an activation is missing or differs, or the contents do not fit together.
    """
    about = archive.architecture
    try:
        described = about["activations"]
        model = LiftedMLP(
            about["sizes"],
            _rebuilt(described) if activations is None else activations,
            rebuild_loss(about["loss"]),
            about["lam"],
            about["rho"],
            about["divergence"],
            **{"dtype": getattr(torch, about["dtype"]), **options},
        )
        weights = [
            Weights(archive.tensors[f"weight.{number}"], archive.tensors[f"bias.{number}"])
            for number in range(1, len(about["sizes"]))
        ]
    except (KeyError, AttributeError) as error:
        raise DataError(f"the file of the LiftedMLP is not complete: {error}.") from error
    _require_same(described, model.architecture, archive.tensors)
    return model.with_weights(weights)


def _divergence(architecture: Architecture) -> str:
    """Return the name; without a tight one the two names mean the same."""
    is_tight = any(isinstance(divergence, Tight) for divergence in architecture.divergences)
    return "tight" if is_tight else "joint"


def _rebuilt(described: Sequence[Mapping[str, Any]]) -> list[Activation]:
    found = [rebuild_activation(description) for description in described]
    for number, (activation, description) in enumerate(zip(found, described, strict=True), start=1):
        if activation is None:
            raise DataError(
                f"the activation of layer {number}, {description.get('declared')}, was declared "
                "outside of liftednet, and a file holds no code: pass the activations to "
                "load(path, activations=...)."
            )
    return [activation for activation in found if activation is not None]


def _require_same(
    described: Sequence[Mapping[str, Any]],
    architecture: Architecture,
    tensors: Mapping[str, Tensor],
) -> None:
    """Raise `DataError` unless the given activations are those that were saved."""
    for number, description in enumerate(described, start=1):
        given = architecture.divergences[number - 1].activation
        if "declared" in description:
            saved = tensors[f"forward.{number}"]
            same = torch.allclose(_sampled(architecture, number), saved, rtol=1e-5, atol=1e-6)
        else:
            same = describe(given) == description
        if not same:
            wanted = description.get("declared", description.get("name"))
            raise DataError(
                f"the activation of layer {number} was saved as {wanted} with parameters "
                f"{description.get('parameters', {})}; {given!r} is another map."
            )


def _sampled(architecture: Architecture, number: int) -> Tensor:
    """Return phi at fixed pre-activations, (4, units), by which a declared one is recognized."""
    _, units = architecture.weight_shapes[number - 1]
    points = torch.linspace(-2, 2, 4 * units, dtype=torch.float64).reshape(4, units)
    return architecture.activations[number - 1].forward(points).detach()
