"""`liftednet show`: what a saved model is, read from its file without the code that made it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from liftednet import storage
from liftednet.command.saved import notes_of
from liftednet.command.targets import some
from liftednet.errors import DataError
from liftednet.layers.projection import Projection

_HOW = ("divergence", "lam", "rho", "penalty", "method", "solver", "seed")


def run_show(path: Path) -> None:
    """Print the network, its weights, and how it was trained.

    Raises:
        DataError: there is no such file, or it is damaged.
    """
    archive, console = storage.read(path), Console()
    try:
        lines = _lines(archive)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"{path} describes no network: {error!r}.") from error
    for line in lines:
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def _lines(archive: storage.Archive) -> list[str]:
    about, notes = archive.architecture, notes_of(archive)
    numbers = sum(tensor.numel() for name, tensor in archive.tensors.items() if _is_weight(name))
    types = {str(tensor.dtype).removeprefix("torch.") for tensor in archive.tensors.values()}
    lines = [f"{archive.kind}, {numbers:,} weights in {' and '.join(sorted(types))}"]
    lines += _network(about) or _tensors(archive)
    how = [f"{name} {_said(about[name])}" for name in _HOW if about.get(name) is not None]
    lines.append(f"training: {', '.join(how)}")
    if notes.trained:
        lines.append(f"trained on {notes.trained}")
    if notes.columns:
        lines.append(f"inputs: {some(notes.columns)}")
    if notes.labels is not None:
        lines.append(f"labels of {', '.join(notes.target)}: {some(notes.labels)}")
    return lines


def _network(about: Any) -> list[str]:
    """Return a line for every input, layer, state and loss; liftednet 0.1 has not saved them."""
    graph = about.get("graph")
    if graph is None:
        return []
    sizes = {f"weights {n}": x["shape"] for n, x in enumerate(graph["weights"], start=1)}
    activations = {
        x["of"]: _said(a) for x, a in zip(graph["states"], about["activations"], strict=True)
    }
    lines = []
    for number, given in enumerate(graph["inputs"], start=1):
        steps = "steps x " if given["sequence"] else ""
        lines.append(f"  input {number}: {steps}{' x '.join(map(str, given['shape']))}")
    for number, layer in enumerate(graph["layers"], start=1):
        own = layer["weights"]
        shape = f", {' x '.join(map(str, sizes[own]))}" if own in sizes else ""
        lines.append(f"  layer {number}: {layer['layer']} of {', '.join(layer['of'])}{shape}")
        if layer["layer"] == Projection.__name__:
            lines += [f"    {limit}" for limit in Projection(**layer["fields"]).lines()]
    for number, state in enumerate(graph["states"], start=1):
        lines.append(f"  states {number}: {activations[state['of']]} of {state['of']}")
    lines += [f"  loss: {_said(term['loss'])} of {term['of']}" for term in graph["losses"]]
    return lines


def _tensors(archive: storage.Archive) -> list[str]:
    return [f"  {name}: {' x '.join(map(str, x.shape))}" for name, x in archive.tensors.items()]


def _is_weight(name: str) -> bool:
    return name.startswith(("weight.", "bias."))


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
