"""Saved models at the command line: what is noted beside them, and data as they take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from torch import Tensor

from liftednet import storage
from liftednet.command.named import IMAGES, activation_from
from liftednet.command.targets import Labels, Values
from liftednet.data.tables import read_table
from liftednet.errors import DataError
from liftednet.models.storage import load


@dataclass(frozen=True)
class Notes:
    """What a model's file says beside the model.

    Attributes:
        columns: names of the inputs, empty where they have none.
        target: names of the targets.
        labels: those that the classes stand for, or None for a regression.
        trained: on what, and how far, in words.
    """

    columns: list[str] = field(default_factory=list)
    target: list[str] = field(default_factory=lambda: ["y"])
    labels: Labels | None = None
    trained: str = ""

    def plain(self) -> dict[str, Any]:
        """Return the notes as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Saved:
    """A model that has been loaded.

    Attributes:
        model: fitted.
        notes: beside it.
    """

    model: Any
    notes: Notes


def opened(path: Path, activation: str | None) -> Saved:
    """Return a saved model, whose own activation is named where it is not in the catalogue.

    Raises:
        DataError: there is no such file, or it is damaged.
    """
    archive = storage.read(path)
    declared = None if activation is None else activation_from(activation)
    return Saved(load(path, declared), notes_of(archive))


def notes_of(archive: storage.Archive) -> Notes:
    """Return the notes of an archive; models that were saved by Python have none."""
    known = {field.name for field in fields(Notes)}
    return Notes(**{name: value for name, value in archive.notes.items() if name in known})


def inputs_for(saved: Saved, data: str) -> Tensor:
    """Return X of new data, in the type of the model's weights.

    Raises:
        DataError: the data cannot be read, or lack a column.
    """
    return torch.from_numpy(_inputs(saved, data)).to(saved.model.weights[0].matrix.dtype)


def _inputs(saved: Saved, data: str) -> Values:
    if data in IMAGES:
        return IMAGES[data]().x_test.numpy()
    table = read_table(Path(data))
    columns = saved.notes.columns
    if table.source.suffix == ".npz" and not set(columns) <= set(table.columns):
        columns = []  # of a table; its columns are those of X
    return table.inputs(columns or None, saved.notes.target)[0]


def targets_for(saved: Saved, data: str, names: Sequence[str]) -> Values:
    """Return y of new data.

    Raises:
        DataError: the data cannot be read, or lack a column.
    """
    if data in IMAGES:
        return IMAGES[data]().y_test.numpy()
    return read_table(Path(data)).targets(names or saved.notes.target)


def require_place(path: Path, *others: Path | str | None) -> None:
    """Try whether a file can be written, before there is something to write.

    Args:
        path: of the file.
        others: files that the command reads or writes, too.

    Raises:
        DataError: its folder does not exist or cannot be written to, it is a folder or a device
            itself, or one of the others.
    """
    if path.is_dir():
        raise DataError(f"{path} is a folder: name a file in it.")
    if path.exists() and not path.is_file():
        raise DataError(f"{path} cannot be written: it is there, and is no file.")
    if any(path.resolve() == Path(other).resolve() for other in others if other is not None):
        raise DataError(f"{path} has another use in this command, and would be lost: name another.")
    try:
        with TemporaryFile(dir=path.parent):
            return
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}: {path.parent}.") from error
