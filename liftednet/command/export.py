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
from liftednet.export import ExportedGraph, to_torch

_SAMPLES = 3  # that a program is traced with; it takes other numbers, too


def run_export(path: Path, output: Path, activation: str | None, steps: int | None) -> None:
    """Write the model's torch module; a program of a recurrent one is for some number of steps.

    Raises:
        LiftedError: the model cannot be read, the file not written, or torch cannot export it so.
    """
    if output.suffix not in _WRITERS:
        raise DataError(f"the file must be one of {', '.join(_WRITERS)}, got {str(output)!r}.")
    require_place(output, path)
    model = opened(path, activation).model
    recurrent = output.suffix != ".safetensors" and any(x.sequence for x in model.network.inputs)
    if recurrent and steps is None:
        raise DataError(
            f"a recurrent network is written to {output.suffix} for one number of steps: say how "
            "many by --steps, or write FILE.safetensors."
        )
    if steps is not None and not recurrent:
        raise DataError("--steps is for the .pt2 and .onnx files of recurrent networks.")
    module = to_torch(model).eval()
    partial = output.with_name(f".{output.name}.unfinished{output.suffix}")
    try:
        _WRITERS[output.suffix](model, module, steps, partial)
        os.replace(partial, output)
    finally:
        partial.unlink(missing_ok=True)
    Console().print(f"written to {output}", soft_wrap=True)


def _write_weights(model: Any, module: nn.Module, steps: int | None, path: Path) -> None:
    from safetensors.torch import save_model

    save_model(module, str(path))


def _write_program(model: Any, module: nn.Module, steps: int | None, path: Path) -> None:
    torch.export.save(_program(model, module, steps), path)


def _write_onnx(model: Any, module: nn.Module, steps: int | None, path: Path) -> None:
    if not find_spec("onnxscript"):
        raise LiftedError("torch writes ONNX with onnxscript: run `pip install 'liftednet[onnx]'`.")
    program = _program(model, module, steps)
    with _in_one_sentence("ONNX"):
        written = torch.onnx.export(program, dynamo=True, verbose=False)
        assert written is not None  # it has been traced
        written.save(path)


def _program(model: Any, module: nn.Module, steps: int | None) -> torch.export.ExportedProgram:
    """Return the module as torch traces it, for any number of samples."""
    like, samples = model.weights[0].matrix, Dim("samples")
    examples, free = [], []
    for given in model.network.inputs:
        leading = (_SAMPLES, steps) if given.sequence else (_SAMPLES,)
        examples.append(torch.zeros(*leading, *given.shape, dtype=like.dtype, device=like.device))
        free.append({0: samples})
    # The inputs of a graph are one argument, those of a chain as many as they are.
    shapes: Any = (tuple(free),) if isinstance(module, ExportedGraph) else tuple(free)
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


_WRITERS: dict[str, Callable[[Any, nn.Module, int | None, Path], None]] = {
    ".safetensors": _write_weights,
    ".pt2": _write_program,
    ".onnx": _write_onnx,
}
