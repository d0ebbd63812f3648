"""Drawn modules of `to_torch` through torch.jit, torch.export and ONNX: outputs are the same."""

from __future__ import annotations

import contextlib
import io
import logging
import random
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime  # type: ignore[import-untyped]
import torch
from torch import Tensor, nn
from torch.export import Dim

from liftednet import activations, losses, to_torch
from liftednet.activation import Activation
from liftednet.models import LiftedMLP, Minibatch
from tests.torture.report import Finding

_MODULES, _TRACED = 100, 3
_TOLERANCE = 1e-5  # of float32, beside outputs of size 1
_PROMISE = "for other samples, and other numbers of them, its outputs are those of the module"
_ACTIVATIONS: list[Callable[[random.Random], Activation]] = [
    lambda _: activations.ReLU(),
    lambda _: activations.Tanh(),
    lambda _: activations.Sigmoid(),
    lambda _: activations.Softplus(),
    lambda _: activations.ELU(),
    lambda _: activations.Identity(),
    lambda draw: activations.LeakyReLU(draw.uniform(0.01, 0.5)),
    lambda draw: activations.Clipped(-draw.random() - 0.1, draw.random() + 0.1),
    lambda draw: activations.PReLU(draw.uniform(0.05, 0.5)),
]
Run = Callable[[nn.Module, Tensor, Tensor], Tensor]


def findings(share: float) -> list[Finding]:
    """Return what each way out made of a share of the modules."""
    most = max(2, round(_MODULES * share))
    drawn = [_drawn(random.Random(number)) for number in range(most)]
    found = []
    for name, run in _RUNS.items():
        wrong = [f"module {n}: {text}" for n, one in enumerate(drawn) if (text := _said(run, *one))]
        found.append(
            Finding(f"modules by {name}", most, len(wrong), _PROMISE, wrong[0] if wrong else "")
        )
    return found


def _drawn(draw: random.Random) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a module in eval mode, what it is traced with, and other samples."""
    inputs, depth = draw.randint(1, 6), draw.randint(1, 3)
    sizes = [inputs, *(draw.randint(1, 9) for _ in range(depth)), draw.randint(2, 4)]
    source = torch.Generator().manual_seed(draw.randrange(1 << 30))
    x = 10 ** draw.uniform(-1, 2) * torch.randn(40, inputs, generator=source)
    regression = draw.random() < 0.5
    y = torch.randn(40, sizes[-1], generator=source) if regression else torch.arange(40) % sizes[-1]
    loss = losses.SquaredError() if regression else losses.CrossEntropy()
    layers = [draw.choice(_ACTIVATIONS)(draw) for _ in range(depth)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LiftedMLP(sizes, layers, loss=loss, method=Minibatch(1)).fit(x, y)
    return to_torch(model, logits=draw.random() < 0.5).eval(), x[:_TRACED], x[_TRACED:]


def _said(run: Run, module: nn.Module, example: Tensor, other: Tensor) -> str:
    """Return what is wrong with the outputs, or ""."""
    quiet = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    logging.disable(logging.WARNING)
    try:
        with torch.no_grad(), warnings.catch_warnings(), quiet[0], quiet[1]:
            warnings.simplefilter("ignore")
            wanted, found = module(other), run(module, example, other)
    except Exception as error:  # of torch's many classes
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    finally:
        logging.disable(logging.NOTSET)
    far = float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1.0))
    return "" if found.shape == wanted.shape and far <= _TOLERANCE else f"off by {far:.2g}"


def _by_jit(module: nn.Module, example: Tensor, other: Tensor) -> Tensor:
    found: Tensor = torch.jit.trace(module, (example,))(other)
    return found


def _program(module: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    return torch.export.export(module, (example,), dynamic_shapes=({0: Dim("samples")},))


def _by_export(module: nn.Module, example: Tensor, other: Tensor) -> Tensor:
    found: Tensor = _program(module, example).module()(other)
    return found


def _by_onnx(module: nn.Module, example: Tensor, other: Tensor) -> Tensor:
    written: Any = torch.onnx.export(_program(module, example), dynamo=True, verbose=False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "module.onnx"
        written.save(path)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        (given,) = session.get_inputs()
        return torch.from_numpy(session.run(None, {given.name: other.numpy()})[0])


_RUNS: dict[str, Run] = {"torch.jit": _by_jit, "torch.export": _by_export, "ONNX": _by_onnx}
