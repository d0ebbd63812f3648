"""Files of trained models: tensors as safetensors, the architecture as JSON in its metadata.

Nothing in such a file is executed. What the numbers mean is known to the models
(`liftednet.models.storage`), which become an `Archive` and are made from one.
"""

from __future__ import annotations

import inspect
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from liftednet import activations, losses
from liftednet.activation import Activation
from liftednet.errors import DataError
from liftednet.losses import Loss
from liftednet.validation import require_finite

_FORMAT = "liftednet"
_VERSION = 1
_KEYS = {"kind", "architecture"}

Description = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Archive:
    """What a file holds.

    Attributes:
        kind: name of the class of the model.
        architecture: what the model is, as JSON values.
        tensors: its numbers by name.
    """

    kind: str
    architecture: Description
    tensors: Mapping[str, Tensor]


def write(archive: Archive, path: str | Path) -> Path:
    """Write an archive; an interruption leaves the file that was there before.

    Args:
        archive: what to write.
        path: of the file; its folder must exist.

    Returns:
        The path.

    Raises:
        DataError: the folder does not exist or cannot be written to.
    """
    from safetensors.torch import save

    about = {"kind": archive.kind, "architecture": archive.architecture}
    metadata = {"format": _FORMAT, "version": str(_VERSION), "model": json.dumps(about)}
    tensors = {name: tensor.cpu().contiguous() for name, tensor in archive.tensors.items()}
    target = Path(path)
    try:
        _replace(target, save(tensors, metadata))
    except OSError as error:
        raise DataError(f"the model cannot be saved to {target}: {error.strerror}.") from error
    return target


def _replace(target: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def read(path: str | Path) -> Archive:
    """Read an archive.

    Args:
        path: of a file that `write` has written.

    Raises:
        DataError: there is no such file, or it is none of liftednet's, or it is damaged.
    """
    from safetensors import SafetensorError, safe_open

    source = Path(path)
    try:
        with safe_open(source, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise DataError(f"there is no model at {source}: {error}.") from error
    except SafetensorError as error:
        raise DataError(f"{source} is no whole safetensors file: {error}.") from error
    about = _described(metadata, source)
    for name, tensor in tensors.items():
        require_finite(f"{name} of {source}", tensor)
    return Archive(about["kind"], about["architecture"], tensors)


def _described(metadata: Mapping[str, str], source: Path) -> Description:
    if metadata.get("format") != _FORMAT:
        raise DataError(
            f"{source} was not saved by liftednet.save: its metadata do not name an architecture. "
            "Weights of a torch network go into one by load_state_dict."
        )
    if metadata.get("version") != str(_VERSION):
        raise DataError(
            f"{source} has version {metadata.get('version')} of the format, and this liftednet "
            f"reads version {_VERSION}: install the liftednet that saved it, or a newer one."
        )
    try:
        about = json.loads(metadata["model"])
    except (KeyError, ValueError) as error:
        raise DataError(f"the architecture in {source} cannot be read: {error}.") from error
    if not isinstance(about, dict) or not about.keys() >= _KEYS:
        raise DataError(f"the architecture in {source} lacks {sorted(_KEYS)}.")
    return about


def describe(part: Activation | Loss) -> Description:
    """Return an activation of the catalogue, or a loss, by name and parameters.

    A declared activation is described by how it prints itself: a file cannot hold code.
    """
    if type(part) not in _CATALOGUE.values():
        return {"declared": repr(part)}
    names = inspect.signature(type(part)).parameters
    return {
        "name": type(part).__name__,
        "parameters": {name: getattr(part, name) for name in names},
    }


def rebuild_loss(description: Description) -> Loss:
    """Return the loss that a description names.

    Raises:
        DataError: liftednet has no such loss.
    """
    loss = _rebuild(description)
    if not isinstance(loss, Loss):
        raise DataError(f"the loss {_name(description)} is declared outside of liftednet.")
    return loss


def rebuild_activation(description: Description) -> Activation | None:
    """Return the activation that a description names, or None where it was declared elsewhere."""
    part = _rebuild(description)
    return part if isinstance(part, Activation) else None


def _rebuild(description: Description) -> Activation | Loss | None:
    make = _CATALOGUE.get(_name(description))
    try:
        return None if make is None else make(**description.get("parameters", {}))
    except TypeError as error:
        raise DataError(f"the file describes no {_name(description)}: {error}.") from error


def _name(description: Description) -> str:
    return str(description.get("name", description.get("declared")))


_LOSSES = (
    losses.SquaredError,
    losses.CrossEntropy,
    losses.BinaryCrossEntropy,
    losses.SimplexCrossEntropy,
)
_CATALOGUE: dict[str, type[Activation] | type[Loss]] = {
    **{name: getattr(activations, name) for name in activations.__all__},
    **{loss.__name__: loss for loss in _LOSSES},
}
