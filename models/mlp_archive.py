"""A lifted feedforward network as the contents of a file, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from liftednet.activation import Activation
from liftednet.errors import DataError
from liftednet.storage import Archive, describe, rebuild_loss

from .architecture import MULTIPLIERS, Architecture
from .archived import (
    Layer,
    coupling_name,
    pack_layers,
    pack_weights,
    require_same,
    type_name,
    type_named,
    unpack_activations,
    unpack_weights,
)
from .mlp import LiftedMLP


def pack_mlp(model: LiftedMLP) -> Archive:
    """Return weights and architecture of a fitted network.

    Raises:
        NotFittedError: it has no weights yet.
    """
    weights, architecture = model.weights, model.architecture
    divergences = architecture.divergences
    described, values = pack_layers(_layers(architecture))
    about = {
        "sizes": list(architecture.sizes),
        "activations": described,
        "loss": describe(model.loss),
        "lam": list(architecture.lam),
        "rho": list(architecture.rho),
        "divergence": MULTIPLIERS if architecture.multipliers else coupling_name(divergences),
        "dtype": type_name(weights),
    }
    return Archive(LiftedMLP.__name__, about, {**pack_weights(weights), **values})


def unpack_mlp(
    archive: Archive, activations: Activation | Sequence[Activation] | None, **options: Any
) -> LiftedMLP:
    """Return the fitted network.

    Raises:
        DataError: an activation is missing or differs, or the contents do not fit together.
    """
    about, weights = archive.architecture, unpack_weights(archive.tensors)
    try:
        model = LiftedMLP(
            about["sizes"],
            unpack_activations(about["activations"], activations),
            rebuild_loss(about["loss"]),
            about["lam"],
            about["rho"],
            about["divergence"],
            **{"dtype": type_named(about["dtype"]), "start": weights, **options},
        )
        require_same(_layers(model.architecture), about["activations"], archive.tensors)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"file and options make no LiftedMLP: {error}.") from error
    return model.with_weights(weights)


def _layers(architecture: Architecture) -> list[Layer]:
    return [
        Layer(divergence.activation, units)
        for divergence, (_, units) in zip(
            architecture.divergences, architecture.weight_shapes, strict=False
        )
    ]
