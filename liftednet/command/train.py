"""`liftednet train`: a lifted network on the user's data, saved to a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from liftednet import data
from liftednet.command.named import IMAGES, activation_from, loss_from
from liftednet.errors import DataError
from liftednet.losses import BinaryCrossEntropy, Loss
from liftednet.models import FullBatch, LiftedMLP, Minibatch
from liftednet.models.storage import save

_HELD_OUT = 0.25  # of a file's samples, where the user names no share

METHODS: dict[str, Callable[[int], FullBatch | Minibatch]] = {
    "full": lambda sweeps: FullBatch(sweeps=sweeps),
    "minibatch": lambda epochs: Minibatch(epochs=epochs),
}


@dataclass(frozen=True)
class Order:
    """What the user asks for, as given on the command line."""

    data: str
    hidden: str
    activation: str
    loss: str
    divergence: str
    method: str
    lam: float
    rho: float
    sweeps: int
    held_out: float | None
    seed: int
    output: Path


@dataclass(frozen=True)
class Halves:
    """Samples to train on and samples to test on: X (samples, features) and y."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor


def run_train(order: Order) -> None:
    """Train, print how good the network is, and save it.

    Raises:
        LiftedError: the data, a name or a number cannot be used; nothing has been trained.
        SolverError: the training failed.
    """
    loss, activation = loss_from(order.loss), activation_from(order.activation)
    if not order.output.parent.is_dir():
        raise DataError(f"the folder {order.output.parent} of the model does not exist.")
    halves = _samples(order)
    sizes = (halves.x_train.shape[1], *_hidden(order.hidden), _outputs(halves, loss))
    model = LiftedMLP(
        sizes,
        activation,
        loss,
        order.lam,
        order.rho,
        order.divergence,
        seed=order.seed,
        method=METHODS[order.method](order.sweeps),
    )
    console = Console()
    console.print(f"{' - '.join(map(str, sizes))} units, {len(halves.y_train)} samples")
    model.fit(halves.x_train, halves.y_train, progress=True)
    for line in _scores(model, halves):
        console.print(line, soft_wrap=True)
    console.print(f"saved to {save(model, order.output)}", soft_wrap=True)


def _scores(model: LiftedMLP, halves: Halves) -> list[str]:
    parts = {
        "training": (halves.x_train, halves.y_train),
        "test": (halves.x_test, halves.y_test),
    }
    return [
        f"{part} {_score(model.loss, model.predict(x), y)} by the feedforward rule, "
        f"{_score(model.loss, model.predict_lifted(x), y)} by the lifted rule"
        for part, (x, y) in parts.items()
    ]


def _score(loss: Loss, predicted: Tensor, y: Tensor) -> str:
    y = y.reshape(predicted.shape)
    if loss.probabilistic:
        return f"accuracy {float((predicted == y).double().mean()):.3f}"
    return f"mean squared error {float((predicted - y).square().mean()):.4g}"


def _hidden(text: str) -> tuple[int, ...]:
    if not text.strip():
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise DataError(f"--hidden needs integers, as in 100,50; got {text!r}.") from error


def _outputs(halves: Halves, loss: Loss) -> int:
    y = halves.y_train
    if y.ndim == 2:
        return y.shape[1]
    if isinstance(loss, BinaryCrossEntropy) or not loss.probabilistic:
        return 1
    if y.is_floating_point():
        raise DataError(
            f"{type(loss).__name__} needs integer labels, and y holds real numbers: for a "
            "regression take --loss SquaredError."
        )
    found = torch.cat((y, halves.y_test)).unique()
    if not torch.equal(found, torch.arange(len(found))):
        raise DataError(
            "labels must count the classes from 0 without gaps, and these are "
            f"{_some(found.tolist())}: numpy.unique(y, return_inverse=True)[1] numbers them so."
        )
    return len(found)


def _some(labels: list[int]) -> str:
    shown = ", ".join(map(str, labels[:5]))
    return shown if len(labels) <= 5 else f"{shown}, ..., {labels[-1]}"


def _samples(order: Order) -> Halves:
    if order.data in IMAGES:
        if order.held_out is not None:
            raise DataError(f"--held-out is for files: {order.data} has test samples of its own.")
        found = IMAGES[order.data]()
        return Halves(found.x_train, found.y_train, found.x_test, found.y_test)
    x, y = _read(Path(order.data))
    share = _HELD_OUT if order.held_out is None else order.held_out
    return Halves(*data.split(x, y, share, order.seed))


def _read(path: Path) -> tuple[Tensor, Tensor]:
    """Return X in float32 and y from a NumPy archive."""
    if path.suffix != ".npz":
        raise DataError(f"the data must be digits, mnist or an .npz file, got {str(path)!r}.")
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = {"X", "y"} - set(file.files)
            if missing:
                raise DataError(
                    f"{path} must hold the arrays X (samples, features) and y (samples,); it "
                    f"holds {', '.join(file.files) or 'none'}."
                )
            x, y = file["X"], file["y"]
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} cannot be read: {error}.") from error
    if x.ndim != 2 or not np.issubdtype(x.dtype, np.number) or np.iscomplexobj(x):
        raise DataError(
            f"X of {path} must be real numbers of shape (samples, features), got {x.dtype} of "
            f"shape {x.shape}."
        )
    return torch.from_numpy(x).float(), _targets(path, y)


def _targets(path: Path, y: np.ndarray) -> Tensor:
    if np.issubdtype(y.dtype, np.integer) or y.dtype == np.bool_:
        return torch.from_numpy(y.astype(np.int64))
    if np.issubdtype(y.dtype, np.floating):
        return torch.from_numpy(y).float()
    raise DataError(f"y of {path} must be integer labels or real numbers, got {y.dtype}.")
