"""A lifted recurrent network as the contents of a file, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from liftednet.activation import Activation
from liftednet.errors import DataError
from liftednet.storage import Archive, describe, rebuild_loss

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
from .recurrent_architecture import RecurrentArchitecture
from .rnn import LiftedRNN


def pack_rnn(model: LiftedRNN) -> Archive:
    """Return weights and architecture of a fitted network.

    Raises:
        NotFittedError: it has no weights yet.
    """
    weights, architecture = model.weights, model.architecture
    described, values = pack_layers(_layers(architecture))
    about = {
        "input_size": architecture.inputs,
        "hidden_size": [cell.units for cell in architecture.cells if not cell.backward],
        "output_size": architecture.outputs,
        "activations": described,
        "loss": describe(model.loss),
        "lam": architecture.lam,
        "rho": list(architecture.rho),
        "divergence": coupling_name([architecture.divergence]),
        "bidirectional": any(cell.backward for cell in architecture.cells),
        "learn_initial_state": architecture.learned_start,
        "dtype": type_name(weights),
    }
    return Archive(LiftedRNN.__name__, about, {**pack_weights(weights), **values})


def unpack_rnn(
    archive: Archive, activations: Activation | Sequence[Activation] | None, **options: Any
) -> LiftedRNN:
    """Return the fitted network.

    Raises:
        DataError: the activation is missing or differs, or the contents do not fit together.
    """
    about, weights = archive.architecture, unpack_weights(archive.tensors)
    try:
        found = unpack_activations(about["activations"], activations)
        model = LiftedRNN(
            about["input_size"],
            about["hidden_size"],
            about["output_size"],
            found if isinstance(found, Activation) else found[0],
            rebuild_loss(about["loss"]),
            about["lam"],
            about["rho"],
            about["divergence"],
            bidirectional=about["bidirectional"],
            learn_initial_state=about["learn_initial_state"],
            **{"dtype": type_named(about["dtype"]), "start": weights, **options},
        )
        require_same(_layers(model.architecture), about["activations"], archive.tensors)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"file and options make no LiftedRNN: {error}.") from error
    return model.with_weights(weights)


def _layers(architecture: RecurrentArchitecture) -> list[Layer]:
    return [Layer(architecture.divergence.activation, architecture.cells[0].units)]
