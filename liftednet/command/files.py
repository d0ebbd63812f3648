"""Files of saved models at the command line: shown, and exported."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
import typer
from torch import nn
from torch.export import Dim

from liftednet import storage
from liftednet.errors import DataError, LiftedError
from liftednet.export import ExportedGraph, to_torch
from liftednet.models.storage import load
from liftednet.validation import model_of

_HOW = ("divergence", "lam", "rho", "penalty", "method", "max_iter", "solver", "seed")
_EXPORTS = (".safetensors", ".pt2", ".onnx")
_SAMPLES = 3  # that a program is traced with; it takes other numbers, too


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


# In files that others load.


def run_export(path: Path, output: Path) -> None:
    """Write the model's torch module; a recurrent one by its weights alone.

    Raises:
        LiftedError: the model cannot be read, the file not written, or torch cannot export it so.
    """
    if output.suffix not in _EXPORTS:
        raise DataError(f"the file must be one of {', '.join(_EXPORTS)}, got {str(output)!r}.")
    from safetensors import SafetensorError

    require_place(output, path)
    model = model_of(load(path))
    if output.suffix != ".safetensors" and any(x.sequence for x in model.network.inputs):
        raise DataError(
            f"a recurrent network is written to {output.suffix} for one number of steps: write "
            "FILE.safetensors, or call torch.export on liftednet.to_torch(model) in Python."
        )
    module = to_torch(model).eval()
    try:
        with storage.replacement(output) as place:
            _write(model, module, place)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{output} cannot be written: {reason}.") from None
    typer.echo(f"written to {output}")


def _write(model: Any, module: nn.Module, path: Path) -> None:
    if path.suffix == ".safetensors":
        from safetensors.torch import save_model

        save_model(module, str(path))
        return
    if path.suffix == ".onnx" and not find_spec("onnxscript"):
        raise LiftedError("torch writes ONNX with onnxscript: run `pip install 'liftednet[onnx]'`.")
    with _in_one_sentence("torch.export"):
        program = _program(model, module)
    if path.suffix == ".pt2":
        whole = io.BytesIO()  # on a full disk torch's own writer ends the process
        torch.export.save(program, whole)
        path.write_bytes(whole.getvalue())
        return
    with _in_one_sentence("ONNX"):
        written = torch.onnx.export(program, dynamo=True, verbose=False)
        assert written is not None  # it has been traced
    written.save(path)


def _program(model: Any, module: nn.Module) -> torch.export.ExportedProgram:
    """Return the module as torch traces it, for any number of samples."""
    inputs, like = model.network.inputs, model.weights[0].matrix
    examples = (like.new_zeros(_SAMPLES, *x.shape) for x in inputs)
    free = ({0: Dim("samples")},) * len(inputs)
    # The inputs of a graph are one argument, those of a chain as many as they are.
    shapes: Any = (free,) if isinstance(module, ExportedGraph) else free
    return torch.export.export(module, tuple(examples), dynamic_shapes=shapes)


@contextmanager
def _in_one_sentence(writer: str) -> Iterator[None]:
    """Make a sentence of what torch says at length."""
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            logging.disable(logging.WARNING)
            yield
    except Exception as error:  # torch has many classes of them
        reason = str(error).strip().partition("\n")[0]
        raise LiftedError(
            f"{writer} cannot take this network for any number of samples ({reason}): write "
            "FILE.safetensors, or use liftednet.to_torch in Python."
        ) from error
    finally:
        logging.disable(logging.NOTSET)
