"""`liftednet export`: a saved model in a file that others load."""

from __future__ import annotations

import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn
from torch.export import Dim

from liftednet.command.saved import opened, require_place
from liftednet.errors import DataError, LiftedError
from liftednet.export import to_torch

_EXAMPLE = (3, 4)  # samples and steps that a program is traced with; it takes others, too


def run_export(path: Path, output: Path, activation: str | None) -> None:
    """Write the model's torch module.

    Raises:
        LiftedError: the model cannot be read, the file not written, or torch cannot export it so.
    """
    if output.suffix not in _WRITERS:
        raise DataError(f"the file must be one of {', '.join(_WRITERS)}, got {str(output)!r}.")
    require_place(output)
    model = opened(path, activation).model
    module = to_torch(model).eval()
    partial = output.with_name(f".{output.name}.unfinished{output.suffix}")
    try:
        _WRITERS[output.suffix](model, module, partial)
        os.replace(partial, output)
    finally:
        partial.unlink(missing_ok=True)
    Console().print(f"written to {output}", soft_wrap=True)


def _write_weights(model: Any, module: nn.Module, path: Path) -> None:
    from safetensors.torch import save_model

    save_model(module, str(path))


def _write_program(model: Any, module: nn.Module, path: Path) -> None:
    torch.export.save(_program(model, module), path)


def _write_onnx(model: Any, module: nn.Module, path: Path) -> None:
    if not find_spec("onnxscript"):
        raise LiftedError("torch writes ONNX with onnxscript: run `pip install 'liftednet[onnx]'`.")
    program = _program(model, module)
    with _in_one_sentence("ONNX"):
        written = torch.onnx.export(program, dynamo=True, verbose=False)
        assert written is not None  # it has been traced
        written.save(path)


def _program(model: Any, module: nn.Module) -> torch.export.ExportedProgram:
    """Return the module as torch traces it, for any number of samples, and of steps."""
    like, dimensions = model.weights[0].matrix, (Dim("samples"), Dim("steps"))
    examples, free = [], []
    for given in model.network.inputs:
        leading = _EXAMPLE if given.sequence else _EXAMPLE[:1]
        examples.append(torch.zeros(*leading, *given.shape, dtype=like.dtype, device=like.device))
        free.append(dict(enumerate(dimensions[: len(leading)])))
    # The inputs of a graph are one argument, those of a chain as many as they are.
    shapes: Any = tuple(free) if isinstance(module, nn.Sequential) else (tuple(free),)
    with _in_one_sentence("torch.export"):
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


_WRITERS: dict[str, Callable[[Any, nn.Module, Path], None]] = {
    ".safetensors": _write_weights,
    ".pt2": _write_program,
    ".onnx": _write_onnx,
}
