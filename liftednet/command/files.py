"""Files of saved models at the command line: where they may be written, and what they hold."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import typer

from liftednet import storage
from liftednet.errors import DataError

_HOW = ("divergence", "lam", "rho", "penalty", "method", "max_iter", "solver", "seed")


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


# What a file holds.


def run_show(path: Path) -> None:
    """Print the network, its weights, and how it was trained, without the code that made it.

    Raises:
        DataError: there is no such file, or it is damaged.
    """
    archive = storage.read(path)
    try:
        lines = _lines(archive)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"{path} describes no network: {error!r}.") from error
    typer.echo("\n".join(lines))


def _lines(archive: storage.Archive) -> list[str]:
    about, notes, tensors = archive.architecture, archive.notes, archive.tensors
    numbers = sum(x.numel() for n, x in tensors.items() if n.startswith(("weight.", "bias.")))
    types = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()}
    lines = [f"{archive.kind}, {numbers:,} weights in {' and '.join(sorted(types))}"]
    if (graph := about.get("graph")) and "layers" not in graph:
        lines += [f"  {name}: {line}" for name, line in graph.items()]
        lines.append(f"activations: {_said(about['activations'])}")
    else:  # older files have no lines
        lines += [f"  {name}: {' x '.join(map(str, x.shape))}" for name, x in tensors.items()]
    how = [f"{name} {_said(about[name])}" for name in _HOW if about.get(name) is not None]
    lines.append(f"training: {', '.join(how)}")
    if about.get("chosen"):
        lines.append(f"by {about['chosen']}")
    if notes.get("trained"):
        lines.append(f"trained on {notes['trained']}")
    if notes.get("columns"):
        lines.append(f"inputs: {_some(notes['columns'])}")
    if notes.get("labels") is not None:
        lines.append(f"labels of {', '.join(notes.get('target', 'y'))}: {_some(notes['labels'])}")
    return lines


def _said(value: Any) -> str:
    """Return a described value as Python would write it."""
    if isinstance(value, list):
        return f"({', '.join(map(_said, value))})"
    if not isinstance(value, dict):
        return str(value)
    if "declared" in value:
        return str(value["declared"])
    given = ", ".join(f"{name}={_said(x)}" for name, x in value.get("parameters", {}).items())
    return f"{value.get('name')}({given})"


def _some(labels: list[Any]) -> str:
    """Return the first of them, and the last."""
    shown = ", ".join(map(str, labels[:5]))
    return shown if len(labels) <= 5 else f"{shown}, ..., {labels[-1]}"
