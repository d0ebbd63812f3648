"""Files of trained models: tensors as safetensors, the architecture as JSON in its metadata.

Nothing in such a file is executed. What the numbers mean is known to the models
(`liftednet.models.storage`), which become an `Archive` and are made from one.
"""

from __future__ import annotations

import glob
import inspect
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from liftednet import activations, constraints, losses, penalties
from liftednet.errors import DataError
from liftednet.validation import is_integer, is_number, require_finite, require_float

_FORMAT = "liftednet"
_VERSION = 2
_OLDER = 1  # of liftednet 0.1: chains and plain recurrent networks, described by their sizes
_KEYS = {"kind", "architecture"}
_UNFINISHED = ".unfinished"
OF_BAD_VALUES = (
    ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
_TYPES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64", torch.uint8: "U8"}

Description = Mapping[str, Any]
Catalogue = Mapping[str, type[Any]]


@dataclass(frozen=True, eq=False)
class Archive:
    """What a file holds.

    Attributes:
        kind: name of the class of the model.
        architecture: what the model is, as JSON values.
        tensors: its numbers by name.
        older: whether liftednet 0.1 has written it.
        notes: what its owner has noted beside it, as JSON values, such as the names of labels.
    """

    kind: str
    architecture: Description
    tensors: Mapping[str, Tensor]
    older: bool = False
    notes: Description = field(default_factory=dict)


def write(archive: Archive, path: str | Path) -> Path:
    """Write an archive; an interruption leaves the file that was there before.

    Args:
        archive: what to write.
        path: of the file; its folder must exist.

    Returns:
        The path.

    Raises:
        DataError: the folder does not exist or cannot be written to, or is full, or the path is
            that of something else than a file; what was there is unharmed.
    """
    about = {"kind": archive.kind, "architecture": archive.architecture, "notes": archive.notes}
    metadata = {"format": _FORMAT, "version": str(_VERSION), "model": json.dumps(about)}
    target = Path(path)
    if target.exists() and not target.is_file():
        raise DataError(f"the model cannot be saved to {target}: it is there, and is no file.")
    try:
        replace_file(target, archive.tensors, metadata)
    except OSError as error:
        raise DataError(f"the model cannot be saved to {target}: {error.strerror}.") from error
    return target


def replace_file(target: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors and metadata to a safetensors file, at once or not at all.

    Raises:
        OSError: the folder cannot be written to, or is full; the file is as it was.
    """
    name = unfinished(target)
    try:
        with open(name, "wb") as file:
            for part in _content(tensors, metadata):
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, target)
    finally:
        Path(name).unlink(missing_ok=True)


def _content(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Iterator[Any]:
    """Yield what a safetensors file consists of: a header as JSON, then all entries.

    The writer of safetensors has a temporary file of its own, which a kill would leave behind, and
    ends the process where memory runs out.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        offsets = {"data_offsets": [begin, end]}
        header[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), **offsets}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for tensor in tensors.values():
        yield tensor.detach().cpu().contiguous().view(-1).numpy()


def unfinished(target: Path) -> str:
    """Make an empty file beside a target, to be written and then moved in its place."""
    handle, name = tempfile.mkstemp(_UNFINISHED, f".{target.name}.", target.parent)
    os.close(handle)
    return name


def remove_unfinished(target: Path) -> None:
    """Remove what runs that were killed have left beside a target."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.*{_UNFINISHED}"):
        left.unlink(missing_ok=True)


def read(path: str | Path) -> Archive:
    """Read an archive.

    Args:
        path: of a file that `write` has written.

    Raises:
        DataError: there is no such file, or it is none of liftednet's, or it is damaged.
    """
    source = Path(path)
    try:
        metadata, tensors = read_tensors(source)
    except OSError as error:
        reason = error if source.exists() else "no such file"
        raise DataError(f"there is no model at {source}: {reason}.") from error
    about = _described(metadata, source)
    for name, tensor in tensors.items():
        require_float(f"{name} of {source}", tensor)
        require_finite(f"{name} of {source}", tensor)
    older = metadata["version"] == str(_OLDER)
    notes = about.get("notes", {})
    if not isinstance(notes, dict):
        raise DataError(f"the notes in {source} must be a dictionary, got {notes!r}.")
    return Archive(about["kind"], about["architecture"], tensors, older, notes)


def read_tensors(source: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the metadata and the tensors of a safetensors file.

    Raises:
        OSError: there is no such file, or it cannot be read.
        DataError: it is none, or damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(source, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return file.metadata() or {}, tensors
    except (SafetensorError, *OF_BAD_VALUES) as error:
        raise DataError(f"{source} is no whole safetensors file: {error}.") from error


def _described(metadata: Mapping[str, str], source: Path) -> Description:
    known = metadata.get("format", "")
    if known != _FORMAT:
        hint = (
            f"it is a {known}, from which its model goes on by fit(..., checkpoint=, resume=True)"
            if known.startswith(_FORMAT)
            else "its metadata do not name an architecture. Weights of a torch network go into one "
            "by load_state_dict"
        )
        raise DataError(f"{source} was not saved by liftednet.save: {hint}.")
    if metadata.get("version") not in (str(_VERSION), str(_OLDER)):
        raise DataError(
            f"{source} has version {metadata.get('version')} of the format, and this liftednet "
            f"reads versions {_OLDER} and {_VERSION}: install the liftednet that saved it, or a "
            "newer one."
        )
    try:
        about = json.loads(metadata["model"])
    except (KeyError, ValueError, RecursionError) as error:
        raise DataError(f"the architecture in {source} cannot be read: {error}.") from error
    if not isinstance(about, dict) or not about.keys() >= _KEYS:
        raise DataError(f"the architecture in {source} lacks {sorted(_KEYS)}.")
    return about


def describe(
    value: Any, known: Catalogue | None = None, tensors: dict[str, Tensor] | None = None
) -> Any:
    """Return a value as JSON: parts that are known by name and parameters, others as they print.

    A declared activation, loss or penalty is one of the others: a file cannot hold code.

    Args:
        value: numbers, names, parts, tensors, arrays, or sequences of them.
        known: classes of parts by name; None for the catalogue of the language.
        tensors: where tensors are put, numbered; None for no tensors.
    """
    known = CATALOGUE if known is None else known
    if value is None or isinstance(value, bool | str):
        return value
    if is_number(value):
        return int(value) if is_integer(value) else float(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [describe(each, known, tensors) for each in value]
    if isinstance(value, Tensor) and tensors is not None:
        tensors[f"constant.{len(tensors) + 1}"] = value
        return {"tensor": f"constant.{len(tensors)}"}
    if type(value) not in known.values():
        return {"declared": repr(value)}
    names = inspect.signature(type(value)).parameters
    parameters = {name: describe(getattr(value, name), known, tensors) for name in names}
    return {"name": type(value).__name__, "parameters": parameters}


def rebuild(
    described: Any,
    option: str,
    known: Catalogue | None = None,
    tensors: Mapping[str, Tensor] | None = None,
) -> Any:
    """Return the value that `describe` has described, sequences as tuples.

    Args:
        described: JSON.
        option: of `load` that takes the value in place of the file's.
        known: classes of parts by name; None for the catalogue of the language.
        tensors: those of the file.

    Raises:
        DataError: it was declared outside of liftednet, or a part does not take its parameters.
    """
    known = CATALOGUE if known is None else known
    if isinstance(described, list):
        return tuple(rebuild(each, option, known, tensors) for each in described)
    if not isinstance(described, dict):
        return described
    if "tensor" in described:
        return (tensors or {})[described["tensor"]]
    make = known.get(str(described.get("name")))
    if make is None:
        raise DataError(
            f"{described.get('declared', described.get('name'))} was declared outside of "
            f"liftednet, and a file holds no code: pass the {option} to load(path, {option}=...)."
        )
    parameters = described.get("parameters", {})
    try:
        return make(**{x: rebuild(v, option, known, tensors) for x, v in parameters.items()})
    except TypeError as error:
        raise DataError(f"the file describes no {make.__name__}: {error}.") from error


CATALOGUE: Catalogue = {
    name: getattr(kind, name)
    for kind in (activations, losses, penalties, constraints)
    for name in kind.__all__
    if name != "Declared" and isinstance(getattr(kind, name), type)  # a file holds no code
}
