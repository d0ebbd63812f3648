"""Files of trained models: tensors as safetensors, the architecture as JSON in its metadata.

Nothing in such a file is executed. What the numbers mean is known to the models
(`liftednet.models.storage`), which become an `Archive` and are made from one.
"""

from __future__ import annotations

import glob
import hashlib
import inspect
import json
import os
import secrets
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from liftednet import activations, constraints, losses, penalties
from liftednet.errors import DataError
from liftednet.processes import warn
from liftednet.validation import is_integer, is_number, require_finite, require_float

_FORMAT = "liftednet"
_VERSION = 3
_WITHOUT_CHECKSUM = 2
_OLDER = 1  # of liftednet 0.1: chains and plain recurrent networks, described by their sizes
_METADATA = {"format", "version", "model"}
_KEYS = {"kind", "architecture"}
_UNFINISHED = ".unfinished"
_GONE = {
    "FullBatch": ("store",),
    "MaxPooling": ("weight",),
    "Minibatch": ("refresh",),
    "NewtonOverTime": ("step_solver",),
}  # parameters of earlier versions
_GONE_PENALTIES = ("DoublyStochastic", "FewRows", "LinearEqualities", "SimplexRows")
OF_BAD_VALUES = (
    ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
TYPES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64", torch.uint8: "U8"}

Description = Mapping[str, Any]
Catalogue = Mapping[str, type[Any]]

CATALOGUE: Catalogue = {"Sum": penalties.Sum} | {
    name: getattr(kind, name)
    for kind in (activations, losses, penalties, constraints)
    for name in kind.__all__
    if name != "Declared" and isinstance(getattr(kind, name), type)  # a file holds no code
}


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
        raise DataError(f"the model cannot be saved to {target}: {error.strerror}.") from None
    return target


def replace_file(target: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors, metadata and their checksum to a safetensors file, at once or not at all.

    Raises:
        OSError: the folder cannot be written to, or is full; the file is as it was.
        DataError: a tensor is of a type that such a file has not.
    """
    if other := [name for name, tensor in tensors.items() if tensor.dtype not in TYPES]:
        raise DataError(
            f"{other[0]} is of {tensors[other[0]].dtype}, and {target} can hold "
            f"{', '.join(map(str, TYPES))}."
        )
    sealed = {**metadata, "checksum": _checksum(metadata, tensors)}
    with replacement(target) as place, open(place, "wb") as file:
        for part in _content(tensors, sealed):
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def replacement(target: Path) -> Iterator[Path]:
    """Give an empty file beside a target to be written, and move it in the target's place.

    Where the target is a symbolic link, what it points at is replaced. Owner and permissions stay;
    a file that is new has those that the user's files have.
    """
    real = Path(os.path.realpath(target))
    name = real.with_name(f".{real.name}.{secrets.token_hex(4)}{_UNFINISHED}{real.suffix}")
    try:
        name.touch(exist_ok=False)
        with suppress(FileNotFoundError):
            before = real.stat()
            with suppress(OSError, AttributeError):  # who may not, or Windows, which has no owners
                os.chown(name, before.st_uid, before.st_gid)
            name.chmod(stat.S_IMODE(before.st_mode))
        yield name
        os.replace(name, real)
    finally:
        name.unlink(missing_ok=True)


def _checksum(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """Return what tells other metadata, and tensors of other names or entries, from these."""
    found = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(_entries(tensor))
    return found.hexdigest()


def _entries(tensor: Tensor) -> Any:
    flat = tensor.detach().cpu().contiguous()  # as is one entry of any stride
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8).numpy()


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
        header[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), **offsets}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for tensor in tensors.values():
        yield _entries(tensor)


def remove_unfinished(target: Path) -> None:
    """Remove what runs that were killed have left beside a target."""
    real = Path(os.path.realpath(target))
    for left in real.parent.glob(f".{glob.escape(real.name)}.*{_UNFINISHED}*"):
        left.unlink(missing_ok=True)


# A file that is one process's while it is written again and again.

if sys.platform == "win32":
    import msvcrt

    def _lock(handle: int) -> None:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


_OWNED: set[Path] = set()  # by this process, to which the system would lend a lock twice


@contextmanager
def owned(target: Path) -> Iterator[bool]:
    """Keep a file from all others that ask; say whether it was to be had.

    The lock is the system's, on an empty file beside the target, and ends with its process
    however that ends; children do not inherit it. A file system without locks gives it to all.

    Raises:
        OSError: the folder cannot be written to.
    """
    real = Path(os.path.realpath(target))
    place = real.with_name(f".{real.name}.lock")
    handle = None if place in _OWNED else _locked(place)
    if handle is None:
        yield False
        return
    _OWNED.add(place)
    try:
        yield True
    finally:
        _OWNED.remove(place)
        with suppress(OSError):  # Windows removes no open file, and a folder may be gone
            place.unlink()
        os.close(handle)


def _locked(place: Path) -> int | None:
    """Return the handle of a locked file, or None where another process has it."""
    while True:
        handle = os.open(place, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(handle)
        except (BlockingIOError, PermissionError):
            os.close(handle)
            return None
        except OSError:
            return handle
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(place)):
                return handle
        os.close(handle)  # who held it has removed it meanwhile


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
        DataError: it is none, or damaged, as its checksum tells where it has one.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(source, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
        bare = {name: text for name, text in metadata.items() if name != "checksum"}
        whole = metadata.get("checksum") in (None, _checksum(bare, tensors))
    except (SafetensorError, *OF_BAD_VALUES) as error:
        raise DataError(f"{source} is no whole safetensors file: {error}.") from error
    if not whole:
        raise DataError(f"{source} is damaged: its numbers or names are not those that it had.")
    return metadata, tensors


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
    if (version := metadata.get("version", "none")) not in map(str, range(_OLDER, _VERSION + 1)):
        raise DataError(
            f"{source} has version {version} of the format, and this liftednet reads versions "
            f"{_OLDER} to {_VERSION}: install the liftednet that saved it, or a newer one."
        )
    checked = set() if int(version) <= _WITHOUT_CHECKSUM else {"checksum"}
    if metadata.keys() != _METADATA | checked:
        raise DataError(f"{source} is damaged: its metadata are {sorted(metadata)}.")
    try:
        about = json.loads(metadata["model"])
    except (KeyError, ValueError, RecursionError) as error:
        raise DataError(f"the architecture in {source} cannot be read: {error}.") from error
    if not isinstance(about, dict) or not about.keys() >= _KEYS:
        raise DataError(f"the architecture in {source} lacks {sorted(_KEYS)}.")
    return about


def describe(
    value: Any, known: Catalogue = CATALOGUE, tensors: dict[str, Tensor] | None = None
) -> Any:
    """Return a value as JSON: parts that are known by name and parameters, others as they print.

    A declared activation, loss or penalty is one of the others: a file cannot hold code.

    Args:
        value: numbers, names, parts, tensors, arrays, or sequences or mappings of them.
        known: classes of parts by name; those of the language where others are not given.
        tensors: where tensors are put, numbered; None for no tensors.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if is_number(value):
        return int(value) if is_integer(value) else float(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, set | frozenset):  # as of inputs that may interact
        value = sorted(value, key=repr)
    if isinstance(value, list | tuple):
        return [describe(each, known, tensors) for each in value]
    if isinstance(value, Mapping):  # whose keys may be numbers
        pairs = [[describe(each, known, tensors) for each in pair] for pair in value.items()]
        return {"pairs": pairs}
    if isinstance(value, Tensor) and tensors is not None:
        tensors[f"constant.{len(tensors) + 1}"] = value
        return {"tensor": f"constant.{len(tensors)}"}
    if known.get(type(value).__name__) is not type(value):
        return {"declared": repr(value)}
    names = inspect.signature(type(value)).parameters
    parameters = {name: describe(getattr(value, name), known, tensors) for name in names}
    return {"name": type(value).__name__, "parameters": parameters}


def rebuild(
    described: Any,
    option: str,
    known: Catalogue = CATALOGUE,
    tensors: Mapping[str, Tensor] | None = None,
) -> Any:
    """Return the value that `describe` has described, sequences as tuples.

    Args:
        described: JSON.
        option: of `load` that takes the value in place of the file's.
        known: classes of parts by name; those of the language where others are not given.
        tensors: those of the file.

    Raises:
        DataError: it was declared outside of liftednet, or a part does not take its parameters.
    """
    if isinstance(described, list):
        return tuple(rebuild(each, option, known, tensors) for each in described)
    if not isinstance(described, dict):
        return described
    if "pairs" in described:
        return {k: rebuild(v, option, known, tensors) for k, v in described["pairs"]}
    if "tensor" in described:
        return (tensors or {})[described["tensor"]]
    name = str(described.get("name"))
    if name in _GONE_PENALTIES:
        warn(f"the penalty {name} is gone: where the model trains on, weights are pulled to 0.")
        return penalties.SquaredFrobenius(1.0)
    make = known.get(name)
    if make is None:
        raise DataError(
            f"{described.get('declared', described.get('name'))} was declared outside of "
            f"liftednet, and a file holds no code: pass the {option} to load(path, {option}=...)."
        )
    gone = _GONE.get(make.__name__, ())
    parameters = {x: v for x, v in described.get("parameters", {}).items() if x not in gone}
    try:
        return make(**{x: rebuild(v, option, known, tensors) for x, v in parameters.items()})
    except TypeError as error:
        raise DataError(f"the file describes no {make.__name__}: {error}.") from error
